"""The op vocabulary: an architecture is a short function that emits a list of these.

A *buffer* is a float matrix with one row per token of the batch; operations read and write buffers
and refer to weights by their name in the model file. Backends run programs: the native one compiles
a program once (csrc/runtime/plan.h) and then runs it with one call per iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Self, TypeVar

from caudal.models.pooling import Pooling
from caudal.models.rope import RopeTable

ActivationName = Literal[
    "silu", "gelu_tanh", "gelu", "relu", "relu_squared", "tanh", "sigmoid", "softplus", "exp"
]
"""`gelu` is x · Φ(x) (by erf), `gelu_tanh` its usual approximation; `softplus` is log(1 + e^x)."""

GateName = ActivationName | Literal["none", "swiglu_clamped"]
"""What is done to a gate: nothing, an activation, or gpt-oss' clamped SwiGLU (see `Gated`)."""

ScoringName = Literal["softmax", "sigmoid", "softmax_of_chosen"]
"""What a router's logits become before they weigh experts: a softmax over all experts, each logit's
sigmoid, or a softmax over those that were chosen by their logits."""

Task = Literal["generate", "embed", "score"]
"""Continue text; turn text into a vector; say how well two texts belong together."""

EmbedBy = Literal["token", "position", "segment"]
"""What chooses a token's row: its id, its place, or which text of a pair it is in (0 or 1)."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One row of `width` floats per token; `index` is its place in `Program.buffers`."""

    index: int
    name: str
    width: int


class _TensorName(str):
    """The name of a tensor in the model file, or of some of its rows: `NAME[FIRST:END]`.

    Files have matrices fused that a program multiplies by one after the other: their rows lie one
    behind the other.

    Args:
        tensor: What the file calls it.
        rows: The rows that are meant (of a vector, the elements); None: all.

    Attributes:
        tensor: As above.
        rows: As above.
    """

    __slots__ = ("rows", "tensor")

    tensor: str
    rows: tuple[int, int] | None

    def __new__(cls, tensor: str, rows: tuple[int, int] | None = None) -> Self:
        name = super().__new__(cls, tensor if rows is None else f"{tensor}[{rows[0]}:{rows[1]}]")
        name.tensor, name.rows = tensor, rows
        return name


class MatrixName(_TensorName):
    """A weight matrix."""

    __slots__ = ()


class VectorName(_TensorName):
    """A vector: a norm's weight, a bias."""

    __slots__ = ()


class ExpertsName(_TensorName):
    """A matrix of each expert, shape (experts, rows, columns); `rows` are those of every one."""

    __slots__ = ()


_Name = TypeVar("_Name", MatrixName, VectorName, ExpertsName)

TensorName = MatrixName | VectorName | ExpertsName

OpValue = Buffer | TensorName | RopeTable | float | str | None
"""What an operation may have in its fields. What isn't a plain value says by its type what it
refers to, so that programs can be gone through and translated without knowing each operation."""


@dataclass(frozen=True, slots=True)
class Op:
    """An operation: what it is called and its fields say all about it.

    Backends know operations by the names of their classes, and fields by theirs; for the native
    one they stand in csrc/runtime/ops.h.
    """

    def values(self) -> dict[str, OpValue]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out = scale · embedding row of each token."""

    out: Buffer
    weight: MatrixName
    scale: float
    by: EmbedBy = "token"


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
    """out = (x - mean(x)) / sqrt(variance(x) + eps) · weight (+ bias) (arXiv 1607.06450)."""

    out: Buffer
    x: Buffer
    weight: VectorName
    bias: VectorName | None
    eps: float


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out = weight · x (+ bias); with `accumulate` it is added to what out holds (residual)."""

    out: Buffer
    x: Buffer
    weight: MatrixName
    bias: VectorName | None
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotates every head of x in place by its token's position (RoPE, arXiv 2104.09864).

    Attributes:
        x: Shape (tokens, heads · head_dim).
        head_dim: Channels of a head.
        table: How far.
        first: The first channel of a head that is rotated; as many are as the table has.
    """

    x: Buffer
    head_dim: int
    table: RopeTable
    first: int = 0


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Stores k and v in the KV pool, then attends over all the sequence has stored.

    Attributes:
        out: Shape (tokens, heads · value_dim); sizes are those of the layer.
        q: Queries, shape (tokens, heads · head_dim).
        k: Keys, shape (tokens, kv_heads · head_dim); None: an attention before has stored the
            layer, and this one reads it too.
        v: Values, shape (tokens, kv_heads · value_dim); None where k is, or the layer is latent.
        layer: Which of `Program.kv_layers`.
        heads: Query heads; several share a KV head (GQA, arXiv 2305.13245).
        scale: Multiplies q · k.
        window: A query sees itself and `window - 1` tokens before it; None: all before it.
        causal: False: a query sees all of its sequence, which is never cut then. Its window is
            as far in both directions: `window // 2` tokens before it, and as many after it.
        softcap: Scores, scaled, become softcap · tanh(score / softcap); 0 leaves them as they are.
        sinks: For each query head, what stands in the softmax beside the scores without a value
            of its own (attention sinks, arXiv 2309.17453, learned).
    """

    out: Buffer
    q: Buffer
    k: Buffer | None
    v: Buffer | None
    layer: int
    heads: int
    scale: float
    window: int | None
    causal: bool
    softcap: float = 0.0
    sinks: VectorName | None = None


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
class Routing:
    """How experts are chosen for a token, and weighed.

    Attributes:
        used: Experts of a token: those of the largest scores, of equals the first.
        scoring: What scores are.
        normalise: Whether the weights, the chosen experts' scores, are divided by their sum.
        scale: Multiplies all weights.
        groups: Groups of experts that lie side by side; only experts of the best are chosen.
        groups_used: How many groups are the best (DeepSeek-V2, arXiv 2405.04434).
        best_of_group: How many of its best experts' scores a group is measured by.
    """

    used: int
    scoring: ScoringName
    normalise: bool
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    best_of_group: int = 2


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out = Σ weight · down(activation(gate(x)) · up(x)) over the experts of each token.

    (Mixture of experts, arXiv 1701.06538.) Fields that aren't here are explained in `Routing`.

    Attributes:
        out: Shape (tokens, rows of a down matrix).
        x: Shape (tokens, columns of an up matrix).
        logits: A router's, shape (tokens, experts); scores take their place.
        gate: None: activation(up(x)) takes the place of the product.
        gate_bias: One behind the other, of all experts; as the others.
        activation: With a gate one as `Gated` has, with `alpha` and `limit`.
        selection_bias: Added to scores when experts are chosen, not when they are weighed.
        expert_scale: A factor for each expert's weight.
        weigh_input: Whether the weights multiply x instead of what experts make of it.
        accumulate: Whether it is added to what out holds.
    """

    out: Buffer
    x: Buffer
    logits: Buffer
    gate: ExpertsName | None
    up: ExpertsName
    down: ExpertsName
    gate_bias: VectorName | None
    up_bias: VectorName | None
    down_bias: VectorName | None
    activation: GateName
    alpha: float
    limit: float
    used: int
    scoring: ScoringName
    selection_bias: VectorName | None
    groups: int
    groups_used: int
    best_of_group: int
    normalise: bool
    scale: float
    expert_scale: VectorName | None
    weigh_input: bool
    accumulate: bool


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
class PositionScale(Op):
    """x = x · (1 + scale · log(1 + floor((position + offset) / length))), in place.

    Attention's temperature at long contexts, applied to queries (Llama 4, Ministral 3).
    """

    x: Buffer
    scale: float
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class CausalConv(Op):
    """A depthwise convolution over a sequence's tokens, of which a state keeps the last inputs.

    Attributes:
        out: As wide as x; out = activation(bias + Σ weight[:, j] · the input taps - 1 - j tokens
            ago), with zeros before the beginning.
        x: The inputs.
        weight: Shape (channels, taps).
        bias: Shape (channels,), or None.
        layer: Which of `Program.state_layers`: (taps - 1) · channels numbers.
        activation: `none`, or what is applied.
    """

    out: Buffer
    x: Buffer
    weight: VectorName
    bias: VectorName | None
    layer: int
    activation: GateName


@dataclass(frozen=True, slots=True)
class GatedDelta(Op):
    """A gated delta net (arXiv 2412.06464), head by head, token by token.

    With S [key channels][value channels] the state of a head, zeros in the beginning:
    S = decay · S; S = S + k ⊗ (beta · (v - Sᵀk)); out = scale · Sᵀq.

    Attributes:
        out: As v.
        q: Shape (tokens, key_heads · key channels).
        k: As q; heads of length 1, or states may grow without bound.
        v: Shape (tokens, heads · value channels), of which a head has a multiple of 16.
        decay: What is left of a state, 0 to 1, shape (tokens, heads).
        beta: How much is written, as decay.
        layer: Which of `Program.state_layers`: heads · key channels · value channels numbers.
        key_heads: Heads of q and k; each is for heads / key_heads of v.
        tiled: Head i has key head i modulo key_heads; else it is neighbouring heads that share one.
        scale: Multiplies what is read.
    """

    out: Buffer
    q: Buffer
    k: Buffer
    v: Buffer
    decay: Buffer
    beta: Buffer
    layer: int
    key_heads: int
    tiled: bool
    scale: float


@dataclass(frozen=True, slots=True)
class Mamba2(Op):
    """Mamba-2's state space (arXiv 2405.21060), head by head, token by token.

    With h [state size][channels] the state of a head, zeros in the beginning:
    h = decay · h + b ⊗ (dt · x); out = hᵀc + skip · x.

    Attributes:
        out: As x.
        x: Shape (tokens, heads · channels), of which a head has a multiple of 16.
        b: Shape (tokens, groups · state size); neighbouring heads share a group's.
        c: As b.
        dt: Step sizes, shape (tokens, heads).
        decay: What is left of a state, exp(dt · A), as dt.
        skip: Shape (heads,); often called D.
        layer: Which of `Program.state_layers`: heads · channels · state size numbers.
        groups: Of b and c.
    """

    out: Buffer
    x: Buffer
    b: Buffer
    c: Buffer
    dt: Buffer
    decay: Buffer
    skip: VectorName
    layer: int
    groups: int


@dataclass(frozen=True, slots=True)
class HeadLinear(Op):
    """Every head of x times a matrix of its own: out[h] = weight[h] · x[h].

    Attributes:
        out: Shape (tokens, heads · rows).
        x: Shape (tokens, heads · columns).
        weight: Shape (heads, rows, columns).
        heads: How many.
    """

    out: Buffer
    x: Buffer
    weight: MatrixName
    heads: int


@dataclass(frozen=True, slots=True)
class Join(Op):
    """out = in each of `heads` heads the channels of a, and behind them those of b."""

    out: Buffer
    a: Buffer
    b: Buffer
    heads: int


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What an attention layer remembers of each token: its keys and values.

    Attributes:
        kv_heads: Key and value heads.
        head_dim: Channels of a head, of queries and keys.
        window: Most tokens that a query sees, itself among them: older ones are forgotten. None:
            all are kept.
        value_dim: Channels of a value; None: as many as of a key.
        latent: Values are the first channels of keys, and nothing else is kept of them (MLA,
            arXiv 2405.04434).
    """

    kv_heads: int
    head_dim: int
    window: int | None = None
    value_dim: int | None = None
    latent: bool = False

    @property
    def channels_of_values(self) -> int:
        """Channels of a value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def numbers(self) -> int:
        """Numbers that are kept of a token."""
        return self.kv_heads * (self.head_dim + (0 if self.latent else self.channels_of_values))


@dataclass(frozen=True, slots=True)
class StateLayer:
    """What a recurrent layer remembers of all tokens so far: a state of a fixed size.

    Attributes:
        floats: Its float32 numbers, the last inputs of a convolution among them.
    """

    floats: int


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

    def layers_in_pool(self, window: int | None) -> tuple[KVLayer, ...]:
        """The KV layers that share the pool for this window; None: the pool for all tokens."""
        return tuple(kv for kv in self.kv_layers if kv.window == window)

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

    def _names(self, kind: type[_Name]) -> tuple[_Name, ...]:
        ops = self.body + self.tail + self.head + self.states
        values = (value for op in ops for value in op.values().values())
        return tuple(dict.fromkeys(value for value in values if isinstance(value, kind)))


def kv_bytes_per_token(kv_layers: tuple[KVLayer, ...], bytes_per_element: int) -> int:
    """Bytes that one token's keys and values take over the given layers.

    For uniform layers this is 2 · layers · kv_heads · head_dim · bytes_per_element: with 32 layers,
    8 KV heads of 128 and two bytes, 128 KiB.
    """
    return sum(kv.numbers for kv in kv_layers) * bytes_per_element
