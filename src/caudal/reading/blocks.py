"""Lists of objects that say in `type` what they are: each is read as that, or refused by name, or
kept as it is where a list may have what this server has no use for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BeforeValidator, Discriminator, RootModel

from caudal.reading.fields import closest

OTHER = "[other]"
"""The tag of the branch that keeps an object as it is."""


class OtherObject(RootModel[dict[str, Any]]):
    """An object of a type that this server has no use for."""

    @property
    def type(self) -> str:
        """What it is."""
        return str(self.root["type"])


def branch_of(value: Any) -> str | None:
    """The tag of the branch that reads an object.

    The brackets keep the tags out of error messages, like the names of other unions' branches.
    """
    return f"[{value.get('type')}]" if isinstance(value, dict) else None


BY_TYPE = Discriminator(branch_of)


def known_types(
    what: str, known: Sequence[str], *, also: Sequence[str] = (), default: str | None = None
) -> BeforeValidator:
    """Refuses objects of other types, in words: pydantic would list its branches.

    Args:
        what: What such an object is called, e.g. `A content block`.
        known: The types there are branches for, and which a message names.
        also: Further ones, which are told apart later.
        default: What an object is that says no type; None: it must.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("input should be an object")
        kind = default if value.get("type") is None else value["type"]
        if kind is None:
            raise ValueError(f"{what} needs a type: {', '.join(known)}")
        if kind not in known and kind not in also:
            raise ValueError(
                f"{what} of type {kind!r:.80} is not supported, only {', '.join(known)}"
            )
        return value

    return BeforeValidator(check)


def known_or_other(known: Sequence[str]) -> Discriminator:
    """Tags objects of other types as `OTHER`."""
    tags = frozenset(known)

    def branch(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return f"[{kind}]" if isinstance(kind, str) and kind in tags else OTHER

    return Discriminator(branch)


def type_of(value: Any, untyped: str) -> str:
    """The type of an object; raises `ValueError` with these words where it says none."""
    if not isinstance(value, dict):
        raise ValueError("input should be an object")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise ValueError(untyped)
    return kind


def typed(what: str, known: Sequence[str], others: Sequence[str] = ()) -> BeforeValidator:
    """Refuses objects without a type, and those whose type is a misspelling of a known one.

    Args:
        what: What such an object is called, e.g. `A tool`.
        known: The types there are branches for.
        others: Types that APIs document beside them.
    """
    known_names, all_names = frozenset(known), frozenset([*known, *others])

    def check(value: Any) -> Any:
        kind = type_of(value, f"{what} needs a type: {', '.join(known)}")
        if kind not in all_names and (meant := closest(kind[:64], known_names)) is not None:
            raise ValueError(f"{what} can't be of type {kind!r:.80}. Did you mean {meant!r}?")
        return value

    return BeforeValidator(check)
