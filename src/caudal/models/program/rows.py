"""Operations that are done row by row: embeddings, norms, activations, sums, products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caudal.models.program.op import Buffer, ColumnOrder, MatrixName, Op, VectorName

ActivationName = Literal[
    "silu", "gelu_tanh", "gelu", "relu", "relu_squared", "tanh", "sigmoid", "softplus", "exp"
]
"""`gelu` is x · Φ(x) (by erf), `gelu_tanh` its usual approximation; `softplus` is log(1 + e^x)."""

GateName = ActivationName | Literal["none", "swiglu_clamped"]
"""What is done to a gate: nothing, an activation, or gpt-oss' clamped SwiGLU (see `Gated`)."""

EmbedBy = Literal["token", "position", "segment"]
"""What chooses a token's row: its id, its place, or which text of a pair it is in (0 or 1)."""


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out = scale · embedding row of each token."""

    out: Buffer
    weight: MatrixName
    scale: float
    by: EmbedBy = "token"


@dataclass(frozen=True, slots=True)
class Given(Op):
    """out = what the batch gives for each token (`SequenceStep.given`)."""

    out: Buffer


@dataclass(frozen=True, slots=True)
class RMSNorm(Op):
    """out = x / sqrt(mean(x²) + eps) · weight, each `group` of channels by itself.

    RMSNorm, arXiv 1910.07467. Groups of head size normalise each head (QK norm).

    Attributes:
        out: As wide as x.
        x: What is normalised.
        weight: For a group or several, repeated along x; None: all ones.
        group: Channels that are normalised together.
        eps: Added to the mean.
    """

    out: Buffer
    x: Buffer
    weight: VectorName | None
    group: int
    eps: float


@dataclass(frozen=True, slots=True)
class L2Norm(Op):
    """out = x / sqrt(Σx² + eps), each `group` of channels by itself."""

    out: Buffer
    x: Buffer
    group: int
    eps: float


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    """out = (x - mean(x)) / sqrt(variance(x) + eps) · weight (+ bias) (arXiv 1607.06450).

    Each `group` of channels is normalised by itself.
    """

    out: Buffer
    x: Buffer
    weight: VectorName
    bias: VectorName | None
    group: int
    eps: float


@dataclass(frozen=True, slots=True)
class Gated(Op):
    """out = activation(gate) · up (SwiGLU, GeGLU: arXiv 2002.05202).

    Attributes:
        out: As wide as up.
        gate: As wide as up, or narrower: then each of its values counts for as many neighbouring
            channels of up.
        up: What is let through.
        activation: `none`: out = gate · up. `swiglu_clamped`: out = g · σ(alpha · g) · (u + 1),
            where g is the gate but at most `limit`, and u is up within ±limit (gpt-oss).
        alpha: For `swiglu_clamped` alone.
        limit: The same.
    """

    out: Buffer
    gate: Buffer
    up: Buffer
    activation: GateName
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True, slots=True)
class Activate(Op):
    """x = activation(x), in place."""

    x: Buffer
    activation: ActivationName


@dataclass(frozen=True, slots=True)
class Add(Op):
    """out = a + b."""

    out: Buffer
    a: Buffer
    b: Buffer


@dataclass(frozen=True, slots=True)
class Softcap(Op):
    """x = cap · tanh(x / cap), in place."""

    x: Buffer
    cap: float


@dataclass(frozen=True, slots=True)
class Columns(Op):
    """out = of every `period` channels of x those from `first` on.

    Out gets as many of each period as fill it: a plain slice where the period is all of x; the
    queries of [query, gate] pairs, head by head, where it is twice the head size.
    """

    out: Buffer
    x: Buffer
    first: int
    period: int


@dataclass(frozen=True, slots=True)
class Gather(Op):
    """out = the channels of x in the order `columns`: the first is x's channel `columns[0]`."""

    out: Buffer
    x: Buffer
    columns: ColumnOrder


@dataclass(frozen=True, slots=True)
class Scale(Op):
    """x = factor · x, in place."""

    x: Buffer
    factor: float


@dataclass(frozen=True, slots=True)
class ScaleBy(Op):
    """x = weight · x, in place; the weight is a number, or one for each channel."""

    x: Buffer
    weight: VectorName


@dataclass(frozen=True, slots=True)
class ShiftBy(Op):
    """x = x + weight, in place; the weight is a number, or one for each channel."""

    x: Buffer
    weight: VectorName


@dataclass(frozen=True, slots=True)
class Clamp(Op):
    """x = x within [low, high], in place."""

    x: Buffer
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Cut(Op):
    """x = max(x - mean(x) - deviations · deviation(x), 0), in place.

    What is left of numbers of a normal distribution is a share that `deviations` decides
    (Gemma 3n's sparse activations).
    """

    x: Buffer
    deviations: float


@dataclass(frozen=True, slots=True)
class MatchMagnitude(Op):
    """x = x · sqrt(mean(model²) / max(mean(x²), floor)), in place."""

    x: Buffer
    model: Buffer
    floor: float


@dataclass(frozen=True, slots=True)
class PositionScale(Op):
    """x = x · (1 + scale · log(1 + floor((position + offset) / length))), in place.

    Attention's temperature at long contexts, applied to queries (Llama 4, Ministral 3).
    """

    x: Buffer
    scale: float
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class Join(Op):
    """out = in each of `heads` heads the channels of a, and behind them those of b."""

    out: Buffer
    a: Buffer
    b: Buffer
    heads: int
