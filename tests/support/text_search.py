"""What stop strings mean, said as simply as can be."""

from __future__ import annotations


def search(text: str, stop: list[str]) -> tuple[int, str] | None:
    """The same question, asked of the whole text: the first prefix that ends in a stop string."""
    for end in range(1, len(text) + 1):
        matches = [word for word in stop if text[:end].endswith(word)]
        if matches:
            return end, max(matches, key=len)
    return None
