r"""Keeps special tokens that a client typed apart from those that a chat template writes.

In a rendered prompt both look the same. So before rendering, a guard, a Unicode noncharacter that
occurs nowhere in the request, goes behind each character of the client's strings that could begin a
special token. What is found in the rendered text without a guard is the template's; then the guards
go. Guarding first characters rather than whole tokens also covers a token pieced together from
two strings. A guard is no white space and stands behind a visible character, so `trim` and the
like work as ever.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from caudal.errors import ParameterError
from caudal.formats.special_tokens import SpecialTokenSplitter

MAX_DEPTH = 64
"""Levels of nesting that a request's messages and tools may have."""

_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


@dataclass(frozen=True, slots=True)
class Marks:
    """Noncharacters that occur nowhere in a request.

    Attributes:
        guard: Goes behind a character that could begin a special token.
        end: Goes behind a final message that is to be continued.
    """

    guard: str
    end: str

    def remove_from(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self.guard, "").replace(self.end, "")

    def restore_in(self, text: str) -> str:
        r"""Undo `tojson(ensure_ascii=true)`, which writes a mark as `\ufdd0`."""
        return text.replace(_escape(self.guard), self.guard).replace(_escape(self.end), self.end)


def choose_marks(strings: Iterable[str]) -> Marks:
    """Find two noncharacters that occur, plain or escaped, in none of the strings.

    Raises:
        ParameterError: The strings hold them all.
    """
    joined = "\0".join(strings)
    free = [c for c in _NONCHARACTERS if c not in joined and _escape(c) not in joined]
    if len(free) < 2:
        raise ParameterError("messages", "messages must not contain Unicode noncharacters.")
    return Marks(guard=free[0], end=free[1])


def map_strings(
    value: Any,
    function: Callable[[str], str],
    *,
    kept_keys: Container[str] = (),
    depth: int = MAX_DEPTH,
) -> Any:
    """A copy of a JSON-like value in which every string, also of keys, has been replaced.

    Args:
        value: The value.
        function: What becomes of a string.
        kept_keys: Keys that stay as they are.
        depth: Levels of nesting that the value may have.

    Raises:
        ParameterError: The value is nested deeper.
    """
    if isinstance(value, str):
        return function(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == 0:
        raise ParameterError("messages", f"messages are nested more than {MAX_DEPTH} levels deep.")
    inner = depth - 1
    if isinstance(value, Mapping):
        return {
            (function(key) if isinstance(key, str) and key not in kept_keys else key): map_strings(
                item, function, kept_keys=kept_keys, depth=inner
            )
            for key, item in value.items()
        }
    return [map_strings(item, function, kept_keys=kept_keys, depth=inner) for item in value]


def looks_like_markup(token: str) -> bool:
    """Whether a token is of the kind `<think>`, as opposed to a word or white space."""
    return len(token) >= 3 and not token[0].isalnum() and not token[0].isspace()


class GuardRules:
    """Which characters need a guard, for one template.

    Args:
        tokens: Special tokens that only the template may write, of two characters or more.
        kept_for_assistant: Those of them that an assistant's content may hold, because the template
            looks for them there.
    """

    def __init__(self, tokens: Collection[str], kept_for_assistant: Collection[str]) -> None:
        firsts = {token[0] for token in tokens if looks_like_markup(token)}
        self._firsts = _any_of(firsts)
        # Tokens that begin like a word are guarded as a whole: a guard behind each such letter
        # would be in the way of what templates do with words.
        self._words = [token for token in tokens if token[0] not in firsts]
        self._word_splitter = SpecialTokenSplitter({t: i for i, t in enumerate(self._words)})
        self._tokens = tokens
        self._kept_tokens = kept_for_assistant
        self._kept = _any_of(kept_for_assistant)

    def keeping(self, texts: Collection[str]) -> Self:
        """Rules by which an assistant's content may have the tokens of these texts, too."""
        if not texts:
            return self
        more = [token for token in self._tokens if any(token in text for text in texts)]
        rules = copy.copy(self)
        rules._kept = _any_of({*self._kept_tokens, *more})
        return rules

    def guard(self, text: str, guard: str) -> str:
        """The text with guards."""
        pieces = (
            piece
            if isinstance(piece, str)
            else self._words[piece][0] + guard + self._words[piece][1:]
            for piece in self._word_splitter.split(text)
        )
        return self._firsts.sub(lambda found: found[0] + guard, "".join(pieces))

    def guard_assistant_content(self, text: str, guard: str) -> str:
        """The text with guards, except in the tokens an assistant's content may hold."""
        parts: list[str] = []
        start = 0
        for kept in self._kept.finditer(text):
            parts += (self.guard(text[start : kept.start()], guard), kept[0])
            start = kept.end()
        return "".join((*parts, self.guard(text[start:], guard)))


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Matches the longest of the texts; nothing if there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if texts else "(?!)")


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"
