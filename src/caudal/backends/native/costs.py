"""What a program costs here before anything is loaded: memory, and bytes read for a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from caudal import _native
from caudal.backends.native.weights import announce, vector_elements
from caudal.errors import ModelLoadError
from caudal.formats.tensor_file import TensorFile
from caudal.models.program import Embed, Experts, ExpertsName, MatrixName, Program, TensorName

BYTES_PER_FLOAT = 4

HEAD_ROWS = 32
"""Tokens whose logits are there at the same time; `kHeadRows` of the native library."""

SHARE_OF_OTHERS = 16
"""One part in this many of the memory is left to the process itself, and to the system."""


@dataclass(frozen=True, slots=True)
class WeightCosts:
    """Bytes of a program's weights, packed.

    Attributes:
        bytes: All of them.
        sizes: Those of each matrix, or of all experts' matrices of a name.
    """

    bytes: int
    sizes: Mapping[TensorName, int]


def weight_costs(weights: TensorFile, program: Program) -> WeightCosts:
    """What a program's weights take; nothing of them is read.

    Raises:
        ModelLoadError: A tensor can't be packed.
    """
    places = _native.Weights(1)
    try:
        announced = announce(program, weights, places)
        vectors = sum(
            end - first
            for first, end in (vector_elements(weights, name) for name in program.vectors)
        )
    except ValueError as error:
        raise ModelLoadError(str(weights.path), str(error)) from error
    return WeightCosts(places.bytes + BYTES_PER_FLOAT * vectors, announced.sizes)


def workspace_bytes(program: Program, tokens: int) -> int:
    """What buffers take for so many tokens, as far as they aren't in the same place: at most."""
    widths = sum(buffer.width for buffer in program.buffers if buffer != program.logits)
    logits = 0 if program.logits is None else program.logits.width
    return BYTES_PER_FLOAT * (widths * tokens + logits * min(tokens, HEAD_ROWS))


@dataclass(frozen=True, slots=True)
class Stack:
    """Experts of one name.

    Attributes:
        bytes: Those of all their matrices.
        share: The share of them that computes for a token.
    """

    bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Passed:
    """Weights that tokens go through.

    Attributes:
        always: Bytes of those that all tokens go through.
        stacks: Those of which each token goes through some.
    """

    always: int
    stacks: tuple[Stack, ...]

    @classmethod
    def of(cls, program: Program, sizes: Mapping[TensorName, int]) -> Self:
        """Those of a program.

        Args:
            program: The model's program.
            sizes: Bytes of each matrix, or of all experts' matrices of a name.
        """
        passed: set[TensorName] = set()
        stacks: dict[ExpertsName, float] = {}
        for op in (*program.body, *program.tail, *program.head):
            for value in op.values().values():
                if isinstance(value, MatrixName) and not isinstance(op, Embed):
                    passed.add(value)
                elif isinstance(value, ExpertsName) and isinstance(op, Experts):
                    stacks[value] = op.used / op.logits.width
        return cls(
            sum(sizes[name] for name in passed),
            tuple(Stack(sizes[name], share) for name, share in stacks.items()),
        )

    def read(self, tokens: int) -> float:
        """Bytes that are read for so many tokens at once.

        Experts are taken to be chosen evenly; where a few are chosen often, it is less.
        """
        chosen = sum(stack.bytes * (1 - (1 - stack.share) ** tokens) for stack in self.stacks)
        return self.always + chosen

    def missing(self, memory: int) -> int:
        """Bytes of weights that a token by itself reads from the disk, with so much memory."""
        chosen = sum(stack.share * stack.bytes for stack in self.stacks)
        all_experts = sum(stack.bytes for stack in self.stacks)
        left = max(0, memory - self.always)
        missing = max(0.0, 1 - left / all_experts) if all_experts else 0.0
        return max(0, self.always - memory) + round(missing * chosen)
