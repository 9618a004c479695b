"""Grammars for whole answers: what a model may write around what a request demands.

A demand concerns only part of an answer. A model that thinks must be free to think first, and calls
are written in the model's own format around arguments that follow a schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caudal.chat.calls.formats import CallSyntax
from caudal.chat.conversation import Tool
from caudal.chat.member_grammar import ANY_TEXT, member_rules
from caudal.structured_outputs import StructuredOutputsParams, json_rule, lark_literal
from caudal.subschemas import closed

_ANY_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
_NUMBER = "NUMBER"
_THOUGHT_SPACE = "/[ \\n]{1,4}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSyntax:
    """How a model thinks before it answers.

    Attributes:
        begin: Begins reasoning.
        end: Ends it, and whatever stands before the answer.
        open_already: Whether the prompt ends within reasoning.
    """

    begin: str
    end: str
    open_already: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGrammar:
    """Writes a grammar in Lark.

    Attributes:
        special_tokens: Control tokens that markers may consist of; text never matches them.
        reasoning: How the model may think first; None where it doesn't.
        answer_begin: What stands before an answer that is no call, where answers are messages.
    """

    special_tokens: Mapping[str, int] = field(default_factory=dict)
    reasoning: ReasoningSyntax | None = None
    answer_begin: str = ""

    def calls(
        self, syntax: CallSyntax, tools: Sequence[Tool], *, parallel: bool
    ) -> StructuredOutputsParams:
        """One call at least, and nothing but calls."""
        return self._write(_any_call(tools), self._call_rules(syntax, tools, parallel, ""))

    def calls_or_text(
        self,
        syntax: CallSyntax,
        tools: Sequence[Tool],
        *,
        parallel: bool,
        bare: str = "",
    ) -> StructuredOutputsParams:
        """Text, calls, or text and then calls.

        Args:
            syntax: How calls are written.
            tools: The tools on offer.
            parallel: Whether there may be several calls.
            bare: The character that begins a call only as an answer's first, if there is one.
        """
        if self.answer_begin:
            answer = f"answer: {self._literal(self.answer_begin)} TEXT\n"
            rules = self._call_rules(syntax, tools, parallel, "")
            return self._write(f"{_any_call(tools)} | answer", [*rules, answer])
        if bare:
            rules = self._call_rules(syntax, tools, parallel, "")
            other = f"answer: | OTHER\nOTHER: /[^\\s\\{bare}]{ANY_TEXT}/\n"
            return self._write(f"{_any_call(tools)} | answer", [*rules, other])
        trigger = self._trigger(syntax)
        rules = self._call_rules(syntax, tools, parallel, trigger)
        place = self._special_in(trigger)
        if place == 0:
            rules.append(f"free: TEXT {self._literal(trigger)}\n")
        elif place > 0:
            # No text holds a control token, so this is the end of it.
            before = re.escape(trigger[:place]).replace("/", "\\/")
            rules.append(f"free: BEFORE {self._literal(trigger[place:])}\n")
            rules.append(f"BEFORE: /{ANY_TEXT}{before}/\n")
        else:
            # Lazy: it ends where the trigger first occurs.
            rules.append(f"free[lazy]: TEXT {self._literal(trigger)}\n")
        kinds = _any_call(tools).split(" | ")
        rules += [f"marked_{kind}: free {kind}\n" for kind in kinds]
        ends = " | ".join(["TEXT", *(f"marked_{kind}" for kind in kinds if kind == "last")])
        if "calls" not in kinds:
            return self._write(ends, rules)
        return self._write(
            f"marked_calls* ({ends})" if parallel else f"marked_calls | {ends}", rules
        )

    def form(self, content_form: StructuredOutputsParams) -> StructuredOutputsParams | None:
        """An answer of the form that the content must have, once the model has thought.

        None where it can't be written as part of a larger grammar: a grammar of the client's own.
        """
        rules = self._form_rules(content_form)
        return None if rules is None else self._write("answer", rules)

    def calls_or_form(
        self,
        syntax: CallSyntax,
        tools: Sequence[Tool],
        content_form: StructuredOutputsParams,
        *,
        parallel: bool,
    ) -> StructuredOutputsParams | None:
        """Calls, or an answer of the form that the content must have. None as in `form`."""
        rules = self._form_rules(content_form)
        if rules is None:
            return None
        calls = self._call_rules(syntax, tools, parallel, "")
        return self._write(f"{_any_call(tools)} | answer", [*calls, *rules])

    def _write(self, body: str, rules: Iterable[str]) -> StructuredOutputsParams:
        lines = [f"start: {self._thought()} ({body})\n", *rules, f"TEXT: /{ANY_TEXT}/\n"]
        if self.reasoning is not None:
            begin, end = self.reasoning.begin, self.reasoning.end
            if self._special_in(end) == 0:
                ending = f"thought_end: TEXT {self._literal(end)}\n"
            else:
                ending = f"thought_end[lazy]: TEXT {self._literal(end)}\n"
            lines += [
                f"thought: {self._literal(begin)} thought_end SPACE?\n",
                ending,
                f"SPACE: {_THOUGHT_SPACE}\n",
            ]
        return StructuredOutputsParams(grammar="".join(lines))

    def _thought(self) -> str:
        if self.reasoning is None:
            return ""
        return "thought_end SPACE?" if self.reasoning.open_already else "thought?"

    def _call_rules(
        self, syntax: CallSyntax, tools: Sequence[Tool], parallel: bool, trigger: str
    ) -> list[str]:
        """Rules for `calls` and `last`, of which the trigger has been written already.

        `last` are the calls that end an answer.
        """
        rules = self._last_rules(syntax, [tool for tool in tools if tool.grammar], trigger)
        tools = [tool for tool in tools if not tool.grammar]
        if not tools:
            return rules
        for place, tool in enumerate(tools):
            schema = _arguments_schema(tool.parameters) if tool.checked else _ANY_OBJECT
            head = self._head(syntax.head, tool)
            rules.append(f"call{place}: {head} args{place} {self._literal(syntax.tail)}\n")
            if syntax.members is None:
                rules.append(f"args{place}: {json_rule(schema)}\n")
            else:
                rules += member_rules(
                    f"args{place}",
                    schema,
                    syntax.members,
                    literal=self._literal,
                    special_in=self._special_in,
                )
            if trigger and not syntax.begin:
                rest = self._head(syntax.head.removeprefix(trigger), tool)
                rules.append(f"first{place}: {rest} args{place} {self._literal(syntax.tail)}\n")
        count = range(len(tools))
        call = f"call: {' | '.join(f'call{place}' for place in count)}\n"
        if _NUMBER in syntax.head:
            call += f"{_NUMBER}: /0|[1-9][0-9]{{0,2}}/\n"
        first = "call"
        if trigger and not syntax.begin:
            first = "first"
            call += f"first: {' | '.join(f'first{place}' for place in count)}\n"
        more = ""
        if parallel and syntax.separator is not None:
            more = f"({self._literal(syntax.separator)} call)*"
        begin = self._literal(syntax.begin.removeprefix(trigger)) if syntax.begin else ""
        end = self._literal(syntax.end) if syntax.end else ""
        return [*rules, call, f"calls: {begin} {first} {more} {end}\n"]

    def _head(self, head: str, tool: Tool) -> str:
        """What stands before a call's arguments; the model counts its calls by itself."""
        parts = (part.replace("NAME", tool.name) for part in head.split(_NUMBER))
        return f" {_NUMBER} ".join(map(self._literal, parts))

    def _last_rules(self, syntax: CallSyntax, tools: Sequence[Tool], trigger: str) -> list[str]:
        """Rules for one call of tools that take a text with a grammar."""
        if not tools:
            return []
        before = syntax.begin + syntax.head_of_text
        rules = []
        for place, tool in enumerate(tools):
            head = before.replace("NAME", tool.name).removeprefix(trigger)
            rules.append(f"last{place}: {self._literal(head)} text{place}\n")
            # A grammar of its own: the names of its rules don't meet the others'.
            rules.append(f"text{place}: %lark {{\n{tool.grammar}\n}}\n")
        return [*rules, f"last: {' | '.join(f'last{place}' for place in range(len(tools)))}\n"]

    def _form_rules(self, content_form: StructuredOutputsParams) -> list[str] | None:
        begin = f"answer: {self._literal(self.answer_begin)} form\n"
        match content_form.kind:
            case "json":
                assert isinstance(content_form.json, str)
                schema = json.loads(content_form.json)
                return [begin, f"form: {json_rule(schema)}\n"] if isinstance(schema, dict) else None
            case "json_object":
                return [begin, f"form: {json_rule({'type': 'object'})}\n"]
            case "choice":
                assert content_form.choice is not None
                return [begin, f"form: {' | '.join(map(self._literal, content_form.choice))}\n"]
            case _:
                return None

    def _trigger(self, syntax: CallSyntax) -> str:
        """What a block of calls begins with, whichever tool it calls."""
        text = syntax.begin or syntax.head.partition("NAME")[0]
        for special in self.special_tokens:
            if text.startswith(special):
                return special
        end = text.find(">")
        return text[: end + 1] if end >= 0 else text

    def _special_in(self, text: str) -> int:
        """Where in a text the first control token begins; -1 where it has none."""
        places = [place for special in self.special_tokens if (place := text.find(special)) >= 0]
        return min(places, default=-1)

    def _literal(self, text: str) -> str:
        return lark_literal(text, self.special_tokens)


def _any_call(tools: Sequence[Tool]) -> str:
    """The rules, as alternatives, of which calls of these tools are made."""
    kinds = {"last" if tool.grammar else "calls" for tool in tools}
    return " | ".join(sorted(kinds))


def _arguments_schema(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function has the parameters it has: schemas that leave that open are closed."""
    schema: dict[str, Any] = closed(dict(parameters))
    combined = {"$ref", "allOf"} | (set() if "properties" in schema else {"anyOf", "oneOf"})
    if not schema.keys() & combined and schema.get("additionalProperties") is None:
        schema["additionalProperties"] = False
    return schema
