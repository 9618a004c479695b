"""The syntax tree of a Go template. Positions are characters from the template's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dot:
    """`.`, what an action is about."""

    position: int


@dataclass(frozen=True, slots=True)
class Nil:
    """`nil`."""

    position: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number or boolean; `text` is how it is written."""

    position: int
    value: str | int | float | bool
    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """`.A.B`."""

    position: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x`, or `$x.A.B`; the name has its dollar sign."""

    position: int
    name: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Identifier:
    """The name of a function."""

    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """`(…).A.B`, or a function's result, with fields."""

    position: int
    operand: Operand
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """`f x y`, or one operand."""

    position: int
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`$x, $y := a | b | c`.

    Attributes:
        position: Where it begins.
        variables: What it declares, or assigns to.
        assigns: It assigns to variables that are there.
        commands: At least one.
    """

    position: int
    variables: tuple[str, ...]
    assigns: bool
    commands: tuple[Command, ...]


Operand = Dot | Nil | Literal | Field | Variable | Identifier | Chain | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    """What is written as it is."""

    position: int
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """`{{ pipeline }}`."""

    position: int
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """`{{ if }}`, `{{ with }}` or `{{ range }}`, which is its `keyword`."""

    position: int
    keyword: str
    pipeline: Pipeline
    body: Body
    otherwise: Body | None


@dataclass(frozen=True, slots=True)
class Jump:
    """`{{ break }}` or `{{ continue }}`, which is its `keyword`."""

    position: int
    keyword: str


@dataclass(frozen=True, slots=True)
class Call:
    """`{{ template "name" pipeline }}`."""

    position: int
    name: str
    pipeline: Pipeline | None


Node = Text | Action | Branch | Jump | Call
Body = Sequence[Node]
