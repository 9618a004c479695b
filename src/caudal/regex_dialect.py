r"""Patterns mean the same here as where they were written, or are refused.

llguidance reads patterns with Rust's regex parser, which takes some that others don't: a second
quantifier after the first (`foo**`), and a backslash before any punctuation (`\!`). To ECMA-262
(JSON Schema's dialect, in its Unicode mode) these are mistakes, and to the one who wrote them
they are more likely that than meant.
"""

from __future__ import annotations

import re

_SYNTAX = "^$\\.*+?()[]{}|/"
# Written by Python's re.escape, which many patterns come from.
_HARMLESS = "-#&~ \t\n\r\v\f"

_PIECE = re.compile(
    r"\\(?P<escaped>.)"
    r"|(?P<quantifier>(?:[*+?]|\{\d+(?:,\d*)?\})\??)"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|.",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def check_pattern(pattern: str) -> None:
    """Check what llguidance would not.

    Raises:
        ValueError: Names the pattern and the place.
    """
    after_quantifier = False
    for piece in _PIECE.finditer(pattern):
        quantifier = piece["quantifier"]
        if quantifier is not None and after_quantifier:
            raise ValueError(
                f"pattern {_quoted(pattern)} repeats a repetition at {piece.start()}: "
                f"{_quoted(quantifier)}"
            )
        after_quantifier = quantifier is not None
        for escape in _ESCAPE.finditer(piece[0]):
            escaped = escape[1]
            if not (escaped.isalnum() or escaped in _SYNTAX or escaped in _HARMLESS):
                raise ValueError(
                    f"pattern {_quoted(pattern)} has an unknown escape at "
                    f"{piece.start() + escape.start()}: write {escaped} instead of \\{escaped}"
                )


def _quoted(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
