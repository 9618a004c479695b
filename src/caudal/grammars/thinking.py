"""A bound on how long a model thinks: at the last token of its budget, its thinking is ended.

This is a grammar for the engine, around the one that the answer is held to, if any. It allows
everything, until the budget is spent; what ends thinking is then the only thing that may follow.
Thinking is told from the answer by the tokens' bytes, as a chat's `AnswerParser` tells it by their
text: all that matters is ASCII, so the two come to the same with every token.
"""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from caudal.engine.grammar import Grammar, Matcher
from caudal.engine.thinking import ThinkingLimit, ThinkingMarkers, ThinkingMessages
from caudal.formats.tokenizer import Tokenizer


def limit_thinking(
    limit: ThinkingLimit, tokenizer: Tokenizer, inner: Grammar | None
) -> LimitedThinking:
    """A grammar that bounds thinking.

    Args:
        limit: The bound.
        tokenizer: The model's.
        inner: The grammar that the whole answer is held to besides.
    """
    ending = tokenizer.encode(limit.syntax.ending, add_special=False, parse_special=True)
    everything = _mask((1 << tokenizer.vocab_size) - 1, tokenizer)
    return LimitedThinking(limit, tuple(ending), everything, tokenizer, inner)


@dataclass(frozen=True, slots=True)
class LimitedThinking:
    """A grammar (see `caudal.engine.grammar.Grammar`).

    Attributes:
        limit: The bound.
        ending: The tokens that end thinking; at least one.
        everything: The mask of all tokens.
        tokenizer: Knows the tokens' bytes.
        inner: The grammar that the whole answer is held to besides.
    """

    limit: ThinkingLimit
    ending: Sequence[int]
    everything: bytes
    tokenizer: Tokenizer
    inner: Grammar | None = None

    def matcher(self) -> ThinkingMatcher:
        """A matcher at the answer's start."""
        return ThinkingMatcher(self, None if self.inner is None else self.inner.matcher())

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text: nothing, where it is a control token that isn't seen."""
        if self.tokenizer.is_control(token) and token not in self.limit.visible_tokens:
            return b""
        return self.tokenizer.token_bytes(token)


class ThinkingMatcher:
    """How much of its budget a sequence has spent (see `caudal.engine.grammar.Matcher`)."""

    def __init__(self, grammar: LimitedThinking, inner: Matcher | None) -> None:
        self._grammar = grammar
        self._inner = inner
        self._reader = reader_of(grammar.limit.syntax)
        self._spent = 0
        self._pending: Sequence[int] = ()  # what must follow to end thinking
        self._over = False
        self._end_if_spent()

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._inner is not None and self._inner.complete

    def allowed(self) -> bytes:
        """The tokens that may come next; see `Matcher.allowed`."""
        if self._pending:
            return _mask(1 << self._pending[0], self._grammar.tokenizer)
        return self._grammar.everything if self._inner is None else self._inner.allowed()

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens; see `Matcher.accept`."""
        if self._inner is not None:
            self._inner.accept(tokens)
        for token in tokens:
            if self._over:
                return
            self._count(token)

    def forced(self) -> Sequence[int]:
        """The tokens that follow in any case; see `Matcher.forced`."""
        if self._pending:
            return self._pending
        return () if self._inner is None else self._inner.forced()

    def fork(self) -> ThinkingMatcher:
        """A second matcher at the same place."""
        twin = copy.copy(self)
        twin._inner = None if self._inner is None else self._inner.fork()
        twin._reader = copy.copy(self._reader)
        return twin

    def _count(self, token: int) -> None:
        if self._pending:
            self._pending = self._pending[1:]
            self._over = not self._pending
            return
        was_thinking = self._reader.thinking
        self._reader.read(self._grammar.bytes_of(token))
        if was_thinking and not self._reader.thinking:
            self._over = True  # models think before they answer, and only then
            return
        self._spent += was_thinking
        self._end_if_spent()

    def _end_if_spent(self) -> None:
        if self._reader.thinking and self._spent >= self._grammar.limit.max_tokens:
            self._pending = self._grammar.ending


class ThinkingReader(Protocol):
    """Follows an answer's bytes. A shallow copy goes on from the same place on its own.

    Attributes:
        thinking: Whether the answer is within thinking.
    """

    thinking: bool

    def read(self, data: bytes) -> None:
        """The answer goes on by these."""


def reader_of(syntax: ThinkingMarkers | ThinkingMessages) -> ThinkingReader:
    """What follows an answer from its start."""
    if isinstance(syntax, ThinkingMarkers):
        return _MarkersReader(syntax)
    return _MessagesReader(syntax)


class _MarkersReader:
    """Tells what is between two markers, before everything else."""

    def __init__(self, syntax: ThinkingMarkers) -> None:
        self._begins = sorted(syntax.begins, key=len, reverse=True)
        self._end = syntax.end.encode()
        self._unread = b""
        self._is_start = not syntax.open_already
        self.thinking = syntax.open_already

    def read(self, data: bytes) -> None:
        """See `ThinkingReader`."""
        if self._is_start:
            self._look_for_begin(self._unread + data)
        elif self.thinking:
            self._look_for_end(self._unread + data)

    def _look_for_begin(self, data: bytes) -> None:
        text, rest = _decode(data)
        text = text.lstrip()
        self._unread = text.encode() + rest
        for begin in self._begins:
            if text.startswith(begin):
                self._is_start = False
                self.thinking = True
                self._look_for_end(self._unread[len(begin) :])
                return
            if begin.startswith(text):
                return
        self._is_start = False

    def _look_for_end(self, text: bytes) -> None:
        self.thinking = self._end not in text
        self._unread = _tail(text, self._end)


class _MessagesReader:
    """Tells the messages whose header says that they are thinking."""

    def __init__(self, syntax: ThinkingMessages) -> None:
        self._start = syntax.start.encode()
        self._body = syntax.body.encode()
        self._ends = [text.encode() for text in (*syntax.ends, syntax.start)]
        self._longest_end = max(self._ends, key=len)
        self._header_begins = syntax.header_begins
        self._max_header = syntax.max_header
        self._pattern = re.compile(syntax.pattern)
        self._state: Literal["between", "header", "body"] = "header"
        self._header = b""  # how the header being read begins; the answer's first by nothing
        self._unread = b""
        self.thinking = False
        self.read(syntax.begun.encode())

    def read(self, data: bytes) -> None:
        """See `ThinkingReader`."""
        self._unread += data
        while self._step():
            pass

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
        place = self._unread.find(self._start)
        if place < 0:
            self._unread = _tail(self._unread, self._start)
            return False
        self._unread = self._unread[place + len(self._start) :]
        self._header = self._start
        self._state = "header"
        return True

    def _read_header(self) -> bool:
        text = self._unread
        plain = not self._header and not self._may_be_header(text)
        place = text.find(self._body)
        if not plain and place >= 0 and self._is_short(text[:place], self._max_header):
            header = self._header + text[:place]
            self.thinking = self._pattern.match(header.decode(errors="replace")) is not None
            self._unread = text[place + len(self._body) :]
            self._state = "body"
            return True
        if plain or not self._is_short(text, self._max_header + len(self._body)):
            self._state = "body"  # of no message: an answer without a header
            return True
        return False

    def _read_body(self) -> bool:
        text = self._unread
        found = [(place, end) for end in self._ends if (place := text.find(end)) >= 0]
        if not found:
            self._unread = _tail(text, self._longest_end)
            return False
        place, end = min(found)
        self._unread = text[place:] if end == self._start else text[place + len(end) :]
        self._state = "between"
        self.thinking = False
        return True

    def _may_be_header(self, data: bytes) -> bool:
        text = _decode(data)[0].lstrip()
        return any(
            text.startswith(begin) or begin.startswith(text) for begin in self._header_begins
        )

    def _is_short(self, text: bytes, limit: int) -> bool:
        """Whether a header with this text has no more characters than so many."""
        limit -= len(self._header)
        return len(text) <= limit or len(_decode(text)[0]) <= limit


def _mask(tokens: int, tokenizer: Tokenizer) -> bytes:
    """A mask, as `Matcher.allowed` has it, of an integer with a bit for each token."""
    return tokens.to_bytes((tokenizer.vocab_size + 7) // 8, "little")


def _decode(data: bytes) -> tuple[str, bytes]:
    """The characters that are complete, and the beginning of one at the end."""
    text, used = codecs.utf_8_decode(data, "replace", False)
    return text, data[used:]


def _tail(text: bytes, marker: bytes) -> bytes:
    """As much of the end of a text without a marker as may be where the marker begins."""
    return text[max(0, len(text) - len(marker) + 1) :]
