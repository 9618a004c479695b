"""`allowed_token_ids` and `bad_words`, alone and around a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from caudal import SamplingParams
from caudal.errors import ParameterError
from caudal.grammars.token_rules import with_token_rules
from support.fake_executor import allows
from support.fake_grammar import SlotGrammar
from support.fake_model import END, ByteTokenizer

TOKENIZER: Any = ByteTokenizer()
EVERYTHING = set(range(ByteTokenizer.vocab_size))


def matcher(inner: SlotGrammar | None = None, **params: Any) -> Any:
    grammar = with_token_rules(SamplingParams(**params), TOKENIZER, inner)
    assert grammar is not None
    return grammar.matcher()


def allowed(state: Any) -> set[int]:
    mask = state.allowed()
    return {token for token in EVERYTHING if allows(mask, token)}


def slots(*texts: str) -> SlotGrammar:
    return SlotGrammar([text.encode() for text in texts], ByteTokenizer.vocab_size)


def say(state: Any, text: str) -> Any:
    state.accept(list(text.encode()))
    return state


def test_without_rules_the_grammar_stays_as_it_is():
    inner = slots("a")
    assert with_token_rules(SamplingParams(), TOKENIZER, None) is None
    assert with_token_rules(SamplingParams(), TOKENIZER, inner) is inner


def test_only_the_allowed_ids_may_follow_and_the_end_only_if_it_is_one():
    assert allowed(matcher(allowed_token_ids=[97, 98, 98])) == {97, 98}
    assert allowed(matcher(allowed_token_ids=[97, END])) == {97, END}


@pytest.mark.parametrize("token", [-1, ByteTokenizer.vocab_size])
def test_ids_that_do_not_exist_are_refused(token: int):
    with pytest.raises(ParameterError, match=f"allowed_token_ids has token id {token}"):
        matcher(allowed_token_ids=[97, token])


def test_only_the_token_that_completes_a_bad_word_is_banned():
    state = matcher(bad_words=["cat", "x"])
    assert EVERYTHING - allowed(state) == {ord("x")}
    say(state, "ca")
    assert EVERYTHING - allowed(state) == {ord("x"), ord("t")}
    say(state, "ca")
    assert EVERYTHING - allowed(state) == {ord("x"), ord("t")}
    say(state, "n")
    assert EVERYTHING - allowed(state) == {ord("x")}


def test_words_that_share_their_beginning_are_told_apart():
    state = say(matcher(bad_words=["cat", "cab", "scar"]), "ca")
    assert EVERYTHING - allowed(state) == {ord("t"), ord("b")}
    state = say(matcher(bad_words=["cat", "cab", "scar"]), "sca")
    assert EVERYTHING - allowed(state) == {ord("t"), ord("b"), ord("r")}


def test_a_twin_remembers_what_was_said():
    state = say(matcher(bad_words=["no"]), "n")
    twin = state.fork()
    say(state, "a")
    assert ord("o") in allowed(state)
    assert ord("o") not in allowed(twin)


def test_rules_and_a_grammar_hold_together():
    state = matcher(slots("abc", "de"), allowed_token_ids=list(b"bce"), bad_words=["be"])
    assert allowed(state) == set(b"bc")
    twin = state.fork()
    assert allowed(say(state, "b")) == set()
    assert allowed(say(twin, "c")) == set(b"e")
    assert not twin.complete
    assert say(twin, "e").complete


def test_what_a_grammar_forces_stops_before_what_is_not_allowed():
    def forced(**params: Any) -> Sequence[int]:
        return matcher(slots("a", "b", "c", "xy"), **params).forced()

    assert bytes(forced(bad_words=["q"])) == b"abc"
    assert bytes(forced(bad_words=["bc"])) == b"ab"
    assert bytes(forced(bad_words=["b"])) == b"a"
    assert bytes(forced(allowed_token_ids=list(b"ab"))) == b"ab"
    assert matcher(bad_words=["q"]).forced() == ()


@pytest.mark.parametrize(
    ("param", "value"), [("allowed_token_ids", [*b"xy"]), ("bad_words", ["a"])]
)
def test_rules_that_leave_nothing_to_begin_with_are_refused(param: str, value: Any):
    with pytest.raises(ParameterError, match=f"{param} leaves no token that") as caught:
        matcher(slots("a"), **{param: value})
    assert caught.value.param == param
