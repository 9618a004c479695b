"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from caudal.service.answers import OutputToken, TokenScore

LEAST_LOGPROB = -9999.0
"""Written for less, because JSON has no minus infinity (the value that OpenAI uses)."""


def chat_logprobs(tokens: Iterable[OutputToken], *, as_ids: bool = False) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions: one entry per token of the text.

    Args:
        tokens: The tokens.
        as_ids: Call tokens `token_id:1234` instead.
    """
    return {
        "content": [
            _chat_entry(token, token.score, as_ids)
            for token in tokens
            if token.in_text and token.score is not None
        ],
        "refusal": None,
    }


def prompt_logprobs(tokens: Iterable[OutputToken], top: int) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` of vLLM: for each token of a prompt it and the likeliest, by their ids.

    Args:
        tokens: The prompt's. The first follows nothing and has no score.
        top: How many of the likeliest.
    """

    def entry(logprob: float, rank: int, piece: bytes) -> dict[str, Any]:
        return {
            "logprob": max(logprob, LEAST_LOGPROB),
            "rank": rank,
            "decoded_token": piece.decode(errors="replace"),
        }

    return [
        None
        if (score := token.score) is None
        else {str(token.id): entry(score.logprob, score.rank, token.piece)}
        | {
            str(other.id): entry(other.logprob, rank, other.piece)
            for rank, other in enumerate(score.top[:top], 1)
        }
        for token in tokens
    ]


def _id_name(token: int) -> str:
    return f"token_id:{token}"


def _chat_entry(token: OutputToken, score: TokenScore, as_ids: bool) -> dict[str, Any]:
    def entry(token: int, logprob: float, piece: bytes) -> dict[str, Any]:
        return {
            "token": _id_name(token) if as_ids else piece.decode(errors="replace"),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(piece),
        }

    return entry(token.id, score.logprob, token.piece) | {
        "top_logprobs": [entry(other.id, other.logprob, other.piece) for other in score.top]
    }


class CompletionLogprobs:
    """`choices[].logprobs` of text completions: parallel lists, filled token by token.

    Args:
        top: How many alternatives the request asked for. The chosen token is always listed, so
            there may be one more, as at OpenAI.
        as_ids: Call tokens `token_id:1234` instead.
    """

    def __init__(self, top: int, *, as_ids: bool = False) -> None:
        self._as_ids = as_ids
        self._top = top
        self.lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add(self, tokens: Iterable[OutputToken], text_begin: int = 0) -> None:
        """Add tokens.

        Args:
            tokens: They. Those without a score follow nothing: an echoed prompt's first.
            text_begin: Where the text that they know their places in begins in the choice's.
        """
        for token in tokens:
            if token.in_text:
                self._add(token, text_begin + token.offset)

    def _add(self, token: OutputToken, offset: int) -> None:
        score, name = token.score, self._name(token.id, token.piece)
        top: dict[str, float] | None = None
        if score is not None:
            top = {
                self._name(other.id, other.piece): max(other.logprob, LEAST_LOGPROB)
                for other in score.top[: self._top]
            }
            top[name] = max(score.logprob, LEAST_LOGPROB)
        self.lists["tokens"].append(name)
        self.lists["token_logprobs"].append(None if top is None else top[name])
        self.lists["top_logprobs"].append(top)
        self.lists["text_offset"].append(offset)

    def _name(self, token: int, piece: bytes) -> str:
        """A token's text; part of a character is written as bytes, so that keys stay distinct."""
        if self._as_ids:
            return _id_name(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
