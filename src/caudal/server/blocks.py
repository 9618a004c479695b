"""Lists of objects that say in `type` what they are: each is read as that, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BeforeValidator, Discriminator


def branch_of(value: Any) -> str | None:
    """The tag of the branch that reads an object.

    The brackets keep the tags out of error messages, like the names of other unions' branches.
    """
    return f"[{value.get('type')}]" if isinstance(value, dict) else None


BY_TYPE = Discriminator(branch_of)


def known_types(what: str, known: Sequence[str]) -> BeforeValidator:
    """Refuses objects of other types, in words: pydantic would list its branches.

    Args:
        what: What such an object is called, e.g. `A content block`.
        known: The types there are branches for.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("input should be an object")
        kind = value.get("type")
        if kind is None:
            raise ValueError(f"{what} needs a type: {', '.join(known)}")
        if kind not in known:
            raise ValueError(
                f"{what} of type {kind!r:.80} is not supported by this server, only "
                f"{', '.join(known)}"
            )
        return value

    return BeforeValidator(check)
