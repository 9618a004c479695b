"""Emits multiplications by weight matrices."""

from __future__ import annotations

from caudal.models.builder.emitter import Emitter
from caudal.models.program import (
    Buffer,
    ColumnOrder,
    Gather,
    HeadLinear,
    Linear,
    MatrixName,
    VectorName,
)

HEAD_ROWS = 16
"""Heads' own matrices have a multiple of so many rows: what kernels compute at once."""


class LinearOperations(Emitter):
    """Linear layers, and heads' own matrices."""

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
        if rows is None:
            self._tensors.matrix(weight, out.width, x.width)
        else:
            self._tensors.rows(weight, rows, out.width, x.width)
        x = self._in_order(x, f"{name}.columns")
        shift = None
        if self._tensors.has_optional(bias):
            self._tensors.rows(bias, rows, out.width)
            shift = VectorName(bias, rows)
        op = Linear(out, x, MatrixName(weight, rows), shift, accumulate)
        self._emit(op, (x, out) if accumulate else (x,), out)

    def _in_order(self, x: Buffer, name: str) -> Buffer:
        """The channels of `x` as the columns of a matrix are ordered: by the vector of this name.

        Matrices that take them in one order get the same buffer, so that they are multiplied by
        together.
        """
        numbers = self._tensors.values(name, x.width)
        if numbers is None:
            return x
        if sorted(numbers) != list(range(x.width)):
            raise self._tensors.error(name, f"isn't an order of {x.width} columns")
        order = ColumnOrder.of(numbers)
        count = 0
        for emitted in reversed(self._section):
            if emitted.writes == x:
                break
            if isinstance(emitted.op, Gather) and emitted.op.x == x:
                if emitted.op.columns == order:
                    return emitted.op.out
                count += 1
        out = self.buffer(f"{x.name}_in_order_{count}", x.width)
        self._emit(Gather(out, x, order), (x,), out)
        return out

    def head_linear(self, x: Buffer, name: str, out: Buffer, *, heads: int) -> None:
        """Multiply each head by a matrix of its own, of `name`.weight, shape (heads, out, in)."""
        weight = f"{name}.weight"
        rows = out.width // heads
        self._tensors.shape(weight, (heads, rows, x.width // heads))
        if rows % HEAD_ROWS != 0:
            raise self._tensors.error(
                weight, f"has {rows} rows for a head; supported are multiples of {HEAD_ROWS}"
            )
        self._emit(HeadLinear(out, x, MatrixName(weight), heads), (x,), out)
