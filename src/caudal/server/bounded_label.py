"""Labels of metrics whose values clients choose."""

from __future__ import annotations

from collections.abc import Callable

OTHER = "other"
"""Stands for all values of a label beyond the first `MAX_VALUES`."""

MAX_VALUES = 200
"""Of a label whose values aren't known beforehand: each is a series in Prometheus, for ever."""


class BoundedLabel:
    """A label's values, no more than so many: the first that come; all further ones are `OTHER`.

    Args:
        is_known: Whether a value may take one of the places; clients may make up any number.
    """

    def __init__(self, is_known: Callable[[str], bool] = lambda value: True) -> None:
        self._is_known = is_known
        self._values: set[str] = set()

    def __contains__(self, value: str) -> bool:
        """Whether a value has a place."""
        return value in self._values

    def of(self, value: str) -> str:
        """What a value is counted as."""
        if value in self._values:
            return value
        if len(self._values) >= MAX_VALUES or not self._is_known(value):
            return OTHER
        self._values.add(value)
        return value
