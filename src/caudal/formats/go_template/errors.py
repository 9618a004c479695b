"""What is wrong with a Go template, and where."""

from __future__ import annotations

from caudal.errors import TemplateError


class GoTemplateError(TemplateError):
    """A template can't be parsed, or failed while it ran.

    Args:
        words: What happened.
        source: The template.
        position: The place in it, in characters.

    Attributes:
        words: What happened.
        line: Counted from 1.
        column: Counted from 1, in characters.
    """

    def __init__(self, words: str, source: str, position: int) -> None:
        before = source[:position]
        self.words = words
        self.line = before.count("\n") + 1
        self.column = position - (before.rfind("\n") + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {words}")


class GoError(Exception):
    """A function, or the way to a field, failed; whoever knows where adds the place.

    Args:
        words: What happened.
    """
