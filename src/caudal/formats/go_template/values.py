"""Values as Go's templates know them, in Python.

| Go | here |
|---|---|
| no value: what a missing key comes to when it is used | None |
| an interface that is nil, as where it is found | `NIL` |
| bool, int, float64, string | bool, int, float, str |
| a slice, a map, a struct | `GoList`, `GoMap`, `GoStruct` |

A string is bytes in Go: lengths and places in it count bytes of UTF-8. Bytes that are none are lone
surrogates here, as Python's `surrogateescape` makes them. Noncharacters, which stand in a
conversation's texts as marks (`caudal.formats.template_guard`), count nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from caudal.formats.go_template.errors import GoError


class Nil:
    """The type of `NIL`."""

    def __repr__(self) -> str:
        return "<nil>"


NIL: Final = Nil()

MARKS = re.compile("[\ufdd0-\ufdef]")
"""Noncharacters that may be marks."""


class GoList(list[Any]):
    """A slice.

    Attributes:
        type_name: Its type in Go, for messages.
        is_nil: It is the slice that is nil, which is empty.
    """

    type_name: ClassVar[str] = "[]interface {}"

    def __init__(self, items: Iterable[Any] = (), *, is_nil: bool = False) -> None:
        super().__init__(items)
        self.is_nil = is_nil

    def to_text(self) -> str | None:
        """How its type prints it, where that has a way of its own."""
        return None

    def to_json(self) -> Any:
        """What is written for it as JSON: itself, or something else."""
        return self


class GoMap(dict[str, Any]):
    """A map whose keys are strings. It is gone through in the order of its keys.

    Attributes:
        type_name: Its type in Go, for messages.
        is_nil: It is the map that is nil, which is empty.
    """

    type_name: ClassVar[str] = "map[string]interface {}"

    def __init__(self, items: Mapping[str, Any] | None = None, *, is_nil: bool = False) -> None:
        super().__init__({} if items is None else items)
        self.is_nil = is_nil

    def ordered(self) -> Iterator[tuple[str, Any]]:
        """Its items, in the order of their keys."""
        return iter(sorted(self.items(), key=lambda item: item[0]))

    def missing(self) -> Any:
        """What a key that isn't there stands for: the zero of what the map holds."""
        return NIL

    def to_text(self) -> str | None:
        """How its type prints it, where that has a way of its own."""
        return None

    def to_json(self) -> Any:
        """What is written for it as JSON: itself, or something else."""
        return self


class GoStruct:
    """A struct, or a pointer to one.

    Args:
        values: The values of all its fields, in their order.

    Attributes:
        type_name: Its type in Go, for messages.
        is_pointer: It is a pointer to such a struct.
        methods: What can be called of it, by name.
        fields: Its fields' values by name, in their order.
    """

    type_name: ClassVar[str] = "struct {}"
    is_pointer: ClassVar[bool] = False
    methods: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    __slots__ = ("fields",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.fields = values

    def to_text(self) -> str | None:
        """How its type prints it, where that has a way of its own."""
        return None

    def to_json(self) -> Any:
        """What is written for it as JSON: a mapping whose order counts."""
        return self.fields


def go_value(value: Any) -> Any:
    """A value that is like JSON as one of Go's; those that are Go's stay as they are."""
    if isinstance(value, GoList | GoMap | GoStruct):
        return value
    if isinstance(value, Mapping):
        return GoMap({str(key): go_value(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return GoList(go_value(item) for item in value)
    return value


def json_value(value: Any) -> Any:
    """A value that JSON was read into as Go's own reader makes it: all numbers are floats.

    Whole numbers that a float doesn't hold stay as they are: what a client sent isn't changed.
    """
    if isinstance(value, Mapping):
        return GoMap({key: json_value(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return GoList(json_value(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 1 << 53:
        return float(value)
    return value


def held(value: Any) -> Any:
    """What a slice or map holds, as where it is found: null is an interface that is nil."""
    return NIL if value is None else value


def taken(value: Any) -> Any:
    """A value out of the interface that it is in."""
    return None if value is NIL else value


def is_true(value: Any) -> bool:
    """Whether a value counts as true: it isn't the zero of its type."""
    if value is None or value is NIL:
        return False
    return True if isinstance(value, GoStruct) else bool(value)


def type_name(value: Any) -> str:
    """A value's type in Go."""
    if value is None or value is NIL:
        return "<nil>"
    if isinstance(value, GoStruct):
        return f"*{value.type_name}" if value.is_pointer else value.type_name
    if isinstance(value, GoList | GoMap):
        return value.type_name
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float64"), (str, "string")):
        if isinstance(value, kind):
            return name
    raise AssertionError(f"{value!r} is no value of Go's")


def field_of(value: Any, name: str) -> Any:
    """A field of a struct, or what a map holds under a key.

    Raises:
        GoError: It can have no such field.
    """
    if value is None:
        return None
    if isinstance(value, GoMap):
        return held(value[name]) if name in value else value.missing()
    if isinstance(value, GoStruct) and name in value.fields:
        return value.fields[name]
    if value is NIL:
        raise GoError(f"nil pointer evaluating interface {{}}.{name}")
    raise GoError(f"can't evaluate field {name} in type {type_name(value)}")


def method_of(value: Any, name: str) -> Callable[[Any], Any] | None:
    """A method of a value's type; None where it has none of that name."""
    if isinstance(value, GoStruct) and name in value.methods:
        return value.methods[name]
    if name == "String" and isinstance(value, GoList | GoMap | GoStruct):
        return None if value.to_text() is None else lambda it: it.to_text()
    return None


def unmarked(text: str) -> str:
    """A string without marks."""
    return MARKS.sub("", text)


def encoded(text: str) -> bytes:
    """A string's bytes, without those of marks."""
    text = unmarked(text)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return text.encode("utf-8", "surrogatepass")


def sliced(text: str, start: int, end: int) -> str:
    """The bytes of a string from one place to another, with the marks behind its characters."""
    if MARKS.search(text) is None:
        return encoded(text)[start:end].decode("utf-8", "surrogateescape")
    parts: list[bytes] = []
    place = 0
    for character in text:
        if MARKS.match(character):
            if start < place <= end:
                parts.append(character.encode())
            continue
        data = encoded(character)
        parts.append(data[max(start - place, 0) : max(end - place, 0)])
        place += len(data)
    return b"".join(parts).decode("utf-8", "surrogateescape")
