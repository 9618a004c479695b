"""How much a model is to think, in the words of its chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caudal.chat.conversation import Conversation, Message, ReasoningEffort
from caudal.chat.tool_prompt import text_of
from caudal.errors import TemplateError
from caudal.formats.chat_template import ChatTemplate

SWITCHES = ("enable_thinking", "thinking")
"""Variables that turn thinking on and off."""

LEVELS = ("reasoning_effort", "reasoning_strength", "thinking_effort")
"""Variables that say how much."""

BUDGET = "thinking_budget"
"""A variable that says how many tokens; none of them turns thinking off."""

NO_THINKING = "/no_think"
"""What turns thinking off within a message, for templates that look for it there."""

_RANKS: Mapping[str, int] = {
    name: rank
    for rank, names in enumerate(
        (("none", "no_think"), ("minimal",), ("low",), ("medium",), ("high",), ("xhigh",), ("max",))
    )
    for name in names
}

_RARE: Mapping[str, str] = {"max": "xhigh", "xhigh": "high"}
"""Levels that only templates know that name them, and what is said instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortWords:
    """What a template is told.

    Attributes:
        variables: Its variables.
        in_messages: Whether the messages say it.
    """

    variables: Mapping[str, Any]
    in_messages: bool = False

    def said_in(self, conversation: Conversation) -> Conversation:
        """The conversation, in which it is said where it has to be."""
        return _without_thinking(conversation) if self.in_messages else conversation


def effort_words(
    effort: ReasoningEffort, template: ChatTemplate, *, trained: Sequence[str] = ()
) -> EffortWords | None:
    """What says this effort to a template. It may wait for the template.

    A template with a mere switch turns thinking on for any level but the lowest. One that doesn't
    name a level above `high` gets the one below, and one that refuses a level gets the nearest of
    those that it looks for.

    Args:
        effort: How much.
        template: The template.
        trained: The only levels that the model knows; empty where the template decides.

    Returns:
        None where the template doesn't listen.
    """
    variables: dict[str, Any] = {}
    for switch in filter(template.reads, SWITCHES):
        variables[switch] = effort != "none"
        break
    for level in filter(template.reads, LEVELS):
        if trained:
            variables[level] = next(_by_distance(effort, trained))
        else:
            variables[level] = _accepted(_named(effort, template), level, template)
        return EffortWords(variables=variables)
    if variables:
        return None if effort == "minimal" else EffortWords(variables=variables)
    if effort == "none" and template.reads(BUDGET):
        return EffortWords(variables={BUDGET: 0})
    if effort == "none" and any(NO_THINKING in source for source in template.sources):
        return EffortWords(variables={}, in_messages=True)
    return None


def _named(effort: str, template: ChatTemplate) -> str:
    """The level itself, or of those below it the first that isn't rare, or that is named."""
    text = "\n".join(template.sources)
    while effort in _RARE and f"'{effort}'" not in text and f'"{effort}"' not in text:
        effort = _RARE[effort]
    return effort


def _accepted(effort: str, variable: str, template: ChatTemplate) -> str:
    """The level itself, or the nearest that the template doesn't refuse."""
    choices = template.choices(variable) & _RANKS.keys()
    if not choices:
        return effort
    for level in (effort, *_by_distance(effort, sorted(choices))):
        try:
            template.render([{"role": "user", "content": "Hi"}], template_kwargs={variable: level})
        except TemplateError:
            continue
        return level
    return effort


def _by_distance(effort: str, levels: Sequence[str]) -> Iterator[str]:
    """Levels, the nearest first; all that think, or don't, as is asked, before the others."""

    def distance(level: str) -> tuple[bool, int, int]:
        rank, asked = _RANKS[level], _RANKS[effort]
        return (rank > 0) != (asked > 0), abs(rank - asked), -rank

    return iter(sorted(levels, key=distance))


def _without_thinking(conversation: Conversation) -> Conversation:
    first, *rest = conversation.messages
    if first.role in ("system", "developer"):
        said = replace(first, content=f"{text_of(first)} {NO_THINKING}")
        return replace(conversation, messages=[said, *rest])
    said = Message(role="system", content=NO_THINKING)
    return replace(conversation, messages=[said, *conversation.messages])
