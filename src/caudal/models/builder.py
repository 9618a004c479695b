"""Emits a program's operations, and cuts them into the sections that a program has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caudal.errors import ModelLoadError
from caudal.formats.tensor_file import TensorFile
from caudal.models.pooling import Pooling
from caudal.models.program import (
    Activate,
    ActivationName,
    Add,
    Attention,
    Buffer,
    CausalConv,
    Clamp,
    Columns,
    Embed,
    EmbedBy,
    Experts,
    ExpertsName,
    Gated,
    GatedDelta,
    GateName,
    HeadLinear,
    Join,
    KVLayer,
    L2Norm,
    LayerNorm,
    Linear,
    Mamba2,
    MatrixName,
    Op,
    PositionScale,
    Program,
    RMSNorm,
    Rope,
    Routing,
    Scale,
    ScaleBy,
    ShiftBy,
    Softcap,
    StateLayer,
    VectorName,
)
from caudal.models.rope import RopeTable

HEAD_ROWS = 16
"""Heads' own matrices have a multiple of so many rows: what kernels compute at once."""


@dataclass(frozen=True, slots=True)
class _Emitted:
    """An operation, and the buffers that it takes values from and leaves its result in."""

    op: Op
    reads: tuple[Buffer, ...]
    writes: Buffer


class ProgramBuilder:
    """Collects operations, checking every weight they name against the model file.

    First come the layers; `begin_states` says that they are complete, and `begin_head`, where there
    is one, that the states are. The rest follows from the operations: the body ends with the last
    one that keeps something for later tokens, and hands on the buffers that the tail reads.

    Args:
        file: The model; read for the names and shapes of its tensors only.
    """

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._buffers: dict[tuple[str, int], Buffer] = {}
        self._layers: list[_Emitted] = []
        self._states: list[_Emitted] = []
        self._head: list[_Emitted] = []
        self._section = self._layers
        self._kept = 0  # operations of the layers up to the last that keeps something
        self._kv_layers: list[KVLayer] = []
        self._state_layers: list[StateLayer] = []
        self._used: set[str] = set()
        self._parts: dict[str, list[tuple[int, int]]] = {}  # of tensors used by parts: their rows

    def buffer(self, name: str, width: int) -> Buffer:
        """The buffer of this name, `width` floats per token; made where there is none yet.

        So layers work in the same buffers, one after the other.
        """
        key = (name, width)
        if key not in self._buffers:
            self._buffers[key] = Buffer(len(self._buffers), name, width)
        return self._buffers[key]

    def begin_states(self) -> None:
        """The layers are complete; what follows leads to the states."""
        self._section = self._states

    def begin_head(self) -> None:
        """The states are complete; what follows leads from them to the logits."""
        self._section = self._head

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self._file.tensors

    def rows(self, name: str) -> int:
        """How many rows a matrix has.

        Raises:
            ModelLoadError: There is no such matrix.
        """
        return self._shape(name, (None, None))[0]

    def embed(
        self,
        out: Buffer,
        weight: str,
        *,
        scale: float = 1.0,
        by: EmbedBy = "token",
        rows: int | None = None,
    ) -> None:
        """Look embeddings up, in a table of so many `rows`; None: of any number."""
        self._shape(weight, (rows, out.width))
        self._emit(Embed(out, MatrixName(weight), scale, by), (), out)

    def layer_norm(self, x: Buffer, name: str, out: Buffer, *, eps: float) -> None:
        """Normalise `x`, scale it by `name`.weight, and add `name`.bias where the file has one."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        self._shape(weight, (x.width,))
        shift = None
        if self.has(bias):
            self._shape(bias, (x.width,))
            shift = VectorName(bias)
        self._emit(LayerNorm(out, x, VectorName(weight), shift, eps), (x,), out)

    def rms_norm(
        self,
        x: Buffer,
        name: str | None,
        out: Buffer,
        *,
        eps: float,
        group: int | None = None,
        period: int | None = None,
    ) -> None:
        """Normalise `x` in groups of channels, and scale it by `name`.weight where there is a name.

        Args:
            x: What is normalised.
            name: Of the weight.
            out: As wide as x.
            eps: Added to the mean of squares.
            group: Channels of a group; None: as many as the weight is for, or all.
            period: Channels that the weight is for, which is used again for the next ones: a whole
                number of groups; None: all.
        """
        period = self._group(x, period)
        group = period if group is None else group
        if period % self._group(x, group) != 0:
            raise ValueError(f"{period} channels of {x.name} can't be cut into groups of {group}")
        weight = None if name is None else self._vector(f"{name}.weight", period)
        self._emit(RMSNorm(out, x, weight, group, eps), (x,), out)

    def l2_norm(self, x: Buffer, out: Buffer, *, group: int, eps: float) -> None:
        """Give each `group` of channels of `x` length 1."""
        self._emit(L2Norm(out, x, self._group(x, group), eps), (x,), out)

    def linear(
        self,
        x: Buffer,
        name: str,
        out: Buffer,
        *,
        accumulate: bool = False,
        first_row: int | None = None,
    ) -> None:
        """Multiply by `name`.weight, and add `name`.bias where the file has one.

        With `first_row` by as many of its rows, from that one on, as `out` is wide: files have
        matrices fused that read the same input.
        """
        weight, bias = f"{name}.weight", f"{name}.bias"
        rows = None if first_row is None else (first_row, first_row + out.width)
        if out.width == 1 and len(self._shape_of(weight)) == 1:
            self._shape(weight, (x.width,))  # a matrix of one row may be written as a vector
        else:
            self._rows(weight, rows, out.width, x.width)
        shift = None
        if self.has(bias):
            self._rows(bias, rows, out.width)
            shift = VectorName(bias, rows)
        op = Linear(out, x, MatrixName(weight, rows), shift, accumulate)
        self._emit(op, (x, out) if accumulate else (x,), out)

    def head_linear(self, x: Buffer, name: str, out: Buffer, *, heads: int) -> None:
        """Multiply each head by a matrix of its own, of `name`.weight, shape (heads, out, in)."""
        weight = f"{name}.weight"
        rows = out.width // heads
        self._shape(weight, (heads, rows, x.width // heads))
        if rows % HEAD_ROWS != 0:
            raise self._error(
                weight, f"has {rows} rows for a head; supported are multiples of {HEAD_ROWS}"
            )
        self._emit(HeadLinear(out, x, MatrixName(weight), heads), (x,), out)

    def join(self, a: Buffer, b: Buffer, out: Buffer, *, heads: int) -> None:
        """Put the channels of `b` behind those of `a`, head by head."""
        self._emit(Join(out, a, b, heads), (a, b), out)

    def rope(self, x: Buffer, head_dim: int, table: RopeTable, *, first: int = 0) -> None:
        """Rotate the heads of `x`, from channel `first` on."""
        self._emit(Rope(x, head_dim, table, first), (x,), x)

    def attention(
        self,
        out: Buffer,
        q: Buffer,
        k: Buffer,
        v: Buffer | None,
        *,
        head_dim: int,
        scale: float,
        window: int | None = None,
        causal: bool = True,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> int:
        """Attend, in a new KV layer, whose index is returned.

        Args:
            out: Its width says how many channels values have.
            q: Queries.
            k: Keys.
            v: Values; None: they are the first channels of the keys (a latent).
            head_dim: Channels of a query's or key's head.
            scale: See `Attention`.
            window: See `Attention`.
            causal: See `Attention`.
            softcap: See `Attention`.
            sinks: The name of their vector, as long as there are query heads.
        """
        layer, heads = len(self._kv_layers), q.width // head_dim
        op = Attention(
            out, q, k, v, layer, heads, scale, window, causal, softcap, self._sinks(sinks, heads)
        )
        self._emit(op, (q, k) if v is None else (q, k, v), out, keeps=True)
        self._kv_layers.append(
            KVLayer(k.width // head_dim, head_dim, value_dim=out.width // heads, latent=v is None)
        )
        return layer

    def attention_again(
        self,
        out: Buffer,
        q: Buffer,
        layer: int,
        *,
        scale: float,
        window: int | None = None,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> None:
        """Attend in a KV layer that an attention before has stored; arguments as there."""
        heads = q.width // self._kv_layers[layer].head_dim
        op = Attention(
            out,
            q,
            None,
            None,
            layer,
            heads,
            scale,
            window,
            True,
            softcap,
            self._sinks(sinks, heads),
        )
        # It keeps nothing itself, but is for every token, whose results later layers keep.
        self._emit(op, (q,), out, keeps=True)

    def _sinks(self, name: str | None, heads: int) -> VectorName | None:
        if name is None:
            return None
        self._shape(name, (heads,))
        return VectorName(name)

    def experts(
        self,
        x: Buffer,
        logits: Buffer,
        name: str,
        out: Buffer,
        routing: Routing,
        activation: GateName,
        *,
        inner: int,
        gated: bool = True,
        alpha: float = 1.702,
        limit: float = 7.0,
        selection_bias: str | None = None,
        weigh_input: bool = False,
        accumulate: bool = False,
    ) -> None:
        """Let the experts compute that a router's logits choose; see `Experts` and `Routing`.

        Their matrices are `name`_{gate,up,down}_exps.weight, or `name`_gate_up_exps.weight with the
        gate's rows first; biases and `name`_down_exps.scale are picked up from the file.

        Args:
            x: What they read.
            logits: The router's; used up.
            name: What their tensors' names begin with.
            out: Where the sum goes.
            routing: How they are chosen.
            activation: What is done inside.
            inner: Rows of an up matrix.
            gated: Whether they have gates.
            alpha: See `Gated`.
            limit: The same.
            selection_bias: The tensor of `Experts.selection_bias`.
            weigh_input: See `Experts`.
            accumulate: See `Experts`.
        """
        count = logits.width
        up_name, down_name = f"{name}_up_exps", f"{name}_down_exps"
        gate_name: str | None = f"{name}_gate_exps"
        gate_rows = up_rows = None
        if not gated:
            gate_name = None
        elif self.has(f"{name}_gate_up_exps.weight"):
            gate_name = up_name = f"{name}_gate_up_exps"
            gate_rows, up_rows = (0, inner), (inner, 2 * inner)
        stacked = inner if up_rows is None else 2 * inner
        for stack in dict.fromkeys((gate_name, up_name)):
            if stack is not None:
                self._shape(f"{stack}.weight", (count, stacked, x.width))
        self._shape(f"{down_name}.weight", (count, out.width, inner))

        def vector(tensor: str, length: int | None = None) -> VectorName | None:
            if not self.has(tensor):
                return None
            self._shape(tensor, (count,) if length is None else (count, length))
            return VectorName(tensor)

        if up_rows is not None and self.has(f"{up_name}.bias"):
            raise self._error(f"{up_name}.bias", "is of gates and others in one")
        op = Experts(
            out=out,
            x=x,
            logits=logits,
            gate=None if gate_name is None else ExpertsName(f"{gate_name}.weight", gate_rows),
            up=ExpertsName(f"{up_name}.weight", up_rows),
            down=ExpertsName(f"{down_name}.weight"),
            gate_bias=None if gate_name is None else vector(f"{gate_name}.bias", inner),
            up_bias=vector(f"{up_name}.bias", inner),
            down_bias=vector(f"{down_name}.bias", out.width),
            activation=activation,
            alpha=alpha,
            limit=limit,
            used=routing.used,
            scoring=routing.scoring,
            selection_bias=None if selection_bias is None else vector(selection_bias),
            groups=routing.groups,
            groups_used=routing.groups_used,
            best_of_group=routing.best_of_group,
            normalise=routing.normalise,
            scale=routing.scale,
            expert_scale=vector(f"{down_name}.scale"),
            weigh_input=weigh_input,
            accumulate=accumulate,
        )
        self._emit(op, (x, logits, out) if accumulate else (x, logits), out)

    @property
    def has_experts(self) -> bool:
        """Whether experts compute anything so far."""
        return any(isinstance(each.op, Experts) for each in self._layers)

    def gated(
        self,
        gate: Buffer,
        up: Buffer,
        out: Buffer,
        activation: GateName,
        *,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        """Multiply `up` by the activated `gate`, which may be narrower; see `Gated`."""
        self._emit(Gated(out, gate, up, activation, alpha, limit), (gate, up), out)

    def activate(self, x: Buffer, activation: ActivationName) -> None:
        """Apply an activation in place."""
        self._emit(Activate(x, activation), (x,), x)

    def add(self, a: Buffer, b: Buffer, out: Buffer) -> None:
        """Add two buffers."""
        self._emit(Add(out, a, b), (a, b), out)

    def softcap(self, x: Buffer, cap: float) -> None:
        """Bound the values of `x`."""
        self._emit(Softcap(x, cap), (x,), x)

    def leave_out(self, prefix: str) -> None:
        """Take no notice of tensors whose names begin with this: nothing of them is computed."""
        self._used.update(name for name in self._file.tensors if name.startswith(prefix))

    def columns(self, x: Buffer, out: Buffer, *, first: int, period: int | None = None) -> None:
        """Copy of every `period` channels of `x` (None: of all) those from `first` on to `out`.

        Raises:
            ValueError: Out isn't filled by so many of each period.
        """
        every = x.width if period is None else period
        periods, rest = divmod(x.width, every)
        if rest or out.width % periods or not 0 <= first <= every - out.width // periods:
            raise ValueError(
                f"{out.name} ({out.width}) can't be of every {every} of {x.name} ({x.width})"
            )
        self._emit(Columns(out, x, first, every), (x,), out)

    def scale(self, x: Buffer, factor: float) -> None:
        """Multiply `x` by a number; by 1 nothing is done."""
        if factor != 1.0:
            self._emit(Scale(x, factor), (x,), x)

    def scale_by(self, x: Buffer, name: str, *, length: int | None = None) -> None:
        """Multiply `x` by the tensor `name`: one number (`length` 1), or one for each channel."""
        self._emit(ScaleBy(x, self._vector(name, length or x.width)), (x,), x)

    def shift_by(self, x: Buffer, name: str) -> None:
        """Add the tensor `name` to `x`: a number for each channel."""
        self._emit(ShiftBy(x, self._vector(name, x.width)), (x,), x)

    def clamp(self, x: Buffer, low: float, high: float) -> None:
        """Keep the values of `x` within bounds."""
        self._emit(Clamp(x, low, high), (x,), x)

    def position_scale(self, x: Buffer, *, scale: float, length: int, offset: int = 0) -> None:
        """Multiply `x` by what grows with its token's position; see `PositionScale`."""
        self._emit(PositionScale(x, scale, length, offset), (x,), x)

    def causal_conv(
        self,
        x: Buffer,
        name: str,
        out: Buffer,
        activation: GateName,
        *,
        taps: int,
        first_row: int | None = None,
    ) -> None:
        """Convolve each channel of `x` with its row of `name`.weight, in a new state layer.

        `name`.bias is added where the file has one. With `first_row`, channels have the rows from
        that one on.

        Raises:
            ModelLoadError: The weight isn't of so many taps, two at least.
        """
        weight, bias = f"{name}.weight", f"{name}.bias"
        rows = None if first_row is None else (first_row, first_row + x.width)
        self._rows(weight, rows, x.width, taps)
        if taps < 2:
            raise self._error(weight, f"has {taps} taps instead of at least 2")
        shift = None
        if self.has(bias):
            self._rows(bias, rows, x.width)
            shift = VectorName(bias, rows)
        layer = self._state_layer((taps - 1) * x.width)
        op = CausalConv(out, x, VectorName(weight, rows), shift, layer, activation)
        self._emit(op, (x,), out, keeps=True)

    def gated_delta(
        self,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        decay: Buffer,
        beta: Buffer,
        out: Buffer,
        *,
        key_heads: int,
        scale: float,
        tiled: bool = False,
    ) -> None:
        """A gated delta net in a new state layer; for the arguments see `GatedDelta`."""
        layer = self._state_layer(v.width * (q.width // key_heads))
        op = GatedDelta(out, q, k, v, decay, beta, layer, key_heads, tiled, scale)
        self._emit(op, (q, k, v, decay, beta), out, keeps=True)

    def mamba2(
        self,
        x: Buffer,
        b: Buffer,
        c: Buffer,
        dt: Buffer,
        out: Buffer,
        *,
        rate: str,
        skip: str,
        groups: int,
    ) -> None:
        """Mamba-2's state space, in a new state layer.

        Args:
            x: Shape (tokens, heads · channels).
            b: Shape (tokens, groups · state size).
            c: As b.
            dt: Step sizes as they are used, shape (tokens, heads).
            out: As x.
            rate: The tensor that is often called A, for each head: negative.
            skip: The tensor that is often called D, for each head.
            groups: Of b and c.
        """
        decay = self.buffer("decay", dt.width)
        self.columns(dt, decay, first=0)
        self.scale_by(decay, rate)
        self.activate(decay, "exp")
        passed = self._vector(skip, dt.width)
        layer = self._state_layer(x.width * (b.width // groups))
        op = Mamba2(out, x, b, c, dt, decay, passed, layer, groups)
        self._emit(op, (x, b, c, dt, decay), out, keeps=True)

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
        state: Buffer,
        logits: Buffer | None,
        vocab_size: int,
        context_length: int,
        pooling: Pooling,
    ) -> Program:
        """The program; for the arguments see there.

        Raises:
            ModelLoadError: The file has tensors that no operation uses: computing without them
                would silently give wrong answers.
            ValueError: An operation reads what none before has written, or states and head read
                more than one of the layers' buffers.
        """
        outputs = self._states + self._head
        unwritten = _read_from_before(self._layers + outputs)
        if unwritten:
            raise ValueError(f"{unwritten[0].name} is read, but no operation before has written it")
        handed_on = _read_from_before(outputs) or (state,)
        if len(handed_on) > 1:
            raise ValueError(
                f"states and head read {[buffer.name for buffer in handed_on]}, not one"
            )
        self._check_parts()
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            raise ModelLoadError(
                str(self._file.path),
                f"tensor {unused[0]} (and {len(unused) - 1} more) is not part of a "
                f"{self._file.architecture} model as Caudal knows it",
            )
        body_length = len(self._layers) if logits is None else self._kept
        body, tail = self._layers[:body_length], self._layers[body_length:]
        return Program(
            buffers=tuple(self._buffers.values()),
            kv_layers=self._forgetting(context_length, is_encoder=logits is None),
            state_layers=tuple(self._state_layers),
            body=_ops(body),
            tail=_ops(tail),
            head=() if logits is None else _ops(outputs),
            states=_ops(self._states),
            carried=_read_from_before(tail + outputs) or (state,),
            hidden=handed_on[0],
            logits=logits,
            state=state,
            vocab_size=vocab_size,
            context_length=context_length,
            pooling=pooling,
        )

    def _forgetting(self, context_length: int, *, is_encoder: bool) -> tuple[KVLayer, ...]:
        """The KV layers, with the windows beyond which nothing is kept.

        A window is one that all attention over the layer has. There always are layers that keep
        everything: what has only windows, or ones as long as the context, has its KV in one pool,
        and so does an encoder, which keeps nothing from one iteration to the next.
        """
        windows: dict[int, int] = {}
        for emitted in self._layers:
            op = emitted.op
            if isinstance(op, Attention):
                window = context_length if op.window is None else op.window
                windows[op.layer] = max(windows.get(op.layer, 0), window)
        longest = max(windows.values(), default=0)
        if is_encoder or longest < context_length:
            return tuple(self._kv_layers)
        return tuple(
            kv if windows[layer] >= context_length else replace(kv, window=windows[layer])
            for layer, kv in enumerate(self._kv_layers)
        )

    def _emit(
        self, op: Op, reads: tuple[Buffer, ...], writes: Buffer, *, keeps: bool = False
    ) -> None:
        """Add an operation; `keeps`: it keeps something of each token for those that follow it.

        Raises:
            ValueError: It keeps something, but doesn't run for every token.
        """
        self._section.append(_Emitted(op, reads, writes))
        if keeps:
            if self._section is not self._layers:
                raise ValueError("states and head don't see every token, and can't keep anything")
            self._kept = len(self._layers)

    def _shape(self, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
        shape = self._shape_of(name)
        fits = len(shape) == len(expected) and all(
            size is None or have == size for have, size in zip(shape, expected, strict=True)
        )
        if not fits:
            needed = " x ".join("any" if size is None else str(size) for size in expected)
            found = " x ".join(map(str, shape))
            raise self._error(name, f"has shape {found} instead of {needed}")
        self._used.add(name)
        return shape

    def _shape_of(self, name: str) -> tuple[int, ...]:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
        return tensor.shape

    def _rows(self, name: str, rows: tuple[int, int] | None, expected: int, *others: int) -> None:
        """Check a tensor's shape: all its rows are used, or those of a range that it has."""
        shape = self._shape(name, (expected if rows is None else None, *others))
        if rows is not None:
            if rows[1] > shape[0]:
                raise self._error(name, f"has {shape[0]} rows instead of at least {rows[1]}")
            self._parts.setdefault(name, []).append(rows)

    def _check_parts(self) -> None:
        """Check that of tensors used by parts every row is used, once."""
        for name, parts in self._parts.items():
            end = 0
            for first, after in [*sorted(parts), (self._file.tensors[name].shape[0],) * 2]:
                if first != end:
                    what = f"{end} to {first - 1} aren't" if first > end else f"from {first} are"
                    twice = "" if first > end else " twice"
                    raise self._error(name, f"has rows {what} used{twice}")
                end = after

    def _vector(self, name: str, length: int) -> VectorName:
        """The tensor `name`, which has so many numbers, whatever its dimensions."""
        if not self.has(name):
            raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
        found = self._file.tensors[name].num_elements
        if found != length:
            raise self._error(name, f"has length {found} instead of {length}")
        self._used.add(name)
        return VectorName(name)

    def _state_layer(self, floats: int) -> int:
        """The number of a new layer that keeps so many floats of each sequence."""
        self._state_layers.append(StateLayer(floats))
        return len(self._state_layers) - 1

    def _group(self, x: Buffer, group: int | None) -> int:
        """Channels of each group of `x`: all where that isn't said."""
        group = x.width if group is None else group
        if group <= 0 or x.width % group != 0:
            raise ValueError(f"{x.name} ({x.width}) can't be cut into groups of {group}")
        return group

    def _error(self, name: str, reason: str) -> ModelLoadError:
        return ModelLoadError(str(self._file.path), f"tensor {name} {reason}")


def _ops(emitted: Sequence[_Emitted]) -> tuple[Op, ...]:
    return tuple(each.op for each in emitted)


def _read_from_before(emitted: Sequence[_Emitted]) -> tuple[Buffer, ...]:
    """The buffers whose values operations take over from those before them, by index."""
    read: dict[int, Buffer] = {}
    written: set[int] = set()
    for each in emitted:
        for buffer in each.reads:
            if buffer.index not in written:
                read[buffer.index] = buffer
        written.add(each.writes.index)
    return tuple(read[index] for index in sorted(read))
