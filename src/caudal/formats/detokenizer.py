"""Text of a growing sequence of tokens, as far as it is complete."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from caudal.formats.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text one by one.

    A token may end in the middle of a character; its bytes are held back until the character is
    complete or can't become one. What `push` and `finish` return, joined, is exactly
    `tokenizer.decode` of all the tokens.

    Args:
        tokenizer: Knows the tokens' bytes.
        skip_special_tokens: Leave control tokens out.
        visible_tokens: Control tokens that are not left out even so.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        visible_tokens: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._visible_tokens = visible_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._within_character = False

    def push(self, token_id: int) -> str:
        """The text that this token completes, possibly none.

        Raises:
            ParameterError: The id doesn't exist.
        """
        if not self._within_character:
            text = self._tokenizer.plain_text(token_id)
            if text is not None:  # nearly all
                return text
        if (
            self._skip_special_tokens
            and self._tokenizer.is_control(token_id)
            and token_id not in self._visible_tokens
        ):
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self._within_character = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """The rest: U+FFFD if the tokens ended within a character. Push nothing afterwards."""
        return self._decoder.decode(b"", final=True)
