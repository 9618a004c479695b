"""What readers of tool calls are made of: characters in, parts of calls out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from caudal.chat.conversation import Tool

MAX_NAME = 256
"""Longest text that is still taken for a tool's name, or for what stands around one."""


class BrokenCallError(Exception):
    """The text is no call, as the character that was just read shows."""


@dataclass(frozen=True, slots=True)
class CallName:
    """A call begins; its tool's name."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """The call is complete. Yielded right after its last character, before another is read."""


CallPart = CallName | CallArguments | CallDone

T = TypeVar("T")
Reading = Generator[CallPart | None, str, T]
"""Yields None to be sent the next character ("" once, at the end of the text), or a part of a call.

Raises `BrokenCallError` where the text is no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a reader may want to know.

    Attributes:
        tools: The tools on offer, by name.
        marker: The text that made the reader start; "" where a character did.
        live: Whether arguments are known to be valid, so that their parts may be yielded while they
            are read.
    """

    tools: Mapping[str, Tool]
    marker: str = ""
    live: bool = False

    @property
    def bare(self) -> bool:
        """Whether nothing marked the call, so that it may as well be an answer that looks alike."""
        return not self.marker

    def takes_plain_text(self, name: str | None) -> bool:
        """Whether a grammar sees to it that calls of this tool have a text as it is."""
        tool = self.tools.get(name or "")
        return self.live and tool is not None and tool.grammar is not None

    def schemas_of(self, name: str) -> Mapping[str, Any]:
        """What each of a tool's arguments may be; nothing of a tool that isn't on offer."""
        tool = self.tools.get(name)
        return {} if tool is None else tool.properties

    def check_name(self, name: object) -> str:
        """The name, if it can be a tool's.

        Raises:
            BrokenCallError: It can't. In unmarked text only tools on offer can.
        """
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise BrokenCallError
        if self.bare and name not in self.tools:
            raise BrokenCallError
        return name


class Chars:
    """The characters sent to a reader, with one of lookahead.

    Attributes:
        peeked: The one that has been looked at.
        to_end: Whether what is being read ends only with the text.
    """

    def __init__(self) -> None:
        self.peeked: str | None = None
        self.to_end = False

    def take(self) -> Reading[str]:
        """The next character; "" at the end."""
        if self.peeked is not None:
            taken, self.peeked = self.peeked, None
            return taken
        return (yield None)

    def peek(self) -> Reading[str]:
        """The next character, which is still to be taken."""
        if self.peeked is None:
            self.peeked = yield None
        return self.peeked

    def space(self) -> Reading[str]:
        """Take white space; returns the next character, which is still to be taken."""
        while (char := (yield from self.peek())) and char.isspace():
            self.peeked = None
        return char

    def literal(self, text: str) -> Reading[None]:
        """Take exactly this text."""
        for expected in text:
            if (yield from self.take()) != expected:
                raise BrokenCallError

    def another(self, end: str) -> Reading[bool]:
        """Behind a member: take white space, and the comma before another member, or `end`.

        Returns:
            Whether another member follows.
        """
        yield from self.space()
        char = yield from self.take()
        if char not in (",", end):
            raise BrokenCallError
        return char != end

    def until(self, end: str, limit: int = MAX_NAME) -> Reading[str]:
        """Take text through `end`; returns what was before it, at most `limit` characters."""
        text, _ = yield from self.until_one_of((end,), limit)
        return text

    def until_one_of(
        self, ends: tuple[str, ...], limit: int = MAX_NAME
    ) -> Reading[tuple[str, str]]:
        """Take text through the first of `ends`; returns what was before it, and which it was."""
        text: list[str] = []
        last = {end[-1] for end in ends}
        longest = max(map(len, ends))
        while True:
            char = yield from self.take()
            if not char or len(text) >= limit + longest:
                raise BrokenCallError
            text.append(char)
            if char in last:
                behind = "".join(text[-longest:])
                for end in ends:
                    if behind.endswith(end):
                        return "".join(text[: -len(end)]), end

    def until_space_or(self, char: str, limit: int = MAX_NAME) -> Reading[str]:
        """White space, and the text up to more of it or to `char`, which are still to be taken."""
        yield from self.space()
        text: list[str] = []
        while (following := (yield from self.peek())) != char and not following.isspace():
            if not following or len(text) >= limit:
                raise BrokenCallError
            text.append((yield from self.take()))
        return "".join(text)

    def optional(self, text: str) -> Reading[None]:
        """Take white space and then the text, if the next character begins it; else only space.

        Where all text ends within it, that is its end.
        """
        if (yield from self.space()) != text[0]:
            return
        for expected in text:
            char = yield from self.take()
            if not char:
                return
            if char != expected:
                raise BrokenCallError


Reader = Callable[[Chars, CallContext], Reading[None]]
"""Reads what follows a format's marker: one call, or all calls up to the end of its block."""


def whole_calls(read: Reader, text: str, context: CallContext) -> tuple[list[CallPart], str]:
    """The parts of the calls that a text begins with, and what of it belongs to none of them."""
    chars = Chars()
    reading = read(chars, context)
    whole: list[CallPart] = []
    parts: list[CallPart] = []
    end = place = 0
    try:
        next(reading)
        for place, char in enumerate((*text, ""), 1):
            part = reading.send(char)
            while part is not None:
                parts.append(part)
                if isinstance(part, CallDone):
                    whole += parts
                    parts.clear()
                    end = place
                part = next(reading)
    except StopIteration:
        end = place - len(chars.peeked or "")
    except BrokenCallError:
        pass
    return whole, text[end:]
