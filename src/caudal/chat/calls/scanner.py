"""Finds the calls in an answer's text; everything else is content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from caudal.chat.calls.formats import ToolFormat
from caudal.chat.calls.reading import BrokenCallError, CallContext, CallDone, Chars, Reading
from caudal.chat.conversation import Tool
from caudal.chat.event_writer import EventWriter
from caudal.chat.markers import find_marker, held_back

CallsPlace = Literal["among", "instead", "only"]
"""Where calls may be: among text; instead of it, so that an answer that begins otherwise has none;
or that there is nothing but calls."""


class ToolScanner:
    """Reads text in pieces of any size.

    Args:
        tool_format: How calls are written.
        tools: The tools on offer, by name.
        writer: Where content and calls go.
        live: See `CallContext`.
        place: Where calls may be; all but "among" are a grammar's doing.

    Attributes:
        unfinished: Whether the text has ended within a call.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        tools: Mapping[str, Tool],
        writer: EventWriter,
        *,
        live: bool,
        place: CallsPlace = "among",
    ) -> None:
        self.unfinished = False
        self._place = place
        self._format = tool_format
        self._tools = tools
        self._writer = writer
        self._live = live
        self._text = ""
        self._at_start = bool(tool_format.bare)
        self._chars = Chars()
        self._reading: Reading[None] | None = None
        self._raw: list[str] = []  # what the reader has taken since the last complete call
        self._has_calls = False  # whether it has read one
        self._marker = ""  # that it began with
        self._is_text = False  # whether there was text that belongs to no call

    def push(self, text: str) -> None:
        """Read more text."""
        self._text += text
        while self._text:
            if self._reading is not None:
                self._read_call(self._reading)
            elif not self._search():
                return

    def finish(self, *, cut: bool = False) -> None:
        """The text has ended.

        Args:
            cut: Whether the model had not come to its end.
        """
        if self._reading is not None:
            self._end_call(self._reading, cut=cut)
        self._content(self._text)
        self._text = ""

    def _search(self) -> bool:
        """Look for a call's beginning; returns whether one was found."""
        if self._at_start:
            first = self._text.lstrip()[:1]
            if not first:
                return False
            self._at_start = False
            if first in self._format.bare:
                self._begin("")
                return True
        if self._place == "instead" and self._is_text:
            self._content(self._text)
            self._text = ""
            return False
        found = find_marker(self._text, self._format.begins)
        if found is None:
            free = len(self._text) - held_back(self._text, self._format.begins)
            self._content(self._text[:free])
            self._text = self._text[free:]
            return False
        place, marker = found
        self._content(self._text[:place])
        if self._place == "instead" and self._is_text:
            self._text = self._text[place:]
            return True
        self._text = self._text[place + len(marker) :]
        self._begin(marker)
        return True

    def _content(self, text: str) -> None:
        """What belongs to no call; where there is nothing else, it is what was cut short of one."""
        if self._place != "only":
            self._is_text = self._is_text or not (text == "" or text.isspace())
            self._writer.content(text)

    def _begin(self, marker: str) -> None:
        self._marker = marker
        self._chars = Chars()
        context = CallContext(tools=self._tools, marker=marker, live=self._live)
        self._reading = self._format.read(self._chars, context)
        self._raw = [marker]
        self._has_calls = False
        try:
            self._run(self._reading, None)
        except (StopIteration, BrokenCallError):  # pragma: no cover
            raise AssertionError("a reader must ask for a character first") from None

    def _read_call(self, reading: Reading[None]) -> None:
        for place, char in enumerate(self._text):
            self._raw.append(char)
            try:
                self._run(reading, char)
            except StopIteration:
                left = self._chars.peeked or ""
                self._text = left + self._text[place + 1 :]
                self._raw = self._raw[: len(self._raw) - len(left)]
                self._end_block()
                return
            except BrokenCallError:
                # The character that broke the call may begin another.
                self._raw.pop()
                self._abandon()
                self._text = self._text[place:]
                return
        self._text = ""

    def _end_call(self, reading: Reading[None], *, cut: bool) -> None:
        try:
            if not (cut and self._chars.to_end):  # what has no end mark isn't known to be complete
                self._run(reading, "")
        except StopIteration:
            self._end_block()
            return
        except BrokenCallError:
            pass  # or it asks for more than there is
        self.unfinished = True
        if self._live and self._marker:
            # A grammar vouches that this was to be a call: what there is of it is no text.
            self._raw.clear()
        self._abandon()

    def _run(self, reading: Reading[None], char: str | None) -> None:
        part = next(reading) if char is None else reading.send(char)
        while part is not None:
            self._writer.part(part)
            if isinstance(part, CallDone):
                self._raw.clear()
                self._has_calls = True
            part = next(reading)

    def _end_block(self) -> None:
        """A block has been read; without a call in it, it was none."""
        self._reading = None
        if not self._has_calls:
            self._content("".join(self._raw))

    def _abandon(self) -> None:
        self._reading = None
        if not self._writer.give_up():
            self._content("".join(self._raw))
