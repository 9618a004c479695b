from __future__ import annotations

import re

import pytest

from caudal.regex_dialect import check_pattern


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
    check_pattern(pattern)


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
    ],
)
def test_what_is_a_mistake_elsewhere_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_pattern(pattern)
