from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from caudal.service.stop_strings import StopMatcher
from support.text_search import search

# Few letters, so that partial and overlapping matches are common.
texts = st.text(alphabet="abñ", max_size=30)
stops = st.lists(st.text(alphabet="abñ", min_size=1, max_size=5), max_size=4)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


@given(texts, stops, st.lists(st.integers(0, 30), max_size=8))
def test_any_cutting_finds_what_a_search_of_the_whole_text_finds(text, stop, cuts):
    matcher = StopMatcher(stop)
    read = 0
    found = None
    for piece in pieces_of(text, cuts):
        match = matcher.feed(piece)
        if match is not None:
            found = (read + match[0], match[1])
            break
        read += len(piece)
    assert found == search(text, stop)


@given(texts, stops)
def test_holds_back_exactly_what_may_become_a_stop_string(text, stop):
    if search(text, stop) is not None:
        return
    matcher = StopMatcher(stop)
    assert matcher.feed(text) is None
    candidates = [
        length for word in stop for length in range(1, len(word)) if text.endswith(word[:length])
    ]
    assert matcher.held_back == max(candidates, default=0)


def test_a_failed_match_may_contain_the_beginning_of_another():
    matcher = StopMatcher(["aab"])
    assert matcher.feed("aaa") is None
    assert matcher.held_back == 2
    assert matcher.feed("b!") == (1, "aab")


def test_without_stop_strings_nothing_is_held_back():
    matcher = StopMatcher([])
    assert matcher.feed("anything") is None
    assert matcher.held_back == 0


def test_a_very_long_stop_string_costs_time_in_proportion_only():
    matcher = StopMatcher(["a" * 200_000 + "b"])
    for _ in range(400):
        assert matcher.feed("a" * 1000) is None
    assert matcher.held_back == 200_000
