"""What encoders have before and after their layers; families differ in the layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.builder import ProgramBuilder
from caudal.models.embedding_config import dense_activations, encoder_pooling
from caudal.models.encoder_config import EncoderConfig
from caudal.models.layer import Layer
from caudal.models.pooling import PoolingKind
from caudal.models.program import ActivationName, Buffer, Program
from caudal.models.rope import RopeTable, rope_table
from caudal.models.score_head import ScoreHead


class Encoder:
    """An encoder in the making: call `embed_tokens`, then blocks of all `layers`, then `finish`.

    Args:
        file: The model.
        always: Tensors that all files of the family have; see `UsedTensors`.

    Attributes:
        config: Its sizes.
        b: Takes the operations.
        hidden: The residual stream.

    Raises:
        ModelLoadError: The file's keys don't make sense.
    """

    def __init__(self, file: ModelFile, *, always: Collection[str] = ()) -> None:
        self._file = file
        self.config = EncoderConfig.from_gguf(file)
        self.b = ProgramBuilder(file, always)
        self.hidden = self.b.buffer("hidden", self.config.hidden)

    def embed_tokens(self) -> None:
        """Begin the residual stream: tokens, and where there are such, places and segments."""
        addend = self.b.buffer("addend", self.config.hidden)
        self.b.embed(self.hidden, "token_embd.weight")
        if self.b.has_optional("position_embd.weight"):
            self._check_positions()
            self.b.embed(addend, "position_embd.weight", by="position")
            self.b.add(self.hidden, addend, self.hidden)
        if self.b.has_optional("token_types.weight"):
            self.b.embed(addend, "token_types.weight", by="segment")
            self.b.add(self.hidden, addend, self.hidden)
        self.norm_hidden("token_embd_norm")

    def norm_hidden(self, name: str) -> None:
        """Put the residual stream through a LayerNorm."""
        self.b.layer_norm(self.hidden, name, self.hidden, eps=self.config.eps)

    def rope(self, base: float) -> RopeTable:
        """Rotary positions of whole heads."""
        return rope_table(self._file, dimensions=self.config.head_dim, base=base, interleaved=False)

    def layers(self) -> Iterator[Layer]:
        """The layers in order, all of the same sizes; what a family calls on each is emitted."""
        config = self.config
        for index in range(config.layers):
            yield Layer(
                b=self.b,
                index=index,
                hidden=self.hidden,
                heads=config.heads,
                kv_heads=config.heads,
                head_dim=config.head_dim,
                feed_forward=config.feed_forward,
                eps=config.eps,
            )

    def finish(
        self, *, score_activation: ActivationName = "tanh", score_pooling: PoolingKind = "cls"
    ) -> Program:
        """The program; see `finish_encoder`."""
        return finish_encoder(
            self.b,
            self._file,
            self.hidden,
            vocab_size=self.config.vocab_size,
            context_length=self.config.context_length,
            eps=self.config.eps,
            score_activation=score_activation,
            score_pooling=score_pooling,
        )

    def _check_positions(self) -> None:
        tensor = self._file.tensor("position_embd.weight")
        if len(tensor.shape) != 2 or tensor.shape[0] < self.config.context_length:
            raise ModelLoadError(
                str(self._file.path),
                f"tensor position_embd.weight has {tensor.shape[0]} positions, fewer than the "
                f"context of {self.config.context_length}",
            )


def finish_encoder(
    b: ProgramBuilder,
    file: ModelFile,
    hidden: Buffer,
    *,
    vocab_size: int,
    context_length: int,
    eps: float,
    score_activation: ActivationName = "tanh",
    score_pooling: PoolingKind = "cls",
) -> Program:
    """The program of complete layers: what follows makes their output the states that are pooled.

    Args:
        b: Took the layers.
        file: The model.
        hidden: Their output.
        vocab_size: Rows of the embedding.
        context_length: Longest input.
        eps: Of a norm within the head that scores pairs.
        score_activation: Within that head.
        score_pooling: What scores are made of, where the file doesn't say.

    Raises:
        ModelLoadError: A tensor is missing, of a wrong shape, or not used.
    """
    pooling = encoder_pooling(file, score_pooling)
    b.begin_states()
    state = hidden
    if pooling.scores_pairs and pooling.kind == "mean":
        if score_activation != "gelu" or not b.has_optional("cls.norm.weight"):
            raise ModelLoadError(
                str(file.path), f"{file.architecture} makes no scores of means as Caudal knows it"
            )
        b.has_optional("cls.output.bias")
        pooling = replace(pooling, score_head=ScoreHead.read(file, hidden.width, eps))
        b.leave_out("cls.")
    elif pooling.scores_pairs:
        pooled = b.buffer("pooled", hidden.width)
        state = b.buffer("score", 1)
        b.linear(hidden, "cls", pooled)
        b.activate(pooled, score_activation)
        if b.has_optional("cls.norm.weight"):
            b.layer_norm(pooled, "cls.norm", pooled, eps=eps)
        b.linear(pooled, "cls.output", state)
    else:
        # A linear layer gives the same before the mean as after it.
        for number, activation in enumerate(dense_activations(file), start=2):
            below, name = state, f"dense_{number}"
            state = b.buffer(name, b.rows(f"{name}.weight"))
            b.linear(below, name, state)
            if activation == "tanh":
                b.activate(state, "tanh")
    return b.finish(
        state=state,
        logits=None,
        vocab_size=vocab_size,
        context_length=context_length,
        pooling=pooling,
    )
