from __future__ import annotations

import re

import pytest

from caudal.grammars.regex_dialect import rust_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "a*?b+?c??d{2}?e{2,}?f{2,3}?",
        r"\d{3}-\d{4}",
        r"\^\$\\\.\*\+\?\(\)\[\]\{\}\|\/",
        r"\p{L}+\u00e9\x41\bword\B",
        r"[*+?]{2}[]*+][^]**]",
        r"[a\]*+]+",
        r"\*+\++\?+",
        "(a*)*",
        "a{b}*",
        re.escape("a-b c#d&e~f\n\t" + "!\"%',/:;<=>@_`"),
    ],
)
def test_what_every_dialect_takes_passes(pattern: str) -> None:
    rust_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "rust"),
    [
        ("a*?[b-d]{2}.", "a*?[b-d]{2}."),
        ("[a-z&&[^b]]", r"[a-z\&\&\[\^b]]"),
        ("[a--b~~c]", r"[a-\-b\~\~c]"),
        ("[+--]", r"[+-\-]"),
        ("[-a-]", r"[\-a\-]"),
        (r"[\d-x]", r"[\d\-x]"),
        (r"[\w.-]", r"[\w.\-]"),
        ("[]a]", r"[\]a]"),
        ("[^]a]", r"[^\]a]"),
        ("x[^]*y", r"x[\s\S]*y"),
        ("x[]", r"x[^\s\S]"),
        (r"\cA[\cj\b]", r"\x01[\x0a\x08]"),
        (r"\ud83d\uDE00\u0041", r"\u{1f600}\u0041"),
        (r"\0\/\p{L}[\p{Lu}-]", r"\x00\/\p{L}[\p{Lu}\-]"),
    ],
)
def test_sets_and_escapes_are_written_for_rust(pattern: str, rust: str) -> None:
    assert rust_pattern(pattern) == rust


def test_a_dot_is_no_line_end_in_ecma() -> None:
    assert rust_pattern(r"a.\.[.]", ecma=True) == r"a[^\n\r\u2028\u2029]\.[.]"


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("foo**", r"at 4: \*"),
        ("a+*", "at 2"),
        ("a{2}{3}", "at 4"),
        ("a???", "at 3"),
        ("[*]**", "at 4"),
        (r"\***", "at 3"),
        (r"\!", "write ! instead"),
        (r"ab[c\@]", "at 4"),
        (r"a\€", "write € instead"),
        ("[[:alpha:]]", r"\[:alpha:\] at 1"),
        (r"\ud83d", "surrogate"),
    ],
)
def test_what_is_a_mistake_elsewhere_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        rust_pattern(pattern)
