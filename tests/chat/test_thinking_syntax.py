"""Who bounds thinking tells it from the answer with every token as the answer's parser does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.chat.event_writer import EventWriter
from caudal.chat.harmony import HARMONY
from caudal.chat.message_format import MESSAGE, MessageFormat
from caudal.chat.messages import MessagesParser
from caudal.chat.muse import MUSE_GLIMMER
from caudal.chat.parser import AnswerParser, MarkedAnswerParser
from caudal.chat.reasoning import REASONING_FORMATS, ReasoningSplitter
from caudal.engine.thinking import ThinkingLimit, ThinkingMarkers, ThinkingMessages, ThinkingSyntax
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.grammars.thinking import limit_thinking, reader_of

VISIBLE, HIDDEN = "<|seen|>", "<|unseen|>"
ANYTHING = [" ", "\n", "\t", "\u2003", "\u3000", "\x85", "a", "é", "🦙", "\ufffd", VISIBLE, HIDDEN]


class Pieces:
    """A tokenizer whose tokens are the bytes of some texts, the texts and parts of them."""

    vocab_size = 0

    def __init__(self, texts: Sequence[str]) -> None:
        pieces: dict[bytes, None] = dict.fromkeys(text.encode() for text in texts)
        for text in texts:
            data = text.encode()
            cuts = {len(data) // 3, len(data) // 2, len(data) - 1} if len(data) < 99 else set()
            pieces |= dict.fromkeys(part for at in cuts for part in (data[:at], data[at:]) if part)
        pieces |= dict.fromkeys((b"\xe2", b"\xe2\x80", b"\x80", b"\xff", b"<", b">"))
        self.pieces = list(pieces)
        self.vocab_size = len(self.pieces)

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def is_control(self, token: int) -> bool:
        return self.pieces[token] in (VISIBLE.encode(), HIDDEN.encode())

    def plain_text(self, token: int) -> str | None:
        return None

    def encode(self, text: str, **_: bool) -> list[int]:
        return [self.pieces.index(text.encode())]


def marked(name: str, *, open_already: bool) -> tuple[ThinkingSyntax, Callable[[], AnswerParser]]:
    form = REASONING_FORMATS[name]

    def parser() -> AnswerParser:
        splitter = ReasoningSplitter(form, open_already=open_already)
        return MarkedAnswerParser(splitter, None, EventWriter(str, live=False))

    syntax = ThinkingMarkers(begins=form.begins, end=form.end, open_already=open_already)
    return syntax, parser


def messages(
    form: MessageFormat, prompt_end: str, *, with_calls: bool
) -> tuple[ThinkingSyntax, Callable[[], AnswerParser]]:
    def parser() -> AnswerParser:
        return MessagesParser(
            form,
            EventWriter(lambda: "id", live=False),
            tools={} if with_calls else None,
            with_reasoning=True,
            live=False,
            prompt_end=prompt_end,
        )

    return form.thinking(with_calls=with_calls, prompt_end=prompt_end), parser


CASES = [
    (marked(name, open_already=open_already), [*form.begins, form.end, *ANYTHING])
    for name, form in REASONING_FORMATS.items()
    for open_already in (False, True)
]
BEGIN = "<|channel|>"
HEADERS = {
    HARMONY: ["analysis", "analysis2", "final", "commentary", "to=functions.get", "to=functions."],
    MUSE_GLIMMER: [
        "to=self",
        "to=selfish",
        "to=user",
        "to=users",
        "to=get",
        "to=",
        "self",
        "assistant",
    ],
}
PROMPT_ENDS = {
    HARMONY: ("", f"{BEGIN}analysis{MESSAGE}Hm", BEGIN),
    MUSE_GLIMMER: ("", f" to=self{MESSAGE}Hm", " to="),
}
CASES += [
    (
        messages(form, prompt_end, with_calls=with_calls),
        [*form.markers, form.thought_end, *headers, "x" * 500, "é" * 505, *ANYTHING],
    )
    for form, headers in HEADERS.items()
    for prompt_end in PROMPT_ENDS[form]
    for with_calls in (False, True)
]
THOUGHTS = {HARMONY.ends: [BEGIN, "analysis", MESSAGE], MUSE_GLIMMER.ends: ["to=", "self", MESSAGE]}


def follow(case: int, tokenizer: Any, tokens: Sequence[int]) -> list[bool]:
    """Whether the model thinks, before the answer and after each token: both say the same."""
    (syntax, new_parser), _ = CASES[case]
    visible = frozenset({tokenizer.pieces.index(VISIBLE.encode())})
    limit = ThinkingLimit(max_tokens=9, syntax=syntax, visible_tokens=visible)
    grammar = limit_thinking(limit, tokenizer, None)
    reader, parser = reader_of(syntax), new_parser()
    detokenizer = IncrementalDetokenizer(tokenizer, visible_tokens=visible)
    read = 0
    thinking = [reader.thinking]
    assert reader.thinking is parser.in_reasoning(0)
    for token in tokens:
        twin = copy.copy(reader)
        reader.read(grammar.bytes_of(token))
        text = detokenizer.push(token)
        parser.push(text)
        read += len(text)
        thinking.append(reader.thinking)
        assert reader.thinking is parser.in_reasoning(read)
        twin.read(grammar.bytes_of(token))
        assert twin.thinking is reader.thinking
    return thinking


@pytest.mark.parametrize("case", range(len(CASES)))
@settings(max_examples=40)
@given(data=st.data())
def test_thinking_is_told_as_the_parser_tells_it(case: int, data: st.DataObject) -> None:
    _, texts = CASES[case]
    tokenizer = Pieces(texts)
    whole = st.sampled_from([tokenizer.pieces.index(text.encode()) for text in texts])
    part = st.integers(0, tokenizer.vocab_size - 1)
    follow(case, tokenizer, data.draw(st.lists(whole | part, max_size=14)))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_thinking_begins_and_ends(case: int) -> None:
    (syntax, _), texts = CASES[case]
    tokenizer = Pieces(texts)
    answer = ["\u2003", *texts[:1], HIDDEN, "a", "é", syntax.ending, "a"]
    if isinstance(syntax, ThinkingMessages):
        begin = THOUGHTS[syntax.ends]
        begin = begin[len(begin) if MESSAGE in syntax.begun else bool(syntax.begun) :]
        answer = [*begin, HIDDEN, "a", "é", syntax.ending, "a"]
    tokens = [tokenizer.pieces.index(text.encode()) for text in answer]
    thinking = follow(case, tokenizer, tokens)
    assert thinking[-6:] == [True, True, True, True, False, False]
