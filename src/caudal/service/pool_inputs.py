"""What of texts and tokens an embedding model reads, as it wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.errors import InputTooLongError, ParameterError
from caudal.formats.tokenizer import Tokenizer, surely_exceeds

_CHARS_PER_TOKEN = 128
"""As many at most are read for each token, where a tokenizer has no limit of its own."""


@dataclass(frozen=True, slots=True)
class PoolInput:
    """Tokens to pool.

    Attributes:
        tokens: Their ids, with whatever the model wants around them.
        second_segment: Where the second text of a pair begins; None: it is one text.
    """

    tokens: Sequence[int]
    second_segment: int | None = None


class InputReader:
    """Makes tokens to pool of what clients send.

    Args:
        tokenizer: The model's.
        max_tokens: Most tokens of one input.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def encode(self, text: str, *, truncate: int | None = None, field: str = "input") -> list[int]:
        """Token ids of a text, with [CLS] and [SEP] or what else the model wants around it.

        Args:
            text: The text.
            truncate: Keep the first so many tokens; -1: as many as the model reads; None: a text
                that is too long is an error.
            field: What errors call the text.

        Raises:
            ParameterError: The text is too long, has no tokens, or `truncate` makes no sense.
        """
        limit = self.limit(truncate)
        ids = self._tokenizer.encode(self._bounded(text, limit, truncate, field))
        if not ids:
            raise ParameterError(field, f"{field} is empty.")
        return self._cut(ids, limit, truncate, field, closed=self._tokenizer.add_eos)

    def check_tokens(
        self, tokens: Sequence[int], *, truncate: int | None, field: str
    ) -> Sequence[int]:
        """Token ids that a client sent, cut where asked for; they are used as they are.

        Raises:
            ParameterError: There are none, too many, or ids that don't exist.
        """
        if not tokens:
            raise ParameterError(field, f"{field} is empty.")
        if set(map(type, tokens)) != {int}:
            raise ParameterError(field, f"{field} token ids must be integers.")
        size = self._tokenizer.vocab_size
        for token in tokens:
            if not 0 <= token < size:
                raise ParameterError(
                    field,
                    f"{field} has token id {token}, but this model's ids are 0 to {size - 1}.",
                )
        return self._cut(tokens, self.limit(truncate), truncate, field, closed=False)

    def encode_pair(
        self,
        first: str,
        second: str,
        *,
        truncate: int | None = None,
        fields: tuple[str, str] = ("text_1", "text_2"),
    ) -> PoolInput:
        """A pair for a cross-encoder: [CLS] first [SEP] second [SEP]; only `second` is ever cut.

        RoBERTa's have [SEP] twice between them, and no segments.

        Args:
            first: The text that stands first.
            second: The other.
            truncate: See `encode`, of both together.
            fields: What errors call them.

        Raises:
            ParameterError: The pair is too long, or `truncate` makes no sense; blames the first
                text where it leaves no room for another, else the second.
        """
        limit = self.limit(truncate)
        encode = self._tokenizer.encode
        head = encode(self._bounded(first, limit, None, fields[0]))
        again = self._tokenizer.separators - 1
        head += head[-1:] * again
        tail = encode(self._bounded(second, limit, truncate, fields[1]))[1:]  # without its [CLS]
        room = limit - len(head)
        if room < 2:
            raise InputTooLongError(fields[0], limit, len(head) + len(tail))
        if len(tail) > room and truncate is None:
            raise InputTooLongError(fields[1], limit, len(head) + len(tail))
        tail = tail if len(tail) <= room else [*tail[: room - 1], tail[-1]]
        return PoolInput([*head, *tail], None if again else len(head))

    def limit(self, truncate: int | None) -> int:
        """Most tokens of an input.

        Raises:
            ParameterError: `truncate` is neither -1 nor a size that leaves room for text.
        """
        special = self._tokenizer.add_bos + self._tokenizer.add_eos
        if truncate is None or truncate == -1:
            return self._max_tokens
        if truncate <= special:
            raise ParameterError(
                "truncate_prompt_tokens",
                f"truncate_prompt_tokens must be -1 or at least {special + 1}, but is {truncate}.",
            )
        return min(truncate, self._max_tokens)

    def _bounded(self, text: str, limit: int, truncate: int | None, field: str) -> str:
        """What of a text to tokenise."""
        least = surely_exceeds(self._tokenizer, len(text), limit, assumed=_CHARS_PER_TOKEN)
        if least is None:
            return text
        if truncate is None:
            raise InputTooLongError(field, limit, characters=len(text))
        return text[: limit * (self._tokenizer.longest_token or _CHARS_PER_TOKEN)]

    def _cut(
        self, ids: Sequence[int], limit: int, truncate: int | None, field: str, *, closed: bool
    ) -> list[int]:
        """At most `limit` ids, if cutting is wished; `closed`: the last id stays the last."""
        if len(ids) <= limit:
            return list(ids)
        if truncate is None:
            raise InputTooLongError(field, limit, len(ids))
        return [*ids[: limit - 1], ids[-1]] if closed else list(ids[:limit])
