"""Texts to tokens and back: beside the event loop where that takes long, and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from caudal.errors import ContextOverflowError, ParameterError
from caudal.formats.tokenizer import Tokenizer, surely_exceeds
from caudal.service.answers import SubmittedPrompt, TokenForm, Tokens
from caudal.service.work import CompletionWork, PromptForm, Truncation

INLINE_TOKENIZE_CHARS = 4096
"""Longer text is tokenised in a thread, so that it does not delay the streams of others."""

_CALL_CHARS = 32
"""What a text costs beside its characters."""

_TEXTS_AT_ONCE = 256

MAX_DECODED_TOKENS = 2**18
"""As many tokens as this become text on request, however short the model's context."""


class TextCoder:
    """Tokenises and detokenises for one model.

    Args:
        tokenizer: The model's.
        max_model_len: Most tokens of one sequence.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def check_size(self, param: str, characters: int) -> None:
        """Refuse text that can't fit, whatever its tokens are.

        Raises:
            ContextOverflowError: Blames `param`.
        """
        least = surely_exceeds(self._tokenizer, characters, self._max_model_len)
        if least is not None:
            raise ContextOverflowError(param, self._max_model_len, least, at_least=True)

    async def encode(
        self, texts: Sequence[str], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        """Token ids of texts.

        Args:
            texts: The texts.
            add_special: See `Tokenizer.encode`.
            parse_special: See `Tokenizer.encode`; by default, control tokens written in them stay
                text.

        Raises:
            ContextOverflowError: A text is so long that counting its tokens isn't worth it; blames
                `prompt`.
        """
        for text in texts:
            self.check_size("prompt", len(text))

        def encode(some: Sequence[str]) -> list[list[int]]:
            return [
                self._tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
                for text in some
            ]

        size = sum(map(len, texts)) + _CALL_CHARS * (len(texts) - 1)
        if size <= INLINE_TOKENIZE_CHARS:
            return encode(texts)
        encoded: list[list[int]] = []
        for begin in range(0, len(texts), _TEXTS_AT_ONCE):
            encoded += await asyncio.to_thread(encode, texts[begin : begin + _TEXTS_AT_ONCE])
        return encoded

    async def encode_prediction(self, text: str) -> Sequence[int]:
        """Token ids of what an answer is thought to be.

        Raises:
            ContextOverflowError: No answer could be so long; blames `prediction`.
        """
        self.check_size("prediction", len(text))
        encode = self._tokenizer.encode_continuation
        inline = len(text) <= INLINE_TOKENIZE_CHARS
        return encode(text) if inline else await asyncio.to_thread(encode, text)

    async def encode_prompts(self, work: CompletionWork) -> list[list[int]]:
        """Token ids of prompts to continue, cut as asked; raises what `encode` raises."""
        begins, others = [], []
        for prompt in work.prompts:
            if isinstance(prompt, str):
                begins.append(prompt)
            elif str in set(map(type, prompt)):
                first, *rest = prompt
                if isinstance(first, str):
                    begins.append(first)
                others += [piece for piece in rest if isinstance(piece, str)]
        begun = iter(
            await self.encode(
                begins, add_special=work.add_special, parse_special=work.parse_special
            )
        )
        gone_on = iter(
            await self.encode(others, add_special=False, parse_special=work.parse_special)
            if others
            else ()
        )
        encoded: list[list[int]] = []
        for prompt in work.prompts:
            if isinstance(prompt, str):
                tokens = next(begun)
            else:
                tokens = []
                for index, piece in enumerate(prompt):
                    if isinstance(piece, str):
                        tokens += next(gone_on if index else begun)
                    else:
                        tokens.append(piece)
            encoded.append(self._cut(tokens, work.truncation, work.params.max_tokens))
        return encoded

    def shown_prompt(
        self, tokens: Sequence[int], *, ids: bool, text: PromptForm | None
    ) -> SubmittedPrompt:
        """A prompt as far as it is to be shown."""
        shown = ""
        if text is not None:
            shown = self._tokenizer.decode(tokens, skip_special_tokens=text == "plain")
        return SubmittedPrompt(len(tokens), tokens if ids else (), shown)

    async def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, with the names of control tokens.

        Raises:
            ParameterError: There are too many, or an id doesn't exist; blames `tokens`.
        """
        most = max(self._max_model_len, MAX_DECODED_TOKENS)
        if len(tokens) > most:
            raise ParameterError(
                "tokens", f"tokens has {len(tokens)} ids; at most {most} are decoded at once."
            )

        def decode() -> str:
            return self._tokenizer.decode(tokens, skip_special_tokens=False)

        inline = len(tokens) <= INLINE_TOKENIZE_CHARS
        return decode() if inline else await asyncio.to_thread(decode)

    def shown(self, ids: Sequence[int], show: TokenForm | None) -> Tokens:
        """Tokens, with a form of each to show where asked for."""
        return Tokens(
            ids,
            pieces=[*map(self._tokenizer.token_bytes, ids)] if show == "pieces" else (),
            spellings=[*map(self._tokenizer.token_text, ids)] if show == "spellings" else (),
        )

    def _cut(
        self, tokens: list[int], truncation: Truncation | None, max_tokens: int | None
    ) -> list[int]:
        if truncation is None:
            return tokens
        most = truncation.max_tokens
        if most == -1:
            most = max(1, self._max_model_len - (max_tokens or 1))
        return tokens[:most] if truncation.keep == "begin" else tokens[-most:]
