"""A program: its operations in sections, and what a model is besides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from caudal.models.pooling import Pooling
from caudal.models.program.memory import KVLayer, StateLayer
from caudal.models.program.op import Buffer, ExpertsName, MatrixName, Op, VectorName

Task = Literal["generate", "embed", "score"]
"""Continue text; turn text into a vector; say how well two texts belong together."""

_Name = TypeVar("_Name", MatrixName, VectorName, ExpertsName)


@dataclass(frozen=True, slots=True)
class Program:
    """A model's computation.

    Attributes:
        buffers: All buffers, by index.
        kv_layers: One entry per layer that keeps keys and values.
        state_layers: One entry per layer that keeps a state.
        body: Runs for every token, as far as later tokens need it; leaves its result in `carried`.
            An encoder's is all of its layers: most ways of pooling ask for every token's state.
        tail: Runs for the tokens whose logits or states are wanted: from `carried` to `hidden`.
            (Of a prompt that is the last token alone: all others have done their part once their
            keys and values are stored in the last layer.)
        head: Runs for the tokens whose logits are wanted: from `hidden` to `logits`.
        states: Runs for the tokens that an embedding is made of: from `hidden` to `state`.
        carried: The buffers that the tail reads.
        hidden: The buffer that the residual stream is in, at the end of the tail.
        logits: The buffer of the head's result, as wide as the vocabulary; None for an encoder,
            which has no head.
        state: The buffer of the states; its width is the embedding's.
        vocab_size: Tokens there are.
        context_length: Tokens the model was trained for.
        pooling: How the model makes embeddings.
    """

    buffers: tuple[Buffer, ...]
    kv_layers: tuple[KVLayer, ...]
    state_layers: tuple[StateLayer, ...]
    body: tuple[Op, ...]
    tail: tuple[Op, ...]
    head: tuple[Op, ...]
    states: tuple[Op, ...]
    carried: tuple[Buffer, ...]
    hidden: Buffer
    logits: Buffer | None
    state: Buffer
    vocab_size: int
    context_length: int
    pooling: Pooling

    @property
    def tasks(self) -> frozenset[Task]:
        """What requests may ask of the model."""
        if not self.is_encoder:
            return frozenset(("generate", "embed", "score"))
        return frozenset(("score",) if self.pooling.scores_pairs else ("embed", "score"))

    @property
    def is_encoder(self) -> bool:
        """Whether it only makes embeddings (or scores pairs), and generates nothing."""
        return self.logits is None

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows that layers forget beyond, each once, shortest first."""
        return tuple(sorted({kv.window for kv in self.kv_layers if kv.window is not None}))

    @property
    def matrices(self) -> tuple[MatrixName, ...]:
        """Names of the weight matrices, in order of first use."""
        return self._names(MatrixName)

    @property
    def vectors(self) -> tuple[VectorName, ...]:
        """Names of norm weights and biases, in order of first use."""
        return self._names(VectorName)

    @property
    def experts(self) -> tuple[ExpertsName, ...]:
        """Names of the stacks of experts' matrices, in order of first use."""
        return self._names(ExpertsName)

    def with_weights_of(self, other: Program) -> Program:
        """One that names the weights of both, in sections that nothing is to be run of.

        For whoever loads the weights of two programs of one file together.
        """
        return replace(
            self,
            body=self.body + other.body,
            tail=self.tail + other.tail,
            head=self.head + other.head,
            states=self.states + other.states,
        )

    def _names(self, kind: type[_Name]) -> tuple[_Name, ...]:
        ops = self.body + self.tail + self.head + self.states
        values = (value for op in ops for value in op.values().values())
        return tuple(dict.fromkeys(value for value in values if isinstance(value, kind)))
