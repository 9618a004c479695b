"""The hyperparameters that decoders have in common, read from a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import context_length, epsilon, head_size, per_layer, positive
from caudal.models.layer import NormName

_EPSILONS: dict[NormName, str] = {"rms": "layer_norm_rms_epsilon", "layer": "layer_norm_epsilon"}
"""Keys of what kinds of norms add."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a decoder, from the file's `{architecture}.*` keys.

    Attributes:
        layers: Decoder blocks, without those that only predict tokens further ahead.
        layers_ahead: Those, which files have behind the others.
        hidden: Width of the residual stream.
        feed_forward: Width inside the MLP; of layers that differ, the largest.
        heads: Query heads.
        kv_heads: Key and value heads; the most of a layer, where they differ.
        head_dim: Channels of a head.
        rope_dimensions: Rotated channels of a head.
        rope_base: RoPE's frequency base.
        norm_eps: Added in norms before the root is taken.
        context_length: Tokens the model was trained for.
        vocab_size: Rows of the embedding.
    """

    layers: int
    layers_ahead: int
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
    def from_gguf(cls, file: ModelFile, norms: NormName) -> Self:
        """Read the keys, checking that they make sense together.

        Args:
            file: The model.
            norms: Of which kind the family's norms are.

        Raises:
            ModelLoadError: A key is missing, has a wrong type, or contradicts another.
        """
        arch = file.architecture
        hidden = positive(file, f"{arch}.embedding_length")
        heads = positive(file, f"{arch}.attention.head_count")
        layers = positive(file, f"{arch}.block_count")
        if layers > file.most_layers:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.block_count is {layers}, but there are only {file.most_layers} tensors",
            )
        ahead = file.get_int(f"{arch}.nextn_predict_layers", 0)
        if not 0 <= ahead < layers:
            raise ModelLoadError(
                str(file.path), f"{arch}.nextn_predict_layers is {ahead} of {layers} layers"
            )
        of_layers = per_layer(
            file, f"{arch}.attention.head_count_kv", layers - ahead, heads, ahead=ahead
        )
        kv_heads = max(of_layers)
        for each in of_layers:
            if each > 0 and heads % each != 0:
                raise ModelLoadError(
                    str(file.path),
                    f"{arch}.attention.head_count ({heads}) is not a multiple of "
                    f"{arch}.attention.head_count_kv ({each})",
                )
        head_dim = head_size(file, hidden // heads or 1)
        rope_dimensions = positive(file, f"{arch}.rope.dimension_count", head_dim)
        if rope_dimensions > head_dim:
            raise ModelLoadError(
                str(file.path),
                f"{arch}.rope.dimension_count ({rope_dimensions}) exceeds the head size {head_dim}",
            )
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelLoadError(str(file.path), "the matrix token_embd.weight is missing")
        return cls(
            layers=layers - ahead,
            layers_ahead=ahead,
            hidden=hidden,
            feed_forward=max(_feed_forward(file, layers - ahead, ahead)),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope_dimensions=rope_dimensions,
            rope_base=file.get_float(f"{arch}.rope.freq_base", 10000.0),
            norm_eps=epsilon(file, f"{arch}.attention.{_EPSILONS[norms]}"),
            context_length=context_length(file, f"{arch}.context_length"),
            vocab_size=embedding.shape[0],
        )


def _feed_forward(file: ModelFile, layers: int, ahead: int) -> list[int]:
    """The widths inside MLPs; where all of them are experts, files may have theirs alone."""
    arch = file.architecture
    of_experts = file.get_int(f"{arch}.expert_feed_forward_length", 0)
    return per_layer(file, f"{arch}.feed_forward_length", layers, of_experts or None, ahead=ahead)
