"""Further variables that a chat template is given, like `enable_thinking`: JSON, within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from caudal.errors import ParameterError

MAX_KWARGS = 64 * 1024
"""Characters that they may have as JSON, about."""

MAX_KWARGS_DEPTH = 16

_OWN_VARIABLES = frozenset(("messages", "tools", "add_generation_prompt"))


def check_kwargs(kwargs: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """The variables, as they are.

    Args:
        kwargs: What a request brings.
        taken: Names that mean something else already.

    Raises:
        ParameterError: They are no JSON, too many, or of names that they can't have.
    """
    _measure(kwargs, MAX_KWARGS, MAX_KWARGS_DEPTH)
    for name in kwargs:
        if not isinstance(name, str) or not name.isidentifier():
            raise ParameterError(
                "chat_template_kwargs",
                f"chat_template_kwargs: {name!r} is not a variable name.",
            )
        if name in _OWN_VARIABLES or name in taken:
            raise ParameterError(
                "chat_template_kwargs", f"chat_template_kwargs must not set {name}."
            )
    return dict(kwargs)


def _measure(value: Any, left: int, depth: int) -> int:
    """Check a template's further variables, without looking at more than may be there.

    Args:
        value: What is to be JSON.
        left: Characters that it may have, about.
        depth: Levels that it may have.

    Returns:
        What is left of the characters.

    Raises:
        ParameterError: It has more, or is no JSON.
    """
    if isinstance(value, str):
        left -= len(value) + 2
    elif isinstance(value, int | float | None):
        left -= value.bit_length() // 3 + 1 if isinstance(value, int) else 5
    elif not isinstance(value, Mapping | list | tuple):
        kind = type(value).__name__
        raise ParameterError(
            "chat_template_kwargs", f"chat_template_kwargs must be JSON values, not {kind}."
        )
    elif depth == 0:
        raise ParameterError(
            "chat_template_kwargs",
            f"chat_template_kwargs may be nested at most {MAX_KWARGS_DEPTH} levels deep.",
        )
    else:
        if isinstance(value, Mapping):
            value = itertools.chain.from_iterable(value.items())
        left -= 2
        for part in value:
            left = _measure(part, left - 2, depth - 1)
    if left < 0:
        raise ParameterError(
            "chat_template_kwargs",
            f"chat_template_kwargs may have at most {MAX_KWARGS} characters of JSON.",
        )
    return left
