"""SentencePiece BPE (`tokenizer.ggml.model` = `llama`, `gemma4`): builds and decodes it.

SentencePiece repeatedly joins the two neighbours whose joint text is the token of highest score,
the leftmost first. The file has no list of merges, only scores; but "join the pair that makes the
highest score" is BPE in which each way of cutting a token into two tokens is a merge, ranked by the
score of what it makes. With distinct scores both give the same tokens. Gemma 4's files do have the
list.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models

from caudal.errors import ModelLoadError
from caudal.formats.bpe import read_merges
from caudal.formats.model_file import ModelFile
from caudal.formats.vocabulary import TokenKind, Vocabulary, library_errors

SPACE = "\u2581"
"""What SentencePiece writes for a space."""

SpacePrefix = Literal["never", "first_if_missing", "each_if_missing", "each"]
"""Whether a space is put before a text: not at all; at its beginning, unless it has one there; or
also behind each special token, unless it has one there, or even then."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def build_spm(file: ModelFile, vocabulary: Vocabulary) -> Backend:
    """A tokenizer for text without special tokens, in which spaces have become `SPACE`.

    Raises:
        ModelLoadError: The scores or merges are missing, of a wrong type or number, or damaged.
    """
    texts = vocabulary.texts
    candidates = vocabulary.ids_of_kind(TokenKind.NORMAL, TokenKind.USER_DEFINED)
    # Of duplicates the first counts.
    ids = {texts[token]: token for token in reversed(candidates) if texts[token]}
    if vocabulary.model == "gemma4":
        merges = read_merges(file, vocabulary, ids)
    else:
        merges = _merges_by_score(file, vocabulary, ids)
    # Added after the merges, which must not make them: they come from what has no token.
    fallbacks = vocabulary.ids_of_kind(TokenKind.BYTE)
    unknown = None if vocabulary.unk_id is None else texts[vocabulary.unk_id]
    for token in fallbacks:
        spm_token_bytes(texts[token], TokenKind.BYTE, vocabulary.source)
        ids.setdefault(texts[token], token)
    if unknown is not None and vocabulary.unk_id is not None:
        ids.setdefault(unknown, vocabulary.unk_id)
    with library_errors(vocabulary.source, "not a tokenizer"):
        return Backend(
            models.BPE(
                vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
            )
        )


def _merges_by_score(
    file: ModelFile, vocabulary: Vocabulary, ids: dict[str, int]
) -> list[tuple[str, str]]:
    """All ways of cutting a token into two, those of the best tokens first."""
    texts = vocabulary.texts
    scores = read_scores(file, vocabulary)
    pieces = np.sort(np.fromiter(ids.values(), np.int64, len(ids)))
    best_first = pieces[np.argsort(-scores[pieces], kind="stable")]
    return [
        (text[:cut], text[cut:])
        for text in (texts[token] for token in best_first.tolist())
        for cut in range(1, len(text))
        if text[cut:] in ids and text[:cut] in ids
    ]


def is_byte_token(text: str) -> bool:
    """Whether a token's text is of the form `<0xNN>`."""
    return _BYTE_TOKEN.fullmatch(text) is not None


def spm_token_bytes(text: str, kind: TokenKind, source: str) -> bytes:
    """The bytes that a normal or byte token stands for.

    Raises:
        ModelLoadError: A byte token isn't of the form `<0xNN>`.
    """
    if kind is not TokenKind.BYTE:
        return text.replace(SPACE, " ").encode()
    found = _BYTE_TOKEN.fullmatch(text)
    if found is None:
        raise ModelLoadError(source, f"byte token {text[:40]!r} is not of the form <0xNN>")
    return bytes([int(found[1], 16)])


def read_scores(
    file: ModelFile, vocabulary: Vocabulary
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A score for each token, but those that have been left out of the vocabulary as padding.

    Raises:
        ModelLoadError: They are missing, of a wrong type or number, or one isn't a number.
    """
    key = "tokenizer.ggml.scores"
    scores = file.get_array(key, "float")
    tokens = len(file.get_strings("tokenizer.ggml.tokens"))
    if len(scores) != tokens:
        raise ModelLoadError(
            vocabulary.source,
            f"{key} has {len(scores)} elements, but tokenizer.ggml.tokens has {tokens}",
        )
    scores = scores[: len(vocabulary.texts)]
    if np.isnan(scores).any():
        index = int(np.isnan(scores).argmax())
        raise ModelLoadError(vocabulary.source, f"{key}[{index}] is not a number")
    return scores.astype(np.float64)
