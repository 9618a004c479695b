"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from caudal.backends.base import TokenLogprob
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.formats.tokenizer import Tokenizer
from caudal.output import OutputToken

LEAST_LOGPROB = -9999.0
"""Written for less, because JSON has no minus infinity (the value that OpenAI uses)."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[OutputToken]) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions: one entry per token of the text."""
    return {
        "content": [
            _chat_entry(tokenizer, token.sampled.logprob)
            for token in tokens
            if token.in_text and token.sampled.logprob is not None
        ],
        "refusal": None,
    }


def _chat_entry(tokenizer: Tokenizer, scored: TokenLogprob) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {
            "token": data.decode(errors="replace"),
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
    """

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
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
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
