"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from caudal.backends.base import TokenLogprob
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.formats.tokenizer import Tokenizer
from caudal.service.generation import OutputToken

LEAST_LOGPROB = -9999.0
"""Written for less, because JSON has no minus infinity (the value that OpenAI uses)."""


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Iterable[OutputToken], *, as_ids: bool = False
) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions: one entry per token of the text.

    Args:
        tokenizer: Names the tokens.
        tokens: The tokens.
        as_ids: Call tokens `token_id:1234` instead.
    """
    return {
        "content": [
            _chat_entry(tokenizer, token.sampled.logprob, as_ids)
            for token in tokens
            if token.in_text and token.sampled.logprob is not None
        ],
        "refusal": None,
    }


def prompt_logprobs(
    tokenizer: Tokenizer, scores: Sequence[TokenLogprob], top: int
) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` of vLLM: for each token of a prompt it and the likeliest, by their ids.

    Args:
        tokenizer: Names the tokens.
        scores: One per token after the first, which follows nothing and has none.
        top: How many of the likeliest.
    """

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": max(logprob, LEAST_LOGPROB),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(token).decode(errors="replace"),
        }

    return [
        None,
        *(
            {str(scored.token): entry(scored.token, scored.logprob, scored.rank)}
            | {
                str(token): entry(token, logprob, rank)
                for rank, (token, logprob) in enumerate(scored.top[:top], 1)
            }
            for scored in scores
        ),
    ]


def _id_name(token: int) -> str:
    return f"token_id:{token}"


def _chat_entry(tokenizer: Tokenizer, scored: TokenLogprob, as_ids: bool) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {
            "token": _id_name(token) if as_ids else data.decode(errors="replace"),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(data),
        }

    return entry(scored.token, scored.logprob) | {
        "top_logprobs": [entry(token, logprob) for token, logprob in scored.top]
    }


class CompletionLogprobs:
    """`choices[].logprobs` of text completions: parallel lists, filled token by token.

    Args:
        tokenizer: Names the tokens.
        top: How many alternatives the request asked for. The chosen token is always listed, so
            there may be one more, as at OpenAI.
        as_ids: Call tokens `token_id:1234` instead.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._top = top
        self.lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add_prompt(self, prompt: Sequence[int], scores: Sequence[TokenLogprob]) -> None:
        """Add an echoed prompt; its first token follows nothing and has no probability."""
        detokenizer = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=True)
        offset = 0
        for token, scored in zip(prompt, [None, *scores], strict=True):
            self._add(token, scored, offset)
            offset += len(detokenizer.push(token))

    def add(self, tokens: Iterable[OutputToken], text_begin: int) -> None:
        """Add generated tokens, of a text that begins `text_begin` characters into the choice's."""
        for token in tokens:
            if token.in_text:
                self._add(token.sampled.token, token.sampled.logprob, text_begin + token.offset)

    def _add(self, token: int, scored: TokenLogprob | None, offset: int) -> None:
        top: dict[str, float] | None = None
        if scored is not None:
            ranked = [*scored.top[: self._top], (token, scored.logprob)]
            top = {self._name(other): max(value, LEAST_LOGPROB) for other, value in ranked}
        self.lists["tokens"].append(self._name(token))
        self.lists["token_logprobs"].append(None if top is None else top[self._name(token)])
        self.lists["top_logprobs"].append(top)
        self.lists["text_offset"].append(offset)

    def _name(self, token: int) -> str:
        """A token's text; part of a character is written as bytes, so that keys stay distinct."""
        if self._as_ids:
            return _id_name(token)
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
