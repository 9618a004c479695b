"""Emits what goes through a sequence's tokens in order, and keeps a state of it."""

from __future__ import annotations

from caudal.models.builder.rows import RowOperations
from caudal.models.program import (
    Buffer,
    CausalConv,
    GatedDelta,
    GateName,
    Mamba2,
    StateLayer,
    VectorName,
)


class SequenceOperations(RowOperations):
    """Convolutions and recurrences, each in a state layer."""

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
        self._tensors.rows(weight, rows, x.width, taps)
        if taps < 2:
            raise self._tensors.error(weight, f"has {taps} taps instead of at least 2")
        shift = None
        if self._tensors.has_optional(bias):
            self._tensors.rows(bias, rows, x.width)
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
        passed = self._tensors.vector(skip, dt.width)
        layer = self._state_layer(x.width * (b.width // groups))
        op = Mamba2(out, x, b, c, dt, decay, passed, layer, groups)
        self._emit(op, (x, b, c, dt, decay), out, keeps=True)

    def _state_layer(self, floats: int) -> int:
        """The number of a new layer that keeps so many floats of each sequence."""
        self._state_layers.append(StateLayer(floats))
        return len(self._state_layers) - 1
