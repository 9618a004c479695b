"""A model's vocabulary: token texts, their kinds, and which ids mean begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.fill_tokens import FillTokens
from caudal.formats.model_file import ModelFile


class TokenKind(IntEnum):
    """What a token is for (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


MAX_TOKEN_BYTES = 1000
"""Longest token; the longest of any published model has a fifth of that. Grammars can't have
longer ones, and reading some vocabularies takes time quadratic in it."""

SUPPORTED_TOKENIZERS: dict[str, str] = {
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece",
    "gemma4": "SentencePiece with merges",
    "bert": "WordPiece",
    "t5": "SentencePiece Unigram",
}
"""`tokenizer.ggml.model` values that `Tokenizer` understands."""

# Texts that end an answer in some model family, for files whose metadata names only one end token.
_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",  # Gemma 4 asks for a result by beginning it
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    # Qwen's code models end a filled-in middle with these.
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
# Ends an answer in SentencePiece models, and struck-through HTML where it isn't a control token.
_CONTROL_END_TEXT = "</s>"
# Harmony-like formats end a message with <|end|>, and an answer with one of these instead.
_MESSAGE_END = "<|end|>"
_ANSWER_ENDS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})

# GLM, which has both, ends an answer by beginning the next message.
_NEXT_MESSAGES = ("<|user|>", "<|observation|>")

_ID_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
}
_FILL_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
)
"""Each with what older files call it."""
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unk": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEdges:
    """What counts at the edges of a token that is looked for in text.

    Attributes:
        lstrip: White space before it belongs to it.
        rstrip: White space behind it does.
        single_word: It is found only where no letter or digit is beside it.
    """

    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and the ids with a role.

    Attributes:
        source: The file's name, for errors.
        model: `tokenizer.ggml.model`: `gpt2`, `llama`, `gemma4`, `bert` or `t5`.
        pre: `tokenizer.ggml.pre`, the pre-tokenizer's name; empty where it isn't from GGUF.
        texts: Token texts by id, as they are in the file; those that fill up to the embedding's
            rows are left out.
        kinds: A `TokenKind` per id.
        bos_id: Begins a sequence.
        eos_id: Ends a sequence.
        unk_id: Stands for what can't be expressed.
        pad_id: Fills batches; never in a prompt.
        eos_ids: Every token that ends an answer.
        suppressed_ids: Tokens that no answer has: what stands for an image or a sound, say.
        edges: Of tokens that are looked for in text otherwise than by their text alone.
        fill_tokens: What is written around a gap to fill; None where only texts may tell.
    """

    source: str
    model: str
    pre: str
    texts: list[str]
    kinds: bytes
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eos_ids: frozenset[int]
    suppressed_ids: frozenset[int] = frozenset()
    edges: Mapping[int, TokenEdges] = field(default_factory=dict)
    fill_tokens: FillTokens | None = None

    @classmethod
    def from_gguf(cls, file: ModelFile) -> Vocabulary:
        """Read and check the vocabulary.

        Raises:
            ModelLoadError: A key is missing, of a wrong type, or names an id that doesn't exist.
        """
        source = str(file.path)
        model = file.get_str("tokenizer.ggml.model")
        if model not in SUPPORTED_TOKENIZERS:
            supported = ", ".join(f"{m} ({what})" for m, what in SUPPORTED_TOKENIZERS.items())
            raise ModelLoadError(
                source,
                f"tokenizer.ggml.model {model!r} is not supported; supported are {supported}",
            )
        texts = file.get_strings("tokenizer.ggml.tokens")
        if not texts:
            raise ModelLoadError(source, "tokenizer.ggml.tokens is empty")
        check_token_lengths(source, "tokenizer.ggml.tokens", texts)
        kinds = _read_kinds(file, source, len(texts))
        texts = texts[: _without_padding(texts, kinds)]
        kinds = kinds[: len(texts)]
        if model == "gemma4":
            _leave_spaces_to_merges(texts, kinds)
        ids = _read_ids(file, source, model, len(texts))
        ends = find_ends(texts, kinds)
        ends.update(i for i in (ids["eos"], ids["eot"], ids["eom"]) if i is not None)
        for token in ends | {i for role, i in ids.items() if i is not None and role != "unk"}:
            kinds[token] = TokenKind.CONTROL  # never text, whatever the file says
        return cls(
            source=source,
            model=model,
            pre=file.get_str("tokenizer.ggml.pre", "default"),
            texts=texts,
            kinds=bytes(kinds),
            bos_id=ids["bos"],
            eos_id=ids["eos"],
            unk_id=ids["unk"],
            pad_id=ids["pad"],
            eos_ids=frozenset(ends),
            suppressed_ids=frozenset(
                int(token)
                for token in file.get_array("tokenizer.ggml.suppress_tokens", "int", ())
                if 0 <= token < len(texts)  # others can't come anyway
            ),
            fill_tokens=_read_fill_tokens(file, len(texts)),
        )

    @property
    def is_sentencepiece(self) -> bool:
        """Whether tokens have `▁` for spaces, and bytes as `<0xNN>`."""
        return self.model in ("llama", "gemma4")

    def ids_of_kind(self, *kinds: TokenKind) -> list[int]:
        """Ids of tokens that are of one of these kinds, ascending."""
        own = np.frombuffer(self.kinds, np.uint8)
        ids: list[int] = np.flatnonzero(np.isin(own, kinds)).tolist()
        return ids


def check_token_lengths(source: str, where: str, texts: Sequence[str]) -> None:
    """Refuse tokens of more bytes than `MAX_TOKEN_BYTES`.

    Raises:
        ModelLoadError: Names the token's text and `where` it is.
    """
    if max(map(len, texts)) <= MAX_TOKEN_BYTES // 4:
        return
    for text in texts:
        size = len(text.encode(errors="surrogatepass"))
        if size > MAX_TOKEN_BYTES:
            raise ModelLoadError(
                source,
                f"{where}: the token {text[:20]!r}... has {size} bytes; at most {MAX_TOKEN_BYTES} "
                "are supported",
            )


@contextmanager
def library_errors(source: str, what: str) -> Iterator[None]:
    """Turn what the tokenizers' library raises, panics included, into a `ModelLoadError`.

    Args:
        source: The file's path.
        what: Precedes the library's own words.
    """
    try:
        yield
    except (ModelLoadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # plain exceptions; a panic isn't even that, and has no name
        raise ModelLoadError(source, f"{what}: {error}") from error


def _read_kinds(file: ModelFile, source: str, size: int) -> bytearray:
    key = "tokenizer.ggml.token_type"
    kinds = file.get_array(key, "int", None)
    if kinds is None:
        return bytearray([TokenKind.NORMAL]) * size
    if len(kinds) != size:
        raise ModelLoadError(
            source, f"{key} has {len(kinds)} elements, but tokenizer.ggml.tokens has {size}"
        )
    allowed = [0, *TokenKind]  # 0 is "undefined", which old converters wrote for normal tokens
    unknown = ~(kinds == allowed[0])
    for kind in TokenKind:
        unknown &= kinds != kind
    if unknown.any():
        index = int(unknown.argmax())
        raise ModelLoadError(source, f"{key}[{index}] is {kinds[index]}; 0 to 6 are defined")
    result = bytearray(kinds.astype("u1").tobytes())
    return result.replace(b"\0", bytes([TokenKind.NORMAL]))


def _leave_spaces_to_merges(texts: Sequence[str], kinds: bytearray) -> None:
    """Make user-defined tokens with spaces normal ones: text has no `▁` before it is merged."""
    own = np.frombuffer(bytes(kinds), np.uint8)
    for token in np.flatnonzero(own == TokenKind.USER_DEFINED).tolist():
        if "\u2581" in texts[token]:
            kinds[token] = TokenKind.NORMAL


def _without_padding(texts: Sequence[str], kinds: Sequence[int]) -> int:
    """How many tokens there are but for the last ones that only fill up the embedding's rows.

    Converters name these by their ids.
    """
    count = len(texts)
    while count > 1 and kinds[count - 1] == TokenKind.UNUSED:
        if texts[count - 1] != f"[PAD{count - 1}]":
            break
        count -= 1
    return count


def _read_ids(file: ModelFile, source: str, model: str, size: int) -> dict[str, int | None]:
    ids: dict[str, int | None] = {}
    for role, key in _ID_KEYS.items():
        token = file.get_int(key, None)
        if token is not None and not 0 <= token < size:
            raise ModelLoadError(source, f"{key} is {token}, but token ids are 0 to {size - 1}")
        if token is None and model == "llama" and role in _SENTENCEPIECE_IDS:
            default = _SENTENCEPIECE_IDS[role]
            token = default if default < size else None
        ids[role] = token
    return ids


def _read_fill_tokens(file: ModelFile, size: int) -> FillTokens | None:
    """Those that the file names, where it names all three."""
    found: list[int] = []
    for keys in _FILL_KEYS:
        given = (file.get_int(key, None) for key in keys)
        found += [token for token in given if token is not None and 0 <= token < size][:1]
    return FillTokens(*found) if len(found) == len(_FILL_KEYS) else None


def find_ends(texts: list[str], kinds: bytearray) -> set[int]:
    """Ids of well-known end tokens; a normal token of the same text is only text."""
    kinds_by_text: dict[str, tuple[TokenKind, ...]] = dict.fromkeys(
        (*_END_TEXTS, *_NEXT_MESSAGES), (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    )
    kinds_by_text[_CONTROL_END_TEXT] = (TokenKind.CONTROL,)
    found = {
        text: token
        for token, text in enumerate(texts)
        if text in kinds_by_text and kinds[token] in kinds_by_text[text]
    }
    if not found.keys() >= set(_NEXT_MESSAGES):
        for text in _NEXT_MESSAGES:
            found.pop(text, None)
    if any(ends <= found.keys() for ends in _ANSWER_ENDS):
        found.pop(_MESSAGE_END, None)
    return set(found.values())
