"""How much there is to a JSON text, counted before it is parsed.

A parser makes an object of each value, with the interpreter's lock held: a body of many small ones
costs a hundred times more than its size lets expect, and nobody else is answered meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_DEPTH = 256
MAX_CONTAINERS = 2**16
MAX_KEYS = 2**17
MAX_ITEMS = 2**19
"""More than the tokens of a prompt, given as ids."""

_BLOCK = 2**20


@dataclass(frozen=True)
class JSONSize:
    """What a JSON text is made of.

    Attributes:
        items: Commas outside of strings: no fewer than there are values, but for one a container.
        keys: Keys of objects.
        containers: Objects and arrays.
        depth: How deep they are nested.
    """

    items: int
    keys: int
    containers: int
    depth: int


def json_size(data: bytes) -> JSONSize:
    """Count, up to where the text stops being JSON; what comes behind makes no sense."""
    items = keys = containers = depth = deepest = 0
    in_string = False
    begin = 0
    while begin < len(data):
        end = min(begin + _BLOCK, len(data))
        while end < len(data) and data[end - 1] == ord("\\"):
            end += 1  # an escape stays in one piece
        piece = data[begin:end]
        begin = end
        if b"\\" in piece:
            # Without escapes, every quote is the begin or the end of a string.
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        letters = np.frombuffer(piece, np.uint8)
        quotes = letters == ord('"')
        inside = (np.cumsum(quotes, dtype=np.uint8) & 1).astype(bool)
        if in_string:
            np.logical_not(inside, out=inside)
        if inside.size:
            in_string = bool(inside[-1])
        # Brackets and braces differ by 32 from one another, and are the only ones that do.
        plain = np.where(inside, np.uint8(0), letters)
        items += int(np.count_nonzero(plain == ord(",")))
        keys += int(np.count_nonzero(plain == ord(":")))
        folded = plain & ~np.uint8(0x20)
        opens, closes = folded == ord("["), folded == ord("]")
        containers += int(np.count_nonzero(opens))
        steps = opens.astype(np.int8) - closes.astype(np.int8)
        levels = depth + np.cumsum(steps[steps != 0], dtype=np.int64)
        if levels.size:
            deepest = max(deepest, int(levels.max()))
            depth = int(levels[-1])
    return JSONSize(items, keys, containers, deepest)


def find_excess(data: bytes) -> str | None:
    """Returns what there is too much of in a JSON text, in a sentence; None where all is well."""
    # What can't be exceeded even if all of it were outside of strings is not looked at closely.
    containers = data.count(b"[") + data.count(b"{")
    if containers <= MAX_DEPTH and data.count(b",") < MAX_ITEMS and data.count(b":") <= MAX_KEYS:
        return None
    size = json_size(data)
    for what, count, limit in (
        ("levels of nesting", size.depth, MAX_DEPTH),
        ("objects and arrays", size.containers, MAX_CONTAINERS),
        ("keys", size.keys, MAX_KEYS),
        ("values", size.items + 1, MAX_ITEMS),
    ):
        if count > limit:
            return f"The body has {count} {what}, but may have {limit}."
    return None


def memory_of(data: bytes) -> int:
    """Bytes that a JSON text takes once it is parsed: no less than that, about.

    Counts punctuation in strings too, which makes it a few passes over the text and no more.
    """
    return (
        len(data)
        + 40 * data.count(b",")
        + 80 * (data.count(b":") + data.count(b"[") + data.count(b"{"))
    )
