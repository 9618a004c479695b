from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from caudal.engine.grammar import Grammar, Matcher
from caudal.engine.thinking import ThinkingLimit, ThinkingMarkers
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.thinking import limit_thinking
from caudal.structured_outputs import StructuredOutputsParams
from support.fake_executor import allows
from support.fake_model import ByteTokenizer

END = b"</think>"


def budget(tokens: int, *, open_already: bool = False, inner: Any = None) -> Grammar:
    tokenizer: Any = ByteTokenizer()
    syntax = ThinkingMarkers(begins=("<think>",), end=END.decode(), open_already=open_already)
    return limit_thinking(ThinkingLimit(max_tokens=tokens, syntax=syntax), tokenizer, inner)


def choices(matcher: Matcher) -> list[int]:
    mask = matcher.allowed()
    return [token for token in range(ByteTokenizer.vocab_size) if allows(mask, token)]


def accept_all(matcher: Matcher, text: bytes) -> None:
    for token in text:
        assert token in choices(matcher)
        matcher.accept([token])


def is_free(matcher: Matcher) -> bool:
    return len(choices(matcher)) == ByteTokenizer.vocab_size and not list(matcher.forced())


@pytest.mark.parametrize("at_once", [False, True])
def test_thinking_ends_at_the_last_token_of_its_budget(at_once: bool):
    matcher = budget(5).matcher()
    accept_all(matcher, b"<think>abcd")
    assert is_free(matcher)
    accept_all(matcher, b"e")
    assert list(matcher.forced()) == list(END)
    assert choices(matcher) == [END[0]]
    if at_once:
        matcher.accept(list(END))
    else:
        for token in END:
            assert choices(matcher) == [token]
            matcher.accept([token])
    assert is_free(matcher)
    accept_all(matcher, b"An answer that is longer than five, <think>with a marker.")
    assert is_free(matcher)
    assert not matcher.complete


def test_thinking_that_the_prompt_began():
    matcher = budget(3, open_already=True).matcher()
    accept_all(matcher, b"abc")
    assert list(matcher.forced()) == list(END)


@pytest.mark.parametrize("text", [b"<think>ab</think>", b"No thinking here.", b"<thi"])
def test_what_stays_within_its_budget_is_free(text: bytes):
    matcher = budget(30).matcher()
    accept_all(matcher, text)
    assert is_free(matcher)
    accept_all(matcher, b" and so on" * 9)
    assert is_free(matcher)


def test_a_character_of_several_tokens_counts_as_several():
    matcher = budget(3).matcher()
    accept_all(matcher, "<think>í".encode())
    assert is_free(matcher)
    accept_all(matcher, b"x")
    assert not is_free(matcher)


@pytest.mark.parametrize("before", [b"<think>abc", b"<think>abcde", b"<think>abcde</th"])
def test_a_fork_goes_on_from_the_same_place(before: bytes):
    matcher = budget(5).matcher()
    accept_all(matcher, before)
    twin = matcher.fork()
    assert choices(twin) == choices(matcher)
    assert list(twin.forced()) == list(matcher.forced())
    accept_all(matcher, bytes(list(matcher.forced()) or b"de</think>"))
    assert is_free(matcher)
    assert choices(twin) != choices(matcher) or before == b"<think>abc"


def test_the_answers_own_form_still_holds():
    tokenizer: Any = ByteTokenizer()
    form = StructuredOutputsParams(grammar='start: "<think>" /[a-z]*/ "</think>" ("yes" | "no")\n')
    inner = GrammarCompiler(tokenizer).compile_now(form)
    matcher = budget(4, inner=inner).matcher()
    said: list[int] = []

    def go_on(tokens: Sequence[int]) -> None:
        matcher.accept(tokens)
        said.extend(tokens)

    go_on(list(b"<think>"))
    for _ in range(4):
        go_on([ord("a")])
    go_on(list(matcher.forced()))
    assert choices(matcher) == [ord("n"), ord("y")]
    go_on([ord("n")])
    go_on(list(matcher.forced()) or [ord("o")])
    assert bytes(said) == b"<think>aaaa</think>no"
    assert matcher.complete
