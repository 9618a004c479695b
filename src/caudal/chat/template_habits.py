"""What a chat template does with an assistant's calls and thoughts, found out by asking it.

Templates differ in what they take from a conversation's past, and most say nothing about what they
leave out: one writes only the first of several calls, another none, a third puts the text before a
call behind its result. A short made-up conversation shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caudal.errors import ParameterError, TemplateError
from caudal.formats.chat_template import ChatTemplate

_FIRST, _SECOND = "first_probe", "second_probe"
_TEXT, _THOUGHT = "text of the probe", "thought of the probe"
_RESULTS = ("result of the first", "result of the second")
_TOOL = {
    "type": "function",
    "function": {
        "name": "a_tool",
        "description": "A tool",
        "parameters": {"type": "object", "properties": {}},
    },
}
_THOUGHT_KEYS = ("thinking", "reasoning", "thought")
_TOOLS_OF_MESSAGE = re.compile(r"""\bmessage(\.tools\b|\[['"]tools['"]\])""")
_THINKING_PART = re.compile(r"""(\[['"]type['"]\]|\.type)\s*==\s*['"]thinking['"]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateHabits:
    """What a template does.

    Attributes:
        writes_calls: It writes an assistant's calls; else they have to be part of its content.
        calls_beside_text: It writes calls whose message has text; else they have to be part of it.
        several_calls: It writes all calls of one message.
        text_beside_calls: It writes text and calls of one message in this order, or leaves the text
            out; else it refuses them together, or puts the text behind the calls.
        text_before_calls: It leaves out text beside calls, but writes a message before them that
            has the text and doesn't end the turn (`end_turn`).
        thought_before_calls: It writes an assistant's thoughts, where calls follow them.
        results_beside_calls: Results are to be part of the message that called
            (`tool_responses`), and not messages of their own.
        thinking_parts: Thoughts are parts of the content of type `thinking`.
        thought_keys: What a message's thoughts are called, beside `reasoning_content`.
    """

    writes_calls: bool = True
    calls_beside_text: bool = True
    several_calls: bool = True
    text_beside_calls: bool = True
    text_before_calls: bool = False
    thought_before_calls: bool = True
    results_beside_calls: bool = False
    thinking_parts: bool = False
    thought_keys: Sequence[str] = ()


def takes_tools(template: ChatTemplate) -> bool:
    """Whether tools go through a template. One that is wrong refuses conversations by itself."""
    return template.reads("tools") or tools_in_messages(template)


def tools_in_messages(template: ChatTemplate) -> bool:
    """Whether a template looks for tools in the system's message, as text (Phi-4-mini)."""
    return (
        not template.reads("tools")
        and _TOOLS_OF_MESSAGE.search("\n".join(template.sources)) is not None
    )


def learn_habits(template: ChatTemplate) -> TemplateHabits:
    """Ask a template; what it refuses altogether it is supposed to do well.

    It waits for the template, a few times.
    """
    sources = "\n".join(template.sources)
    habits = TemplateHabits(
        results_beside_calls=_looks_up("tool_responses", sources) and "tool_call_id" not in sources,
        thinking_parts="reasoning_content" not in sources
        and _THINKING_PART.search(sources) is not None,
        thought_keys=tuple(key for key in _THOUGHT_KEYS if _looks_up(key, sources)),
    )
    probe = _Probe(template, habits)
    one = probe.ask(calls=1)
    if one is None or not takes_tools(template):
        return habits
    if _FIRST not in one:
        return replace(habits, writes_calls=False)
    two = probe.ask(calls=2)
    thought = probe.ask(calls=1, thought=_THOUGHT)
    beside = probe.ask(calls=1, text=_TEXT, thought=_THOUGHT)
    leaves_out = beside is not None and _TEXT not in beside
    return replace(
        habits,
        calls_beside_text=beside is None or _TEXT not in beside or _FIRST in beside,
        several_calls=two is not None and _in_order(two, _FIRST, _SECOND, *_RESULTS),
        text_beside_calls=beside is not None
        and (_TEXT not in beside or _in_order(beside, _TEXT, _FIRST)),
        text_before_calls=leaves_out and _looks_up("end_turn", sources),
        thought_before_calls=thought is not None and _in_order(thought, _THOUGHT, _FIRST),
    )


class _Probe:
    """Asks a template for made-up conversations."""

    def __init__(self, template: ChatTemplate, habits: TemplateHabits) -> None:
        self._template = template
        self._habits = habits

    def ask(self, *, calls: int, text: str = "", thought: str = "") -> str | None:
        """The prompt after a message with calls and their results; None where it is refused."""
        names = [_FIRST, _SECOND][:calls]
        made: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            made |= dict.fromkeys(("reasoning_content", *self._habits.thought_keys), thought)
        made["tool_calls"] = [
            {"id": f"{name[:5]:x<9}", "type": "function", "function": {"name": name}}
            for name in names
        ]
        results: Sequence[Mapping[str, Any]] = [
            {"role": "tool", "name": name, "tool_call_id": call["id"], "content": result}
            for name, call, result in zip(names, made["tool_calls"], _RESULTS, strict=False)
        ]
        if self._habits.results_beside_calls:
            made["tool_responses"] = [
                {"name": result["name"], "response": result["content"]} for result in results
            ]
            results = []
        tools = [_TOOL] if self._template.reads("tools") else None
        try:
            return self._template.render(
                [{"role": "user", "content": "Hi"}, made, *results], tools=tools
            )
        except (TemplateError, ParameterError):
            return None


def takes_system(template: ChatTemplate) -> bool:
    """Whether a template has a place for system messages."""
    probe = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
    try:
        template.encode(probe)
    except TemplateError:
        return False
    return True


def _in_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


def _looks_up(key: str, sources: str) -> bool:
    return re.search(rf"""\.{key}\b|(\[|get\()['"]{key}['"]""", sources) is not None
