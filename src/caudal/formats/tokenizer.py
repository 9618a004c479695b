"""Text to token ids and back, as the model's own tokenizer does it, from what its files hold."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from tokenizers import Tokenizer as Backend

from caudal.errors import ModelLoadError, ParameterError
from caudal.formats import unigram
from caudal.formats.bpe import bpe_token_bytes, build_bpe, pre_tokenizer_of
from caudal.formats.fill_tokens import FillTokens, find_fill_tokens
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import ModelFolder
from caudal.formats.special_tokens import SpecialTokenSplitter
from caudal.formats.spm import SPACE, SpacePrefix, build_spm, spm_token_bytes
from caudal.formats.vocabulary import TokenKind, Vocabulary
from caudal.formats.wordpiece import (
    build_wordpiece,
    read_tokenizer_json,
    with_continuations,
    wordpiece_token_bytes,
)

COUNTED_CHARS = 2**20
"""Text up to this length is tokenised even if it can't fit the context."""

_KINDS = {
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece BPE",
    "bert": "WordPiece",
    unigram.MODEL: "SentencePiece Unigram",
}
_ROBERTA_END = "</s>"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Encodes and decodes for one model. Immutable, and safe to use from several threads.

    Text never becomes a control token (`<|im_start|>`, `</s>` …)
    unless `parse_special` says so; user-defined tokens are always found, longest first, before
    anything else looks at the text.

    Args:
        vocabulary: Tokens and roles.
        backend: Encodes text that holds no special tokens.
        add_bos: Whether BOS begins a prompt.
        add_eos: Whether EOS ends a text to encode.
        space_prefix: SentencePiece only: where a space is put before text.

    Attributes:
        vocabulary: Tokens and roles.
        add_bos: Whether BOS begins a prompt.
        add_eos: Whether EOS ends a text to encode.
        special_tokens: Ids of control tokens by text.
        user_defined_tokens: Ids of user-defined tokens by text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: Backend,
        *,
        add_bos: bool,
        add_eos: bool,
        space_prefix: SpacePrefix,
    ) -> None:
        self.vocabulary = vocabulary
        self.add_bos = add_bos
        self.add_eos = add_eos
        self._backend = backend
        self._space_prefix = space_prefix
        self._is_spm = vocabulary.is_sentencepiece
        texts = vocabulary.texts
        control = vocabulary.ids_of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN)
        self.special_tokens: Mapping[str, int] = {texts[token]: token for token in control}
        self._control = frozenset(control)
        self._bytes: dict[int, bytes] = {}  # of tokens that were asked for
        self._plain_texts: dict[int, str | None] = {}  # likewise
        user_defined = vocabulary.ids_of_kind(TokenKind.USER_DEFINED)
        self.user_defined_tokens: Mapping[str, int] = {
            texts[token]: token for token in user_defined
        }
        self._longest_token = max(map(len, texts))
        self._user_defined_splitter = SpecialTokenSplitter(
            self.user_defined_tokens, vocabulary.edges
        )
        self._special_splitter = SpecialTokenSplitter(
            {**self.user_defined_tokens, **self.special_tokens}, vocabulary.edges
        )

    @classmethod
    def from_gguf(cls, file: ModelFile) -> Self:
        """Build the tokenizer that the file describes.

        Raises:
            ModelLoadError: The tokenizer's family or pre-tokenizer is unknown, or an array or id is
                missing or damaged; names the key.
        """
        vocabulary = Vocabulary.from_gguf(file)
        if vocabulary.model == "bert":
            return cls._framed(
                spelt := with_continuations(vocabulary, file), build_wordpiece(spelt)
            )
        space_prefix: SpacePrefix = "never"
        default_eos = False
        if vocabulary.model == unigram.MODEL:
            vocabulary = unigram.with_roles(vocabulary)
            backend = unigram.build_unigram(file, vocabulary)
            default_bos, default_eos = (
                token is not None for token in (vocabulary.bos_id, vocabulary.eos_id)
            )
        elif vocabulary.is_sentencepiece:
            backend = build_spm(file, vocabulary)
            default_bos = vocabulary.bos_id is not None
            if file.get_bool("tokenizer.ggml.add_space_prefix", vocabulary.model == "llama"):
                space_prefix = "each"
        else:
            backend = build_bpe(file, vocabulary)
            default_bos = pre_tokenizer_of(vocabulary).add_bos and vocabulary.bos_id is not None
        add_bos = file.get_bool("tokenizer.ggml.add_bos_token", default_bos)
        add_eos = file.get_bool("tokenizer.ggml.add_eos_token", default_eos)
        for role, is_added, token in (
            ("bos", add_bos, vocabulary.bos_id),
            ("eos", add_eos, vocabulary.eos_id),
        ):
            if is_added and token is None:
                raise ModelLoadError(
                    str(file.path),
                    f"tokenizer.ggml.add_{role}_token is true, but "
                    f"tokenizer.ggml.{role}_token_id is missing",
                )
        return cls(
            vocabulary,
            backend,
            add_bos=add_bos,
            add_eos=add_eos,
            space_prefix=space_prefix,
        )

    @classmethod
    def from_folder(cls, folder: ModelFolder, *, lowercase: bool = False) -> Self:
        """Build the tokenizer of an encoder's `tokenizer.json`: WordPiece.

        Those of decoders are read by formats/huggingface/tokenizer.py.

        Args:
            folder: The model.
            lowercase: Text is put in lower case before all else.

        Raises:
            ModelLoadError: The tokenizer is of another kind, or damaged.
        """
        return cls._framed(*read_tokenizer_json(folder, lowercase=lowercase))

    @classmethod
    def _framed(cls, vocabulary: Vocabulary, backend: Backend) -> Self:
        """BERT's: [CLS] before and [SEP] after every text."""
        return cls(vocabulary, backend, add_bos=True, add_eos=True, space_prefix="never")

    @property
    def kind(self) -> str:
        """The tokenizer's family, e.g. `gpt2 (smollm)` by a GGUF file's names."""
        vocabulary = self.vocabulary
        if vocabulary.pre:
            return f"{vocabulary.model} ({vocabulary.pre})"
        return _KINDS[vocabulary.model]

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids are 0 to `vocab_size - 1`."""
        return len(self.vocabulary.texts)

    @property
    def separators(self) -> int:
        """How many times EOS stands between two texts that are encoded as a pair."""
        if self.eos_id is None:
            return 0
        return 2 if self.vocabulary.texts[self.eos_id] == _ROBERTA_END else 1

    @property
    def longest_token(self) -> int | None:
        """Most characters of text that a token stands for; None if there is no such limit."""
        if self._is_spm and len(self.vocabulary.ids_of_kind(TokenKind.BYTE)) < 256:
            return None  # a stretch of unknown text becomes one token
        if self.vocabulary.model == unigram.MODEL:
            return None  # white space is left out, and what is unknown becomes one token
        if self.vocabulary.model == "bert":
            return None  # a word that is unknown, or too long, becomes one token
        return self._longest_token

    @property
    def fill_tokens(self) -> FillTokens | None:
        """What is written around a gap that the model is to fill; None where it can't."""
        return self.vocabulary.fill_tokens or find_fill_tokens(
            {**self.user_defined_tokens, **self.special_tokens}
        )

    @property
    def bos_id(self) -> int | None:
        """The token that begins a sequence."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a sequence."""
        return self.vocabulary.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends an answer: end of text, of turn, of message."""
        return self.vocabulary.eos_ids

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """Tokens that no answer has."""
        return self.vocabulary.suppressed_ids

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any string; lone surrogates become U+FFFD.
            add_special: Add BOS and EOS where the model wants them; never a second BOS.
            parse_special: Control tokens written in the text become those tokens.
        """
        splitter = self._special_splitter if parse_special else self._user_defined_splitter
        ids = self.encode_pieces(splitter.split(without_surrogates(text)))
        return self.framed(ids) if add_special else ids

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of text that goes on where other text ended: nothing is put in front of it."""
        ids: list[int] = []
        for piece in self._user_defined_splitter.split(without_surrogates(text)):
            if isinstance(piece, int):
                ids.append(piece)
            elif piece:
                ids += self._encode_text(piece, add_space_prefix=False)
        return ids

    def encode_pieces(self, pieces: Iterable[str | int]) -> list[int]:
        """Token ids of a text that has been split at its special tokens.

        Args:
            pieces: Token ids, and texts in which no special token is looked for.
        """
        ids: list[int] = []
        prefixed = self._space_prefix != "never"
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            elif piece:
                ids += self._encode_text(piece, add_space_prefix=prefixed)
            if self._space_prefix == "first_if_missing":
                prefixed = False
        return ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids with BOS in front, if the model wants it and it isn't there already."""
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def without_bos(self, ids: Sequence[int]) -> Sequence[int]:
        """The ids without a BOS in front, for text that goes on from other text."""
        return ids[1:] if self.bos_id is not None and ids[:1] == [self.bos_id] else ids

    def framed(self, ids: list[int]) -> list[int]:
        """The ids with BOS in front and EOS behind, where the model wants them; neither twice."""
        ids = self.with_bos(ids)
        if self.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
            ids = [*ids, self.eos_id]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            skip_special_tokens: Leave control tokens out.

        Raises:
            ParameterError: An id doesn't exist.
        """
        raw = b"".join(
            self.token_bytes(token)
            for token in ids
            if not (self.is_control(token) and skip_special_tokens)
        )
        return raw.decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text: a control token its name, an unused one nothing.

        Raises:
            ParameterError: The id doesn't exist.
        """
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def plain_text(self, token: int) -> str | None:
        """The text of a token of whole characters; None for others and for control tokens.

        Raises:
            ParameterError: The id doesn't exist.
        """
        try:
            return self._plain_texts[token]
        except KeyError:
            text = None
            if not self.is_control(token):
                with contextlib.suppress(UnicodeDecodeError):
                    text = self.token_bytes(token).decode()
            self._plain_texts[token] = text
            return text

    def _find_bytes(self, token: int) -> bytes:
        kind = self._kind(token)
        text = self.vocabulary.texts[token]
        if kind is TokenKind.UNUSED:
            return b""
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED):
            return text.encode()
        if self._is_spm or self.vocabulary.model == unigram.MODEL:
            return spm_token_bytes(text, kind, self.vocabulary.source)
        if self.vocabulary.model == "bert":
            return wordpiece_token_bytes(text)
        return bpe_token_bytes(text)

    def is_control(self, token: int) -> bool:
        """Whether a token steers the model rather than being text (control and unknown tokens).

        Raises:
            ParameterError: The id doesn't exist.
        """
        self._check(token)
        return token in self._control

    def token_text(self, token: int) -> str:
        """A token's text as the vocabulary spells it, e.g. `<|im_end|>` or `Ġhello`.

        Raises:
            ParameterError: The id doesn't exist.
        """
        self._check(token)
        return self.vocabulary.texts[token]

    def token_id(self, text: str) -> int | None:
        """The id of the token the vocabulary spells like this, None if there is none."""
        for special in (self.special_tokens, self.user_defined_tokens):
            if text in special:
                return special[text]
        found: int | None = self._backend.token_to_id(text)
        return found

    def _kind(self, token: int) -> TokenKind:
        self._check(token)
        return TokenKind(self.vocabulary.kinds[token])

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise ParameterError(
                "tokens",
                f"token id {token} is outside the vocabulary (0 to {self.vocab_size - 1}).",
            )

    def _encode_text(self, text: str, *, add_space_prefix: bool) -> list[int]:
        if self._is_spm:
            if add_space_prefix and (self._space_prefix == "each" or not text.startswith(" ")):
                text = " " + text
            text = text.replace(" ", SPACE)
        # The batch call, unlike `encode`, lets other Python threads run meanwhile.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def surely_exceeds(
    tokenizer: Tokenizer, characters: int, max_tokens: int, *, assumed: int | None = None
) -> int | None:
    """Whether a text has too many tokens, whatever they are: then it isn't worth counting them.

    Tokenising takes a hundred bytes of memory for each byte of text. What the limit for bodies lets
    through, but no context has room for, must not get that far. Shorter text is counted, to say by
    how much it is too long.

    Args:
        tokenizer: What would count them.
        characters: The text's length.
        max_tokens: Most tokens that it may have.
        assumed: Most characters of a token, where the tokenizer has no limit; None: then there is
            no telling.

    Returns:
        The fewest tokens that the text may have, if these are too many.
    """
    longest = tokenizer.longest_token or assumed
    if longest is None or characters <= COUNTED_CHARS:
        return None
    least = -(-characters // longest)
    return least if least > max_tokens else None


def without_surrogates(text: str) -> str:
    """Pairs of surrogates become the characters they stand for, lone ones U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
