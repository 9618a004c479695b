"""A folder's tokenizer under GGUF's keys, checked to do the same when it is read from there."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caudal.errors import ConversionError, ModelLoadError
from caudal.formats.bpe import bpe_token_bytes
from caudal.formats.bpe_pretokenizers import PreTokenizer, name_of
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.any_tokenizer import folder_tokenizer
from caudal.formats.huggingface.bpe_steps import ByteLevel, SentencePiece, read_bpe_steps
from caudal.formats.huggingface.model import FolderModel
from caudal.formats.huggingface.tokenizer import read_merges
from caudal.formats.model_folder import TOKENIZER, ModelFolder
from caudal.formats.spm import SPACE
from caudal.formats.tokenizer import Tokenizer
from caudal.formats.tokenizer_steps import steps_of
from caudal.formats.vocabulary import TokenKind, Vocabulary, find_ends
from caudal.formats.wordpiece import CONTINUATION
from caudal.models import ENCODERS

_PREFIX = "tokenizer.ggml."
_CHARSMAP = f"{_PREFIX}precompiled_charsmap"
_NO_SCORE = -1000.0
"""Of tokens that no merge makes; llama.cpp's converter writes it."""

_SAMPLES = (
    "Hello world! It's 12345 o'clock, isn't it?  Two spaces,\ttabs\n\nand lines.",
    "Größe, naïve café, ÅNGSTRÖM, ΑΒΓ, Привет, мир! ﬁ ½ Ⅷ ™",
    "今日は世界。你好,世界 한국어 ไทย हिन्दी עברית العربية 🙂👩‍🚀",
    "def f(x):\n    return {'a': x**2, \"b\": [1.5e-3, 0xFF]}  # 100_000\r\n",
    " leading, trailing ",
    "        deep\n\n\n\n\tindentation            x",
)


@dataclass(frozen=True, slots=True)
class TokenizerKeys:
    """What a GGUF file says of a tokenizer.

    Attributes:
        values: Values by key.
        types: Types of some of them.
    """

    values: Mapping[str, MetadataValue]
    types: Mapping[str, str]


def tokenizer_metadata(folder: ModelFolder, model: FolderModel) -> TokenizerKeys:
    """The keys of a folder's tokenizer.

    Raises:
        ConversionError: GGUF has no name for how the tokenizer cuts text, or its keys don't say
            all of what it does.
        ModelLoadError: The tokenizer is of a kind that isn't supported, or damaged.
    """
    encoder = model.architecture in ENCODERS
    tokenizer = folder_tokenizer(folder, model, is_encoder=encoder)
    vocabulary = tokenizer.vocabulary
    content = folder.read_object(TOKENIZER).content
    types: dict[str, str] = {}
    texts = vocabulary.texts
    match vocabulary.model:
        case "bert":
            own: dict[str, MetadataValue] = {"model": "bert", "pre": "default"}
            texts = _with_word_beginnings(vocabulary)
        case "t5":
            own = {"model": "t5", "pre": "default", **_unigram(content)}
            types[_CHARSMAP] = "array of uint8"
        case _:
            own = _bpe(vocabulary, content, model.architecture)
    rows = model.tensor("token_embd.weight").shape[0]
    values = {
        **{f"{_PREFIX}{key}": value for key, value in own.items()},
        **_tokens(texts, vocabulary.kinds, own.get("scores"), rows),
        **_roles(tokenizer),
    }
    _check(tokenizer, model.with_keys(values))
    return TokenizerKeys(values, types)


def _bpe(
    vocabulary: Vocabulary, content: Mapping[str, Any], architecture: str
) -> dict[str, MetadataValue]:
    steps = read_bpe_steps(vocabulary.source, content)
    merges = read_merges(vocabulary.source, content["model"])
    lines = [f"{left} {right}" for left, right in merges]
    if isinstance(steps, ByteLevel):
        names = (name_of(rules, preferred=architecture) for rules in _nearest(steps.rules))
        name = next((each for each in names if each is not None), None)
        if name is None:
            raise ConversionError(
                f"{vocabulary.source}: GGUF has no name for the way in which this tokenizer cuts "
                "text into words"
            )
        return {"model": "gpt2", "pre": name, "merges": lines}
    own: dict[str, MetadataValue] = {"add_space_prefix": steps.space_prefix != "never"}
    if architecture.startswith("gemma4"):
        return {"model": "gemma4", "pre": "gemma4", "merges": lines, **own}
    scores = _scores(vocabulary, merges, steps)
    return {"model": "llama", "pre": "default", "scores": scores, **own}


def _nearest(rules: PreTokenizer) -> Iterator[PreTokenizer]:
    """Rules, and those that come to the same: on text in normal form C, and, if merges make every
    token, whether or not a word that is a token is taken without merging.
    """
    yield rules
    yield replace(rules, nfc=False)
    other = replace(rules, ignore_merges=not rules.ignore_merges)
    yield other
    yield replace(other, nfc=False)


def _scores(
    vocabulary: Vocabulary, merges: Sequence[tuple[str, str]], steps: SentencePiece
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Scores that have tokens made in the order of the merges, as SentencePiece's have.

    Raises:
        ConversionError: Merges that make the same token aren't side by side: then no scores do.
    """
    if steps.words:
        raise ConversionError(
            f"{vocabulary.source}: this tokenizer cuts text at spaces before it merges, which GGUF "
            "has no key for"
        )
    ranks = _ranks(vocabulary.source, merges)
    found = (ranks.get(text) for text in vocabulary.texts)
    return np.array([_NO_SCORE if rank is None else -float(rank) for rank in found], np.float32)


def _ranks(source: str, merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Which score, from the best one on, each token has that merges make.

    Merges are written by the scores of what they make, those of one score by the length of their
    left parts, then of their right ones, longest first. Tokens whose merges are mixed have the same
    score, then.

    Raises:
        ConversionError: The merges aren't in such an order.
    """
    last = {left + right: index for index, (left, right) in enumerate(merges)}
    ranks: dict[str, int] = {}
    rank, end = -1, -1  # of the tokens whose merges are mixed, and the last of these
    made_before, lengths_before = "", (0, 0)
    for index, (left, right) in enumerate(merges):
        made, lengths = left + right, (len(left), len(right))
        if index > end:
            rank += 1
        elif made != made_before and lengths > lengths_before:
            raise ConversionError(
                f"{source}: its merges aren't those of SentencePiece, which GGUF's scores stand "
                f"for: {made!r:.40} is made early and late"
            )
        end = max(end, last[made])
        made_before, lengths_before = made, lengths
        ranks.setdefault(made, rank)
    return ranks


def _unigram(content: Mapping[str, Any]) -> dict[str, MetadataValue]:
    entries = content["model"]["vocab"]
    values: dict[str, MetadataValue] = {
        "scores": np.array([float(score) for _, score in entries], np.float32),
        "add_space_prefix": True,
    }
    kinds = set()
    for step in steps_of("", content, "normalizer", "normalizers"):
        if step["type"] == "Precompiled":
            data = base64.b64decode(str(step["precompiled_charsmap"]))
            values["precompiled_charsmap"] = np.frombuffer(data, np.uint8)
        kinds.add(step["type"])
    cuts = {step["type"] for step in steps_of("", content, "pre_tokenizer", "pretokenizers")}
    values["remove_extra_whitespaces"] = "WhitespaceSplit" in cuts or "Replace" in kinds
    return values


def _with_word_beginnings(vocabulary: Vocabulary) -> list[str]:
    """WordPiece's tokens as GGUF has them: marked where a word begins, not where it goes on."""
    return [
        text
        if kind != TokenKind.NORMAL or (text.startswith("[") and text.endswith("]"))
        else text.removeprefix(CONTINUATION)
        if text.startswith(CONTINUATION)
        else SPACE + text
        for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True)
    ]


def _tokens(
    texts: Sequence[str], kinds: bytes, scores: MetadataValue | None, rows: int
) -> dict[str, MetadataValue]:
    """The tokens, and others of no meaning for rows of the embedding that have none."""
    padding = range(len(texts), rows)
    every_kind = [*kinds, *[TokenKind.UNUSED] * len(padding)]
    values: dict[str, MetadataValue] = {
        f"{_PREFIX}tokens": [*texts, *(f"[PAD{token}]" for token in padding)],
        f"{_PREFIX}token_type": np.array(every_kind, np.int32),
    }
    if isinstance(scores, np.ndarray):
        of_tokens = scores[: len(texts)]  # added tokens without a row have been left out
        more = np.full(rows - len(of_tokens), _NO_SCORE, np.float32)
        values[f"{_PREFIX}scores"] = np.append(of_tokens, more)
    return values


def _roles(tokenizer: Tokenizer) -> dict[str, MetadataValue]:
    vocabulary = tokenizer.vocabulary
    texts, kinds = vocabulary.texts, bytearray(vocabulary.kinds)
    other_ends = vocabulary.eos_ids - find_ends(texts, kinds) - {vocabulary.eos_id}
    ids = {
        "bos": vocabulary.bos_id,
        "eos": vocabulary.eos_id,
        "eot": min(other_ends, default=None),
        "eom": min(other_ends - {min(other_ends, default=-1)}, default=None),
        "unknown": vocabulary.unk_id,
        "padding": vocabulary.pad_id,
    }
    if vocabulary.model == "bert":
        ids |= {"seperator": vocabulary.eos_id}  # spelt so in the format
    values: dict[str, MetadataValue] = {
        f"{_PREFIX}{role}_token_id": token for role, token in ids.items() if token is not None
    }
    values[f"{_PREFIX}add_bos_token"] = tokenizer.add_bos
    values[f"{_PREFIX}add_eos_token"] = tokenizer.add_eos
    if vocabulary.suppressed_ids:
        suppressed = np.array(sorted(vocabulary.suppressed_ids), np.int32)
        values[f"{_PREFIX}suppress_tokens"] = suppressed
    return values


def _check(tokenizer: Tokenizer, written: FolderModel) -> None:
    """Refuse keys from which another tokenizer is read than the folder's."""
    try:
        read = Tokenizer.from_gguf(written)
    except ModelLoadError as error:
        raise ConversionError(f"its tokenizer can't be written to a GGUF file: {error}") from error
    for text in (*_SAMPLES, *_words(tokenizer.vocabulary)):
        if read.encode(text) != tokenizer.encode(text):
            raise ConversionError(
                f"{written.path}: GGUF's keys don't say all of how this tokenizer cuts text: "
                f"{text[:20]!r} would become other tokens"
            )
    if (read.eos_ids, read.vocab_size) != (tokenizer.eos_ids, tokenizer.vocab_size):
        raise ConversionError(
            f"{written.path}: GGUF's keys don't name all tokens that end an answer, or all tokens"
        )


def _words(vocabulary: Vocabulary) -> Iterator[str]:
    """The texts of tokens of byte-level BPE, each of which merges have to make."""
    if vocabulary.model != "gpt2":
        return
    for token in vocabulary.ids_of_kind(TokenKind.NORMAL):
        try:
            yield bpe_token_bytes(vocabulary.texts[token]).decode()
        except UnicodeDecodeError:
            continue  # a part of a character, which no text consists of
