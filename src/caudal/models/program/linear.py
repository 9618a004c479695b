"""Multiplications by weight matrices."""

from __future__ import annotations

from dataclasses import dataclass

from caudal.models.program.op import Buffer, MatrixName, Op, VectorName


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out = weight · x (+ bias); with `accumulate` it is added to what out holds (residual)."""

    out: Buffer
    x: Buffer
    weight: MatrixName
    bias: VectorName | None
    accumulate: bool


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
