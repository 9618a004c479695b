"""A conversation through a template of one of Ollama's packages, as Ollama takes it through.

What it does around templates is in template/template.go of its sources, and is done here alike:
neighbours of one role become one message; a template that names no messages is written once for
each turn, and the last time up to its response. Two things are kept that Ollama would drop: calls
and thoughts of a message that has a neighbour of its role before it, and what a tool's schema has
beyond the fields that Ollama knows.

A package may name a `renderer`, code of Ollama's own, in place of a template. Its model is served
with the template of its weights, which is what such code redoes (`StoredModel.template_beside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from caudal.formats.go_template.evaluator import Run
from caudal.formats.go_template.identifiers import (
    RESPONSE,
    compared_texts,
    field_names,
    identifiers,
    thinking_tags,
    up_to_response,
)
from caudal.formats.go_template.nodes import Action
from caudal.formats.go_template.ollama_values import KEYS, Message, Messages, Tool, Tools
from caudal.formats.go_template.parser import MAIN
from caudal.formats.go_template.template import GoTemplate
from caudal.formats.go_template.values import GoMap
from caudal.formats.template_facts import TemplateFacts

DEFAULT_LEVEL = "medium"
"""How much a model thinks that is to think, where nobody says how much."""

_SWITCH = "enable_thinking"
_LEVEL = "reasoning_effort"


@dataclass(frozen=True)
class OllamaTemplate:
    """A template of a package, ready to render.

    Attributes:
        template: The template.
        names: What it names, in lower case.
    """

    template: GoTemplate
    names: frozenset[str]

    @classmethod
    def compile(cls, source: str) -> Self:
        """Parse a template.

        Raises:
            GoTemplateError: It is wrong.
        """
        template = GoTemplate.parse(source)
        names = identifiers(template.trees, source)
        if "messages" not in names and "response" not in names:
            main = [*template.trees[MAIN], Action(len(source), RESPONSE)]
            template = GoTemplate(source, {**template.trees, MAIN: main})
            names |= {"response"}
        return cls(template, names)

    @cached_property
    def facts(self) -> TemplateFacts:
        """What its syntax tree shows, in the words of Jinja's templates."""
        trees = self.template.trees
        variables = {"messages"}
        if {"tools", "messages"} <= self.names:
            variables.add("tools")
        if self.names & {"think", "isthinkset"}:
            variables.add(_SWITCH)
        if "thinklevel" in self.names:
            variables.add(_LEVEL)
        levels = compared_texts(trees, "ThinkLevel") - {""}
        return TemplateFacts(
            variables=frozenset(variables),
            names=KEYS | field_names(trees),
            takes_parts=False,
            takes_text=True,
            inspected_strings=compared_texts(trees),
            joins_arguments=False,
            choices={_LEVEL: levels} if levels else {},
            thinking_tags=self._thinking_tags,
            takes_suffix="suffix" in self.names,
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """What the template makes of a conversation, or of a text with a gap.

        Args:
            variables: `messages` and `tools` as in OpenAI's API, `enable_thinking` and
                `reasoning_effort`; or, without messages, `prompt` and `suffix` around a gap.

        Raises:
            GoTemplateError: It failed, or takes too much.
        """
        thinking = self._thinking(variables)
        if "messages" not in variables:
            gap = {"Prompt": variables["prompt"], "Suffix": variables["suffix"]}
            return self._run(GoMap({**gap, "Response": "", **thinking}))
        system, messages = _collate(variables["messages"])
        if "messages" not in self.names:
            return self._render_turns(messages, thinking)
        tools = variables.get("tools")
        values = {
            "System": system,
            "Messages": Messages(map(Message.made_of, messages)),
            "Tools": Tools(map(Tool.made_of, tools)) if tools else Tools(is_nil=True),
            "Response": "",
            **thinking,
        }
        return self._run(GoMap(values))

    def _run(self, values: GoMap) -> str:
        return Run(self.template.source, self.template.trees).render(MAIN, values)

    def _thinking(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of thinking: a model that knows how does unless it is told not to."""
        level, switch = variables.get(_LEVEL), variables.get(_SWITCH)
        is_set = switch is not None or isinstance(level, str)
        thinks = is_set or self._knows_thinking if switch is None else bool(switch)
        if level == "none":
            thinks = False
        level = level if isinstance(level, str) else DEFAULT_LEVEL
        return {
            "Think": thinks,
            "ThinkLevel": level if thinks else "",
            "IsThinkSet": is_set or thinks,
        }

    @cached_property
    def _thinking_tags(self) -> tuple[str, str] | None:
        tags = thinking_tags(self.template.trees[MAIN])
        return tags if all(tags) else None

    @property
    def _knows_thinking(self) -> bool:
        return "thinklevel" in self.names or self._thinking_tags is not None

    def _render_turns(
        self, messages: Sequence[Mapping[str, Any]], thinking: Mapping[str, Any]
    ) -> str:
        """For a template of one turn: a prompt, perhaps with a system's message, and a response."""
        parts: list[str] = []
        turn = _Turn()
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "system":
                if turn.prompt or turn.response:
                    parts.append(self._run(GoMap({**turn.values(), **thinking})))
                    turn = _Turn()
                turn.system = content
            elif role == "user":
                if turn.response:
                    parts.append(self._run(GoMap({**turn.values(), **thinking})))
                    turn = _Turn()
                turn.prompt = content
            elif role == "assistant":
                turn.response = content
        trees = self.template.trees
        last = Run(self.template.source, {**trees, MAIN: up_to_response(trees[MAIN])})
        parts.append(last.render(MAIN, _LastTurn({**turn.values(), **thinking})))
        return "".join(parts)


class _LastTurn(GoMap):
    """What the last turn is filled with: Ollama leaves out there that missing keys are zeros."""

    def missing(self) -> Any:
        return None


@dataclass
class _Turn:
    system: str = ""
    prompt: str = ""
    response: str = ""

    def values(self) -> dict[str, str]:
        return {"System": self.system, "Prompt": self.prompt, "Response": self.response}


def _collate(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[Mapping[str, Any]]]:
    """All that the system says, and the messages with neighbours of one role joined."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    collated: list[Mapping[str, Any]] = []
    for message in messages:
        role = message["role"]
        says_more = any(message.get(k) for k in ("tool_calls", "thinking", "reasoning_content"))
        if collated and collated[-1]["role"] == role and role != "tool" and not says_more:
            before = collated.pop()
            content = f"{before['content']}\n\n{message['content']}"
            collated.append({**before, "content": content})
        else:
            collated.append(message)
    return "\n\n".join(system), collated
