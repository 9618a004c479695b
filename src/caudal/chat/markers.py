"""Finding markers such as `<tool_call>` in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def find_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Where the first marker begins in the text, and which it is; None if there is none."""
    found = [(place, marker) for marker in markers if (place := text.find(marker)) >= 0]
    return min(found, default=None, key=lambda match: match[0])


def held_back(text: str, markers: Sequence[str]) -> int:
    """Characters at the text's end that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        start = max(0, len(text) - len(marker) + 1)
        place = text.find(marker[0], start)
        while place >= 0:
            if marker.startswith(text[place:]):
                longest = max(longest, len(text) - place)
                break
            place = text.find(marker[0], place + 1)
    return longest
