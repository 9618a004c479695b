"""Levels of effort: Anthropic has five, chat templates have their own."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.chat.conversation import ReasoningEffort

_LEVELS: Sequence[ReasoningEffort] = ("low", "medium", "high", "xhigh", "max")
_USUAL = 3
"""How many of them, from the lowest, a template has that reads levels at all."""


def nearest_effort(effort: ReasoningEffort, sources: Sequence[str]) -> ReasoningEffort:
    """The level to give to a chat template that has levels.

    Args:
        effort: One of Anthropic's.
        sources: The template's source. Levels above `high` are only used where it names them.

    Returns:
        `effort`, or the level nearest to it that the template has; the lower of two.
    """
    text = "\n".join(sources)
    known = [
        level
        for index, level in enumerate(_LEVELS)
        if index < _USUAL or f"'{level}'" in text or f'"{level}"' in text
    ]
    place = _LEVELS.index(effort)
    return min(known, key=lambda level: abs(_LEVELS.index(level) - place))
