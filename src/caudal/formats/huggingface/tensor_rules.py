"""From Hugging Face's tensors to llama.cpp's: names, and how layouts differ.

A family has tables from Hugging Face's names to llama.cpp's (family.py). Where more than the name
differs, a table has a *rule* instead of a name, which gets the tensor, and gives those that come of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.rows import (
    Floats,
    Reordered,
    Rows,
    Slice,
    made_of_floats,
    mapped,
    reshaped,
    transposed,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor that a rule is asked about.

    Attributes:
        config: The model's configuration.
        layer: The layer that it is of, None if of none.
        kind: `weight` or `bias`; empty where the table has the tensor's whole name.
        rows: The tensor.
    """

    config: Config
    layer: int | None
    kind: str
    rows: Rows

    def named(self, name: str) -> str:
        """The full name of a module's tensor of this kind."""
        return f"{name}.{self.kind}" if self.kind else name


Rule = Callable[[Found], Mapping[str, Rows]]
"""Gives tensors by full name, in a layer without `blk.N.`; raises ValueError where one doesn't have
the shape that it should have."""


def through(name: str, function: Callable[[Floats], Floats]) -> Rule:
    """The values through a function, in float32."""
    return lambda found: {found.named(name): mapped(found.rows, function)}


def one_plus(name: str) -> Rule:
    """Gemma's norms: files of llama.cpp have the 1 added that weights are relative to."""
    return through(name, lambda values: values + 1)


def negative_exp(name: str) -> Rule:
    """The decay of a state space: -exp(A_log)."""
    return through(name, lambda values: -np.exp(values))


def permuted_heads(name: str, heads_key: str) -> Rule:
    """Llama's queries and keys: the halves of a head, which RoPE pairs, become neighbours.

    Args:
        name: The module.
        heads_key: How many heads there are, in config.json.
    """

    def rule(found: Found) -> Mapping[str, Rows]:
        # A bias is one row: its channels are what a matrix's rows are.
        heads = found.config.positive(heads_key, found.config.positive("num_attention_heads"))
        channels = found.rows.shape[0]
        if channels % (2 * heads) != 0:
            raise ValueError(f"{channels} rows aren't {heads} heads of pairs")
        order = np.arange(channels).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
        if len(found.rows.shape) == 1:
            return {found.named(name): mapped(found.rows, lambda values: values[order])}
        return {found.named(name): Reordered(found.rows, order)}

    return rule


def split(*names: str, sizes: Callable[[Config], Sequence[int]] | None = None) -> Rule:
    """Several modules in one, along the rows; of a stack, the rows of each matrix.

    Args:
        names: The modules.
        sizes: Rows of each; None: equal.
    """

    def rule(found: Found) -> Mapping[str, Rows]:
        rows = found.rows
        axis = max(len(rows.shape) - 2, 0)
        have = rows.shape[axis]
        each = [have // len(names)] * len(names) if sizes is None else list(sizes(found.config))
        if sum(each) != have or min(each) <= 0:
            raise ValueError(f"{have} rows aren't {' + '.join(map(str, each))}")
        result: dict[str, Rows] = {}
        begin = 0
        for name, size in zip(names, each, strict=True):
            result[found.named(name)] = _part(rows, axis, begin, size)
            begin += size
        return result

    return rule


def swapped(name: str) -> Rule:
    """A stack of matrices of which inputs are the rows: they become the columns."""
    return lambda found: {found.named(name): transposed(found.rows)}


def squeezed(name: str) -> Rule:
    """Dimensions of one left out, as of a convolution by channels: (channels, 1, width)."""

    def rule(found: Found) -> Mapping[str, Rows]:
        shape = tuple(size for size in found.rows.shape if size != 1)
        return {found.named(name): reshaped(found.rows, shape)}

    return rule


def chained(first: Callable[[Rows], Rows], then: Rule) -> Rule:
    """A rule for what a function makes of the tensor."""

    def rule(found: Found) -> Mapping[str, Rows]:
        return then(Found(found.config, found.layer, found.kind, first(found.rows)))

    return rule


def _part(rows: Rows, axis: int, begin: int, size: int) -> Rows:
    if len(rows.shape) == 1:
        return _vector_part(rows, begin, size)
    shape = (*rows.shape[:axis], size, rows.shape[-1])
    if len(rows.shape) == 2:
        return Slice(rows, begin, shape)
    matrices = int(np.prod(rows.shape[:axis]))
    starts = np.arange(matrices)[:, None] * rows.shape[axis] + begin
    return Reordered(rows, (starts + np.arange(size)).ravel(), shape)


def _vector_part(rows: Rows, begin: int, size: int) -> Rows:
    return made_of_floats(rows.name, (size,), lambda: rows.floats()[begin : begin + size])
