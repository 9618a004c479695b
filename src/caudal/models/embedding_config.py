"""What a model's file says of how embeddings, or scores of pairs, are made of its states."""

from __future__ import annotations

from typing import Literal

from caudal.errors import ModelLoadError
from caudal.formats import embedding_keys
from caudal.formats.model_file import ModelFile
from caudal.models.embedding_prompts import NO_PROMPTS, EmbeddingPrompts
from caudal.models.pooling import POOLING_TYPES, Pooling, PoolingKind

DenseActivation = Literal["identity", "tanh"]


def encoder_pooling(file: ModelFile, score_pooling: PoolingKind = "cls") -> Pooling:
    """How an encoder makes embeddings, or scores pairs: the mean where the file doesn't say.

    Args:
        file: The model.
        score_pooling: What scores of pairs are made of, where it doesn't say.

    Raises:
        ModelLoadError: The file asks for what isn't supported.
    """
    key = f"{file.architecture}.pooling_type"
    number = file.get_int(key, 1)
    if number == embedding_keys.RANK:
        kind = file.get_str(embedding_keys.SCORE_POOLING, score_pooling)
        if kind not in ("cls", "mean"):
            raise ModelLoadError(
                str(file.path),
                f"{embedding_keys.SCORE_POOLING} is {kind!r:.50}; supported are 'cls' and 'mean'",
            )
        return Pooling(
            kind="mean" if kind == "mean" else "cls",
            normalize=False,
            scores_pairs=True,
            score_sigmoid=file.get_bool(embedding_keys.SIGMOID, True),
        )
    if number not in POOLING_TYPES:
        raise ModelLoadError(
            str(file.path),
            f"{key} is {number}; supported are 1 (mean), 2 (cls), 3 (last) and 4 (rank)",
        )
    return _pooling(file, POOLING_TYPES[number])


def decoder_pooling(file: ModelFile) -> Pooling:
    """How a decoder embeds: as its file says, else by its last token, which has seen all others.

    Raises:
        ModelLoadError: The file asks for what isn't supported.
    """
    key = f"{file.architecture}.pooling_type"
    number = file.get_int(key, 0)
    if number == 0:
        return _pooling(file, "last")
    if POOLING_TYPES.get(number) not in ("mean", "last"):
        raise ModelLoadError(
            str(file.path), f"{key} is {number}; supported are 0 (none), 1 (mean) and 3 (last)"
        )
    return _pooling(file, POOLING_TYPES[number])


def _pooling(file: ModelFile, kind: PoolingKind) -> Pooling:
    dimensions = file.get_array(embedding_keys.DIMENSIONS, "int", None)
    return Pooling(
        kind=kind,
        normalize=file.get_bool(embedding_keys.NORMALIZE, True),
        dimensions=() if dimensions is None else tuple(int(size) for size in dimensions),
        prompts=_prompts(file),
    )


def _prompts(file: ModelFile) -> EmbeddingPrompts:
    names = file.get_strings(embedding_keys.PROMPT_NAMES, None)
    if names is None:
        return NO_PROMPTS
    texts = file.get_strings(embedding_keys.PROMPTS)
    default = file.get_str(embedding_keys.DEFAULT_PROMPT, None)
    if len(texts) != len(names) or default not in (None, *names):
        raise ModelLoadError(
            str(file.path),
            f"{embedding_keys.PROMPT_NAMES} has {len(names)} names for {len(texts)} prompts, and "
            f"{embedding_keys.DEFAULT_PROMPT} is {default!r:.50}",
        )
    return EmbeddingPrompts(dict(zip(names, texts, strict=True)), default)


def dense_activations(file: ModelFile) -> list[DenseActivation]:
    """What follows each linear layer on the states (`dense_2`, `dense_3`, …).

    Raises:
        ModelLoadError: The file asks for what isn't supported.
    """
    names = (
        file.get_strings(embedding_keys.DENSE) if embedding_keys.DENSE in file.metadata else None
    )
    if names is None:
        count = sum(f"dense_{number}.weight" in file.tensors for number in (2, 3))
        return ["identity"] * count
    result: list[DenseActivation] = []
    for name in names:
        if name not in ("identity", "tanh"):
            raise ModelLoadError(
                str(file.path), f"{embedding_keys.DENSE} has {name!r:.50}, which is unknown"
            )
        result.append("tanh" if name == "tanh" else "identity")
    return result
