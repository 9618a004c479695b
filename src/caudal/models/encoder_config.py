"""What an encoder's file says of its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, get_args

from caudal.errors import ModelLoadError
from caudal.formats import embedding_keys
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import MAX_HEAD_DIM, context_length, epsilon, positive
from caudal.models.program import ActivationName


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Sizes and switches of an encoder.

    Attributes:
        layers: Blocks.
        hidden: Width of the residual stream.
        feed_forward: Width inside the MLP.
        heads: Attention heads.
        eps: Added to the variance in LayerNorm.
        activation: Inside the MLP.
        context_length: Longest input, in tokens.
        vocab_size: Rows of the embedding.
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    eps: float
    activation: ActivationName
    context_length: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.hidden // self.heads

    @classmethod
    def from_gguf(cls, file: ModelFile, *, activation: ActivationName = "gelu") -> Self:
        """Read the `{architecture}.*` keys.

        Args:
            file: The model.
            activation: Inside the family's MLPs, where the file doesn't say.

        Raises:
            ModelLoadError: A key is missing, has a wrong type, or asks for what isn't supported.
        """
        arch, source = file.architecture, str(file.path)
        check_attends_both_ways(file)
        name = file.get_str(embedding_keys.ACTIVATION, activation)
        if name not in get_args(ActivationName):
            raise ModelLoadError(
                source, f"{embedding_keys.ACTIVATION} is {name!r:.50}, which is unknown"
            )
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelLoadError(source, "the matrix token_embd.weight is missing")
        config = cls(
            layers=positive(file, f"{arch}.block_count"),
            hidden=positive(file, f"{arch}.embedding_length"),
            feed_forward=positive(file, f"{arch}.feed_forward_length"),
            heads=positive(file, f"{arch}.attention.head_count"),
            eps=epsilon(file, f"{arch}.attention.layer_norm_epsilon"),
            activation=next(each for each in get_args(ActivationName) if each == name),
            context_length=context_length(file, f"{arch}.context_length"),
            vocab_size=embedding.shape[0],
        )
        config._check(file)
        return config

    def _check(self, file: ModelFile) -> None:
        source = str(file.path)
        if self.layers > file.most_layers:
            raise ModelLoadError(
                source,
                f"{file.architecture}.block_count is {self.layers}, but there are only "
                f"{file.most_layers} tensors",
            )
        if self.hidden % self.heads != 0:
            raise ModelLoadError(
                source, f"the width {self.hidden} is not a multiple of the {self.heads} heads"
            )
        if self.head_dim % 8 != 0 or self.head_dim > MAX_HEAD_DIM:
            raise ModelLoadError(
                source,
                f"heads of {self.head_dim} channels; supported are multiples of 8, up to "
                f"{MAX_HEAD_DIM}",
            )


def check_attends_both_ways(file: ModelFile) -> None:
    """Refuse an encoder whose tokens see only those before them.

    Raises:
        ModelLoadError: The file says that they do.
    """
    key = f"{file.architecture}.attention.causal"
    if file.get_bool(key, False):
        raise ModelLoadError(
            str(file.path), f"{key} is true; {file.architecture} attends both ways"
        )
