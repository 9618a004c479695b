"""Tells what a model thought from what it answered."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from caudal.chat.markers import find_marker, held_back


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning, which comes before anything else.

    Attributes:
        name: As in `--reasoning-parser`.
        begins: Texts that begin it; the first is the one to write.
        end: Ends it.
    """

    name: str
    begins: tuple[str, ...]
    end: str


_ALL = (
    ReasoningFormat("think", ("<think>",), "</think>"),
    ReasoningFormat("thinking", ("<thinking>",), "</thinking>"),
    ReasoningFormat("reasoning", ("<reasoning>",), "</reasoning>"),
    ReasoningFormat("mistral", ("[THINK]",), "[/THINK]"),
    ReasoningFormat("seed_oss", ("<seed:think>",), "</seed:think>"),
    ReasoningFormat("cohere", ("<|START_THINKING|>",), "<|END_THINKING|>"),
    ReasoningFormat("gemma4", ("<|channel>thought\n", "<|channel>"), "<channel|>"),
    ReasoningFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        "Here is my response:",
    ),
)

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {item.name: item for item in _ALL}
"""All formats but those whose answers are messages: see `caudal.chat.message_format`."""

ENDLESS = sys.maxsize
"""Where a span ends that goes on."""

Kind = Literal["content", "reasoning"]


class ReasoningSplitter:
    """Reads text in pieces of any size.

    Only what an answer begins with is reasoning: later on, a marker is text about markers. White
    space around reasoning is dropped.

    Args:
        reasoning_format: How reasoning is marked.
        open_already: Whether the prompt ends within reasoning.
    """

    def __init__(self, reasoning_format: ReasoningFormat, *, open_already: bool) -> None:
        self._format = reasoning_format
        self._state: Literal["start", "reasoning", "content"] = (
            "reasoning" if open_already else "start"
        )
        self._text = ""
        self._space = ""  # that may turn out to be at the end of the reasoning
        self._begun = False  # whether there was anything but white space
        self._read = 0
        self._reasoning_end = 0

    @property
    def reasoning_span(self) -> tuple[int, int]:
        """Where in the text reasoning begins and ends, markers included."""
        return 0, ENDLESS if self._state == "reasoning" else self._reasoning_end

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """The pieces of text that become certain, none empty."""
        self._text += text
        self._read += len(text)
        pieces: list[tuple[Kind, str]] = []
        if self._state == "start":
            self._look_for_begin()
        if self._state == "reasoning":
            self._read_reasoning(pieces)
        if self._state == "content":
            self._read_content(pieces)
        return pieces

    def finish(self) -> list[tuple[Kind, str]]:
        """The rest, now that the text has ended."""
        if self._state == "start":
            self._state = "content"
        pieces: list[tuple[Kind, str]] = []
        if self._state == "reasoning":
            self._add_reasoning(self._text, pieces)
        elif self._text:
            pieces.append(("content", self._text))
        return pieces

    def _look_for_begin(self) -> None:
        text = self._text.lstrip()
        for begin in sorted(self._format.begins, key=len, reverse=True):
            if text.startswith(begin):
                self._text = text[len(begin) :]
                self._state = "reasoning"
                return
            if begin.startswith(text):
                return
        self._state = "content"
        self._begun = True  # nothing is dropped: there was no reasoning

    def _read_reasoning(self, pieces: list[tuple[Kind, str]]) -> None:
        ends = (self._format.end,)
        found = find_marker(self._text, ends)
        if found is None:
            free = len(self._text) - held_back(self._text, ends)
            self._add_reasoning(self._text[:free], pieces)
            self._text = self._text[free:]
            return
        self._add_reasoning(self._text[: found[0]], pieces)
        self._text = self._text[found[0] + len(self._format.end) :]
        self._reasoning_end = self._read - len(self._text)
        self._state = "content"
        self._begun = False

    def _add_reasoning(self, text: str, pieces: list[tuple[Kind, str]]) -> None:
        text = self._space + text
        if not self._begun:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._begun = True
            pieces.append(("reasoning", kept))

    def _read_content(self, pieces: list[tuple[Kind, str]]) -> None:
        text, self._text = self._text, ""
        if not self._begun:
            text = text.lstrip()
        if text:
            self._begun = True
            pieces.append(("content", text))
