"""How many tokens the lines of a batch took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens.

    Attributes:
        input_tokens: Of prompts.
        cached_tokens: Those of them that were computed before.
        output_tokens: Of answers.
        reasoning_tokens: Those of them that were thought.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def described(self) -> dict[str, Any]:
        """The same as OpenAI's API gives it."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


def usage_of(body: Any) -> Usage:
    """What an answer says that it took, in the words of any of the APIs; nothing where it doesn't.

    Args:
        body: The answer's JSON.
    """
    usage = _mapping(body, "usage")
    inside = _mapping(usage, "prompt_tokens_details") or _mapping(usage, "input_tokens_details")
    outside = _mapping(usage, "completion_tokens_details") or _mapping(
        usage, "output_tokens_details"
    )
    # Anthropic's `input_tokens` are those that were not cached.
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    return Usage(
        _count(usage, "prompt_tokens") or _count(usage, "input_tokens") + read + written,
        _count(inside, "cached_tokens") or read,
        _count(usage, "completion_tokens") or _count(usage, "output_tokens"),
        _count(outside, "reasoning_tokens"),
    )


def _mapping(body: Any, name: str) -> Mapping[str, Any]:
    value = body.get(name) if isinstance(body, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0
