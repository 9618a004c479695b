"""Changes JSON texts so that they stay JSON: values, types, keys and nesting."""

from __future__ import annotations

import json
import random
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, 5e-324, 2**31, 2**32 - 1, 2**53 + 1, 2**63,
    2**64, -(2**63), 10**400, float("nan"), float("inf"), "", "a", "\0", "\ud800", "é\u0301", "🦙",
    "x" * 2000, "<|end|>", "{{ x }}", "(a+)+b", [], {}, [[]], [None], {"": None}, [1] * 100,
]  # fmt: skip
"""What programs stumble over."""


def mutate_json(data: bytes, seed: int) -> bytes:
    """A JSON text with one to four changes; a text that is no JSON comes back as it is."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        value = _changed(value, chance)
    return json.dumps(value).encode()


def mutate_request(data: bytes, seed: int) -> bytes:
    """The same for a path on the first line and a JSON text after it."""
    path, line, body = data.partition(b"\n")
    return path + line + mutate_json(body, seed)


def _changed(value: Any, chance: random.Random) -> Any:
    """The value with a change at a random place."""
    inside = isinstance(value, dict | list) and value and chance.random() < 0.8
    if inside and isinstance(value, dict):
        key = chance.choice(list(value))
        match chance.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return {**value, key + chance.choice(["_", "s", "\0"]): value[key]}
            case _:
                return {**value, key: _changed(value[key], chance)}
    if inside and isinstance(value, list):
        place = chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return value[:place] + [value[place]] * chance.choice([2, 100]) + value[place:]
            case _:
                return [*value[:place], _changed(value[place], chance), *value[place + 1 :]]
    match chance.randrange(6):
        case 0:
            return [value]
        case 1:
            return {chance.choice(["type", "content", "x"]): value}
        case 2 if isinstance(value, str):
            cut = chance.randrange(len(value) + 1)
            return value[:cut] + chance.choice(["", "\\", '"', "(", "\n", "\u2028"]) + value[cut:]
        case 2 if isinstance(value, int):
            return value + chance.choice([-1, 1, -value, value, 2**31])
        case _:
            return chance.choice(VALUES)
