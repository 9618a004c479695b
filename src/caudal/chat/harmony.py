"""gpt-oss's format, harmony: an answer is a row of messages, each for a channel.

`<|channel|>analysis<|message|>` thinks, `final` answers, and `commentary to=functions.NAME` calls.
The prompt ends with `<|start|>assistant`, so the answer begins within a message's header.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

from caudal.chat.calls.formats import CallSyntax
from caudal.chat.calls.json_calls import arguments_of
from caudal.chat.calls.reading import (
    BrokenCallError,
    CallArguments,
    CallDone,
    CallName,
)
from caudal.chat.event_writer import EventWriter
from caudal.chat.events import ChatEvent
from caudal.chat.markers import find_marker, held_back
from caudal.chat.parser import AnswerParser
from caudal.chat.reasoning import ENDLESS
from caudal.engine.thinking import ThinkingMessages

NAME = "openai"
"""In `--tool-parser`; in `--reasoning-parser`, `openai_gptoss` means the same."""

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)

EFFORTS = ("low", "medium", "high")

SYNTAX = CallSyntax(
    head=f"{CHANNEL}commentary to=functions.NAME {CONSTRAIN}json{MESSAGE}",
    tail="",
    separator=None,
    text_head=f"{CHANNEL}commentary to=functions.NAME{MESSAGE}",
)

REASONING_BEGIN = f"{CHANNEL}analysis{MESSAGE}"
REASONING_END = f"<|end|>{START}assistant"
"""How a grammar lets the model think before it calls."""

MAX_HEADER = 1024

_HEADER_BEGINS = (CHANNEL, START, MESSAGE, "to=functions.")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")

_ANALYSIS = (
    rf"(?:(?!{re.escape(CHANNEL)}\s*\w)[\s\S])*"  # the first channel that is named counts
    rf"{re.escape(CHANNEL)}\s*analysis(?!\w)"
)

_Body = Literal["content", "reasoning", "call"]


def thinking(*, with_calls: bool, prompt_end: str) -> ThinkingMessages:
    """How reasoning is told, for those who bound it: as by a `HarmonyParser` with reasoning."""
    calls = rf"(?![\s\S]*{_RECIPIENT.pattern})" if with_calls else ""
    return ThinkingMessages(
        start=START,
        body=MESSAGE,
        ends=ENDS,
        header_begins=_HEADER_BEGINS,
        max_header=MAX_HEADER,
        pattern=calls + _ANALYSIS,
        ending=REASONING_END,
        begun=_begun_header(prompt_end),
    )


def _begun_header(prompt_end: str) -> str:
    """Of a message that is to be continued, only the header matters: its text is not ours."""
    header, message, _ = prompt_end.rpartition(MESSAGE)
    return header + message if message else prompt_end


class HarmonyParser(AnswerParser):
    """An `AnswerParser` for harmony.

    Where a message begins and ends, whoever bounds thinking tells too, by bytes
    (`caudal.grammars.thinking`): the same rules there must come to the same with every token.

    Args:
        writer: Where content and calls go.
        with_calls: Whether calls are told; as content they are shown as they were written.
        with_reasoning: Whether reasoning is told; else it is content.
        live: See `CallContext`.
        plain_texts: Tools whose calls have a text as it is.
        only_calls: Whether a grammar allows nothing but calls, but for reasoning.
        prompt_end: The end of the prompt, from the header of the message that is to be written or
            continued.
    """

    def __init__(
        self,
        writer: EventWriter,
        *,
        with_calls: bool,
        with_reasoning: bool,
        live: bool,
        plain_texts: Collection[str] = (),
        only_calls: bool = False,
        prompt_end: str = "",
    ) -> None:
        self._unfinished = False
        self._only_calls = only_calls
        self._writer = writer
        self._with_calls = with_calls
        self._with_reasoning = with_reasoning
        self._live = live
        self._plain_texts = plain_texts
        self._text = ""
        self._state: Literal["between", "header", "body"] = "header"
        self._body: _Body = "content"
        self._header = ""
        self._call: list[str] = []
        self._read = 0
        self._spans: list[tuple[int, int]] = []  # of reasoning, in the text
        self._begin = 0  # of the message being read
        if prompt_end:
            self.push(_begun_header(prompt_end))
            self._read = self._begin = 0

    def push(self, text: str) -> list[ChatEvent]:
        """See `AnswerParser`."""
        self._text += text
        self._read += len(text)
        while self._step():
            pass
        return self._writer.take_events()

    def finish(self, *, cut: bool = False) -> list[ChatEvent]:
        """See `AnswerParser`."""
        if self._state == "header":
            header = self._header + self._text
            # A header that is cut short is no text, and so is the beginning of one in a grammar.
            if not self._only_calls and not (cut and header.lstrip().startswith(MARKERS)):
                self._content(header)
            self._unfinished = self._unfinished or _RECIPIENT.search(header) is not None
        elif self._state == "body":
            self._add_body(self._text)
            self._end_body(cut=cut)
        else:
            self._content(self._text)
        self._text = ""
        self._writer.finish()
        return self._writer.take_events()

    @property
    def unfinished(self) -> bool:
        """See `AnswerParser`."""
        return self._unfinished

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """See `AnswerParser`."""
        is_open = self._state == "body" and self._body == "reasoning"
        return [*self._spans, (self._begin, ENDLESS)] if is_open else self._spans

    def _content(self, text: str) -> None:
        if not self._only_calls:
            self._writer.content(text)

    def _step(self) -> bool:
        """Read up to the next marker; returns whether there may be more to read."""
        match self._state:
            case "between":
                return self._read_between()
            case "header":
                return self._read_header()
            case "body":
                return self._read_body()

    def _read_between(self) -> bool:
        found = find_marker(self._text, (START,))
        if found is None:
            free = len(self._text) - held_back(self._text, (START,))
            self._content(self._text[:free])
            self._text = self._text[free:]
            return False
        self._content(self._text[: found[0]])
        self._consume(found[0] + len(START))
        self._header = START
        self._state = "header"
        return True

    def _read_header(self) -> bool:
        plain = self._header == "" and not self._may_be_header(self._text)
        found = find_marker(self._text, (MESSAGE,))
        if not plain and found is not None and len(self._header) + found[0] <= MAX_HEADER:
            self._header += self._text[: found[0]]
            self._consume(found[0] + len(MESSAGE))
            self._begin_body()
            return True
        if plain or len(self._header) + len(self._text) > MAX_HEADER + len(MESSAGE):
            # Not harmony after all: an answer without a header.
            self._content(self._header)
            self._header = ""
            self._state = "body"
            self._body = "content"
            return True
        return False

    @staticmethod
    def _may_be_header(text: str) -> bool:
        stripped = text.lstrip()
        return any(
            stripped.startswith(begin) or begin.startswith(stripped) for begin in _HEADER_BEGINS
        )

    def _begin_body(self) -> None:
        channel = _CHANNEL.search(self._header)
        recipient = _RECIPIENT.search(self._header)
        self._state = "body"
        self._call.clear()
        if recipient is not None and self._with_calls:
            self._body = "call"
            if self._live:
                self._writer.part(CallName(recipient[1]))
        elif channel is not None and channel[1] == "analysis" and self._with_reasoning:
            self._body = "reasoning"
        else:
            self._body = "content"

    def _read_body(self) -> bool:
        markers = (*ENDS, START)
        found = find_marker(self._text, markers)
        if found is None:
            free = len(self._text) - held_back(self._text, markers)
            self._add_body(self._text[:free])
            self._text = self._text[free:]
            return False
        place, marker = found
        self._add_body(self._text[:place])
        self._consume(place if marker == START else place + len(marker))
        self._end_body()
        return True

    def _add_body(self, text: str) -> None:
        if not text:
            return
        if self._body == "reasoning":
            self._writer.reasoning(text)
        elif self._body == "content":
            self._content(text)
        else:
            self._call.append(text)
            if self._live:
                self._writer.part(CallArguments(text))

    def _end_body(self, *, cut: bool = False) -> None:
        if self._body == "reasoning":
            self._spans.append((self._begin, self._read - len(self._text)))
        elif self._body == "call":
            self._end_call("".join(self._call), cut=cut)
        self._begin = self._read - len(self._text)
        self._state = "between"
        self._header = ""

    def _end_call(self, body: str, *, cut: bool) -> None:
        recipient = _RECIPIENT.search(self._header)
        assert recipient is not None
        if self._live and recipient[1] in self._plain_texts:
            self._unfinished = cut
            if not cut:
                self._writer.part(CallDone())
            return
        try:
            # A model that calls without arguments may write none, but not where it was cut short.
            arguments = arguments_of(body.strip() or ("" if cut else "{}"))
        except BrokenCallError:
            self._unfinished = cut
            if not self._live:  # else it was cut short, and what there is has been sent
                self._content(self._header + MESSAGE + body)
            return
        if not self._live:
            self._writer.part(CallName(recipient[1]))
        if not self._live or not body:
            self._writer.part(CallArguments(arguments))
        self._writer.part(CallDone())

    def _consume(self, count: int) -> None:
        self._text = self._text[count:]
