"""The op vocabulary: an architecture is a short function that emits a list of these.

A *buffer* is a float matrix with one row per token of the batch; operations read and write buffers
and refer to weights by their name in the model file. Backends run programs: the native one compiles
a program once (csrc/runtime/plan.h) and then runs it with one call per iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caudal.errors import ModelLoadError
from caudal.formats.tensor_file import TensorFile
from caudal.models.pooling import Pooling
from caudal.models.rope import RopeTable

ActivationName = Literal["silu", "gelu_tanh", "gelu", "relu", "tanh"]
"""`gelu` is x · Φ(x) (by erf), `gelu_tanh` its usual approximation."""

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


@dataclass(frozen=True, slots=True)
class Embed:
    """out = scale · embedding row of each token."""

    out: Buffer
    weight: str
    scale: float
    by: EmbedBy = "token"


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """out = x / sqrt(mean(x²) + eps) · weight, over groups as long as the weight.

    RMSNorm, arXiv 1910.07467. A weight of head size normalises each head by itself (QK norm).
    """

    out: Buffer
    x: Buffer
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """out = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias (arXiv 1607.06450)."""

    out: Buffer
    x: Buffer
    weight: str
    bias: str
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """out = weight · x (+ bias); with `accumulate` it is added to what out holds (residual)."""

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates every head of x in place by its token's position (RoPE, arXiv 2104.09864)."""

    x: Buffer
    head_dim: int
    table: RopeTable


@dataclass(frozen=True, slots=True)
class Attention:
    """Stores k and v in the KV pool, then attends over all the sequence has stored.

    Attributes:
        out: Shape (tokens, heads · head_dim).
        q: Queries, as out.
        k: Keys, shape (tokens, kv_heads · head_dim).
        v: Values, as k.
        layer: Which of `Program.kv_layers`.
        heads: Query heads; several share a KV head (GQA, arXiv 2305.13245).
        scale: Multiplies q · k.
        window: A query sees itself and `window - 1` tokens before it; None: all before it.
        causal: False: a query sees all of its sequence, which is never cut then.
    """

    out: Buffer
    q: Buffer
    k: Buffer
    v: Buffer
    layer: int
    heads: int
    scale: float
    window: int | None
    causal: bool


@dataclass(frozen=True, slots=True)
class Gated:
    """out = activation(gate) · up (SwiGLU, GeGLU: arXiv 2002.05202)."""

    out: Buffer
    gate: Buffer
    up: Buffer
    activation: ActivationName


@dataclass(frozen=True, slots=True)
class Activate:
    """x = activation(x), in place."""

    x: Buffer
    activation: ActivationName


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b."""

    out: Buffer
    a: Buffer
    b: Buffer


@dataclass(frozen=True, slots=True)
class Softcap:
    """x = cap · tanh(x / cap), in place."""

    x: Buffer
    cap: float


Op = Embed | RMSNorm | LayerNorm | Linear | Rope | Attention | Gated | Activate | Add | Softcap


@dataclass(frozen=True, slots=True)
class KVLayer:
    """Geometry of one layer's keys and values."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Program:
    """A model's computation.

    Attributes:
        buffers: All buffers, by index.
        kv_layers: One entry per attention layer.
        body: Runs for every token, as far as later tokens need it; leaves its result in `carried`.
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
    def matrices(self) -> tuple[str, ...]:
        """Names of the weight matrices, in order of first use."""
        ops = self.body + self.tail + self.head + self.states
        return tuple(dict.fromkeys(op.weight for op in ops if isinstance(op, Embed | Linear)))

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of norm weights and biases, in order of first use."""
        names: dict[str, None] = {}
        for op in self.body + self.tail + self.head + self.states:
            if isinstance(op, RMSNorm):
                names[op.weight] = None
            elif isinstance(op, LayerNorm):
                names |= {op.weight: None, op.bias: None}
            elif isinstance(op, Linear) and op.bias is not None:
                names[op.bias] = None
        return tuple(names)


def kv_bytes_per_token(kv_layers: tuple[KVLayer, ...], bytes_per_element: int) -> int:
    """Bytes that one token's keys and values take over all layers.

    For uniform layers this is 2 · layers · kv_heads · head_dim · bytes_per_element: with 32 layers,
    8 KV heads of 128 and two bytes, 128 KiB.
    """
    return sum(2 * kv.kv_heads * kv.head_dim for kv in kv_layers) * bytes_per_element


class ProgramBuilder:
    """Collects operations, checking every weight they name against the model file.

    Args:
        file: The model; read for the names and shapes of its tensors only.
    """

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._buffers: list[Buffer] = []
        self._ops: list[Op] = []
        self._kv_layers: list[KVLayer] = []
        self._used: set[str] = set()

    def buffer(self, name: str, width: int) -> Buffer:
        """A new buffer of `width` floats per token."""
        made = Buffer(len(self._buffers), name, width)
        self._buffers.append(made)
        return made

    def embed(self, out: Buffer, weight: str, *, scale: float = 1.0, by: EmbedBy = "token") -> None:
        """Look embeddings up."""
        self._shape(weight, (None, out.width))
        self._ops.append(Embed(out, weight, scale, by))

    def layer_norm(self, x: Buffer, name: str, out: Buffer, *, eps: float) -> None:
        """Normalise `x`, and scale and shift it by `name`.weight and `name`.bias."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        self._shape(weight, (x.width,))
        self._shape(bias, (x.width,))
        self._ops.append(LayerNorm(out, x, weight, bias, eps))

    def rms_norm(self, x: Buffer, weight: str, out: Buffer, *, eps: float) -> None:
        """Normalise `x`, in groups as long as the weight."""
        (group,) = self._shape(weight, (None,))
        if x.width % group != 0:
            raise self._error(weight, f"has length {group}, which doesn't divide {x.width}")
        self._ops.append(RMSNorm(out, x, weight, eps))

    def linear(self, x: Buffer, name: str, out: Buffer, *, accumulate: bool = False) -> None:
        """Multiply by `name`.weight, and add `name`.bias where the file has one."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        self._shape(weight, (out.width, x.width))
        has_bias = bias in self._file.tensors
        if has_bias:
            self._shape(bias, (out.width,))
        self._ops.append(Linear(out, x, weight, bias if has_bias else None, accumulate))

    def rope(self, x: Buffer, head_dim: int, table: RopeTable) -> None:
        """Rotate the heads of `x`."""
        self._ops.append(Rope(x, head_dim, table))

    def attention(
        self,
        out: Buffer,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        *,
        head_dim: int,
        scale: float,
        window: int | None = None,
        causal: bool = True,
    ) -> None:
        """Attend, in a new KV layer."""
        layer, heads = len(self._kv_layers), q.width // head_dim
        self._ops.append(Attention(out, q, k, v, layer, heads, scale, window, causal))
        self._kv_layers.append(KVLayer(k.width // head_dim, head_dim))

    def gated(self, gate: Buffer, up: Buffer, out: Buffer, activation: ActivationName) -> None:
        """Multiply `up` by the activated `gate`."""
        self._ops.append(Gated(out, gate, up, activation))

    def activate(self, x: Buffer, activation: ActivationName) -> None:
        """Apply an activation in place."""
        self._ops.append(Activate(x, activation))

    def add(self, a: Buffer, b: Buffer, out: Buffer) -> None:
        """Add two buffers."""
        self._ops.append(Add(out, a, b))

    def softcap(self, x: Buffer, cap: float) -> None:
        """Bound the values of `x`."""
        self._ops.append(Softcap(x, cap))

    def vector_values(self, name: str, length: int) -> list[float] | None:
        """The values of a float32 vector, or None where the file has none of this name."""
        if name not in self._file.tensors:
            return None
        self._shape(name, (length,))
        tensor = self._file.tensors[name]
        if tensor.type.name != "F32":
            raise self._error(name, f"has type {tensor.type.name} instead of F32")
        values: list[float] = self._file.tensor_bytes(name).view("<f4").tolist()
        return values

    def finish(
        self,
        *,
        carried: tuple[Buffer, ...],
        hidden: Buffer,
        body_ops: int,
        tail_ops: int,
        state: Buffer,
        state_ops: int,
        logits: Buffer | None,
        vocab_size: int,
        context_length: int,
        pooling: Pooling,
    ) -> Program:
        """The program.

        Args:
            carried: See `Program`.
            hidden: See `Program`.
            body_ops: So many operations are the body.
            tail_ops: So many operations after them are the tail.
            state: See `Program`.
            state_ops: So many operations after the tail lead to `state`; with the rest after them
                they lead to the logits.
            logits: See `Program`.
            vocab_size: See `Program`.
            context_length: See `Program`.
            pooling: See `Program`.

        Raises:
            ModelLoadError: The file has tensors that no operation uses: computing without them
                would silently give wrong answers.
        """
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            raise ModelLoadError(
                str(self._file.path),
                f"tensor {unused[0]} (and {len(unused) - 1} more) is not part of a "
                f"{self._file.architecture} model as Caudal knows it",
            )
        after_tail = body_ops + tail_ops
        return Program(
            buffers=tuple(self._buffers),
            kv_layers=tuple(self._kv_layers),
            body=tuple(self._ops[:body_ops]),
            tail=tuple(self._ops[body_ops:after_tail]),
            head=() if logits is None else tuple(self._ops[after_tail:]),
            states=tuple(self._ops[after_tail : after_tail + state_ops]),
            carried=carried,
            hidden=hidden,
            logits=logits,
            state=state,
            vocab_size=vocab_size,
            context_length=context_length,
            pooling=pooling,
        )

    @property
    def num_ops(self) -> int:
        """Operations emitted so far."""
        return len(self._ops)

    def _shape(self, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
        fits = len(tensor.shape) == len(expected) and all(
            want is None or have == want for have, want in zip(tensor.shape, expected, strict=True)
        )
        if not fits:
            wanted = " x ".join("any" if want is None else str(want) for want in expected)
            found = " x ".join(map(str, tensor.shape))
            raise self._error(name, f"has shape {found} instead of {wanted}")
        self._used.add(name)
        return tensor.shape

    def _error(self, name: str, reason: str) -> ModelLoadError:
        return ModelLoadError(str(self._file.path), f"tensor {name} {reason}")
