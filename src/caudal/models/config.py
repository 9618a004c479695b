"""The hyperparameters that all supported architectures have in common, read from a model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile

MAX_HEAD_DIM = 1024
MOST_OF_ANYTHING = 2**31 - 1
"""No size of a model is larger."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder, from the file's `{architecture}.*` keys.

    Attributes:
        layers: Decoder blocks.
        hidden: Width of the residual stream.
        feed_forward: Width inside the MLP.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Channels of a head.
        rope_dimensions: Rotated channels of a head.
        rope_base: RoPE's frequency base.
        norm_eps: Added to the mean square in RMSNorm.
        context_length: Tokens the model was trained for.
        vocab_size: Rows of the embedding.
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dimensions: int
    rope_base: float
    norm_eps: float
    context_length: int
    vocab_size: int

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Read the keys, checking that they make sense together.

        Raises:
            ModelLoadError: A key is missing, has a wrong type, or contradicts another.
        """
        arch = file.architecture
        hidden = positive(file, f"{arch}.embedding_length")
        heads = positive(file, f"{arch}.attention.head_count")
        kv_heads = positive(file, f"{arch}.attention.head_count_kv", heads)
        if heads % kv_heads != 0:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.attention.head_count ({heads}) is not a multiple of "
                f"{arch}.attention.head_count_kv ({kv_heads})",
            )
        head_dim = positive(file, f"{arch}.attention.key_length", hidden // heads or 1)
        value_length = positive(file, f"{arch}.attention.value_length", head_dim)
        if value_length != head_dim or head_dim % 8 != 0 or head_dim > MAX_HEAD_DIM:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.attention: heads of {head_dim} key and {value_length} value channels; "
                f"supported are equal sizes that are a multiple of 8, up to {MAX_HEAD_DIM}",
            )
        rope_dimensions = positive(file, f"{arch}.rope.dimension_count", head_dim)
        if rope_dimensions > head_dim:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.rope.dimension_count ({rope_dimensions}) exceeds the head size {head_dim}",
            )
        experts = file.get_int(f"{arch}.expert_count", 0)
        if experts > 0:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.expert_count is {experts}: mixtures of experts are not supported",
            )
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelLoadError(str(file.path), "the matrix token_embd.weight is missing")
        return cls(
            layers=positive(file, f"{arch}.block_count"),
            hidden=hidden,
            feed_forward=positive(file, f"{arch}.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope_dimensions=rope_dimensions,
            rope_base=file.get_float(f"{arch}.rope.freq_base", 10000.0),
            norm_eps=epsilon(file, f"{arch}.attention.layer_norm_rms_epsilon"),
            context_length=context_length(file, f"{arch}.context_length"),
            vocab_size=embedding.shape[0],
        )


def positive(file: GGUFFile, key: str, default: int | None = None) -> int:
    """A whole number from 1 to 2³¹ - 1 from the file's metadata.

    Raises:
        ModelLoadError: The key is missing without a default, or has another value.
    """
    value = file.get_int(key) if default is None else file.get_int(key, default)
    if not 0 < value <= MOST_OF_ANYTHING:
        raise ModelLoadError(
            str(file.path),
            f"{key} must be positive and at most {MOST_OF_ANYTHING}, but is {value}",
        )
    return value


def context_length(file: GGUFFile, key: str, default: int | None = None) -> int:
    """A number of tokens; what is larger than 2³¹ - 1, such as 2³² - 1, stands for "no limit".

    Raises:
        ModelLoadError: The key is missing without a default, or isn't positive.
    """
    value = file.get_int(key) if default is None else file.get_int(key, default)
    if value <= 0:
        raise ModelLoadError(str(file.path), f"{key} must be positive, but is {value}")
    return min(value, MOST_OF_ANYTHING)


def epsilon(file: GGUFFile, key: str) -> float:
    """What a norm adds before it takes the root.

    Raises:
        ModelLoadError: The key is missing, or not between 0 and 1.
    """
    return check_epsilon(str(file.path), key, file.get_float(key))


def check_epsilon(source: str, key: str, value: float) -> float:
    """The value, if a norm can use it.

    Raises:
        ModelLoadError: It isn't between 0 and 1.
    """
    if not 0 <= value < 1:
        raise ModelLoadError(source, f"{key} must be between 0 and 1, but is {value}")
    return value
