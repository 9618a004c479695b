"""SentencePiece Unigram (`tokenizer.ggml.model` = `t5`): the cut of the highest sum of scores.

XLM-RoBERTa's tokenizer is one, and those of most encoders of many languages. Text is normalised
first, by a map that the file holds; `caudal.formats.huggingface.unigram` reads `tokenizer.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from caudal.errors import ModelLoadError
from caudal.formats.charsmap import check_charsmap
from caudal.formats.model_file import ModelFile
from caudal.formats.spm import SPACE, read_scores
from caudal.formats.vocabulary import TokenKind, Vocabulary, library_errors

MODEL = "t5"
"""`tokenizer.ggml.model`."""

_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_NEVER = " "
"""Begins what no text has, as spaces have become `SPACE` before tokens are looked for."""


def with_roles(vocabulary: Vocabulary) -> Vocabulary:
    """A GGUF file's vocabulary, with the roles that the file leaves to be known.

    Raises:
        ModelLoadError: There is no token for what can't be expressed.
    """
    unknown = vocabulary.unk_id
    if unknown is None:
        unknown = next(iter(vocabulary.ids_of_kind(TokenKind.UNKNOWN)), None)
    if unknown is None:
        raise ModelLoadError(
            vocabulary.source,
            "tokenizer.ggml.unknown_token_id is missing, and no token of that kind is there",
        )
    kinds = bytearray(vocabulary.kinds)
    kinds[unknown] = TokenKind.UNKNOWN
    return dataclasses.replace(vocabulary, kinds=bytes(kinds), unk_id=unknown)


def build_unigram(file: ModelFile, vocabulary: Vocabulary) -> Backend:
    """A GGUF file's tokenizer, for text without special tokens.

    Raises:
        ModelLoadError: Scores are missing, the map of characters is damaged, or the file asks for
            what isn't supported.
    """
    if not file.get_bool("tokenizer.ggml.add_space_prefix", True):
        raise ModelLoadError(
            vocabulary.source, "tokenizer.ggml.add_space_prefix is false; supported is true"
        )
    backend = unigram_backend(vocabulary, read_scores(file, vocabulary).tolist())
    steps: list[normalizers.Normalizer] = []
    charsmap = file.get_array(_CHARSMAP, "int", None)
    if charsmap is not None and len(charsmap):
        data = charsmap.astype(np.uint8).tobytes()
        check_charsmap(vocabulary.source, _CHARSMAP, data)
        with library_errors(vocabulary.source, f"{_CHARSMAP} is damaged"):
            steps.append(normalizers.Precompiled(data))
    if file.get_bool("tokenizer.ggml.remove_extra_whitespaces", True):
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
        )
    else:
        steps += [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def unigram_backend(vocabulary: Vocabulary, scores: Sequence[float]) -> Backend:
    """The bare model: text, whose spaces have become `SPACE`, never makes tokens that steer."""
    normal = (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    pieces = [
        (text, float(score)) if kind in normal else (f"{_NEVER}{token}", 0.0)
        for token, (text, kind, score) in enumerate(
            zip(vocabulary.texts, vocabulary.kinds, scores, strict=True)
        )
    ]
    assert vocabulary.unk_id is not None
    with library_errors(vocabulary.source, "not a tokenizer"):
        return Backend(models.Unigram(pieces, vocabulary.unk_id, byte_fallback=False))
