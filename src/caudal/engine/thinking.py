"""How long a model may think, as plain data: what a request carries of it.

Whoever runs the request makes a grammar of it (`caudal.grammars.thinking`), which tells thinking
from the answer as those who read the answer do (`caudal.chat`).
"""

from __future__ import annotations

import msgspec


class ThinkingMarkers(msgspec.Struct, frozen=True, kw_only=True, tag="markers"):
    """Thinking stands between two markers, before everything else.

    Attributes:
        begins: Texts that begin it, white space before them aside. ASCII.
        end: What ends it. ASCII.
        open_already: Whether the prompt ends within thinking.
    """

    begins: tuple[str, ...]
    end: str
    open_already: bool = False

    @property
    def ending(self) -> str:
        """The text that ends thinking where a bound does."""
        return self.end


class ThinkingMessages(msgspec.Struct, frozen=True, kw_only=True, tag="messages"):
    """An answer is a row of messages; those whose header says so are thinking (harmony).

    The answer begins within the first message's header. All but `pattern` and `begun` are ASCII.

    Attributes:
        start: Begins a message's header.
        body: Ends the header and begins the message's body.
        ends: What ends a body, beside the next message's `start`.
        header_begins: What the answer's first header may begin with; else the answer is no message.
        max_header: Most characters of a header; a longer one is none.
        pattern: Regular expression; it matches at the beginning of the header of what is thinking.
        ending: The text that ends thinking where a bound does.
        begun: The part of the first header that the prompt ends with.
    """

    start: str
    body: str
    ends: tuple[str, ...]
    header_begins: tuple[str, ...]
    max_header: int
    pattern: str
    ending: str
    begun: str = ""


ThinkingSyntax = ThinkingMarkers | ThinkingMessages
"""How thinking is told from the answer. Names of control tokens stand for these."""


class ThinkingLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on thinking: at its last token, the model's thinking is ended.

    Attributes:
        max_tokens: Most tokens of thinking, without what begins and ends it.
        syntax: How thinking is told from the answer.
        visible_tokens: Control tokens that count as text; others don't count.
    """

    max_tokens: int
    syntax: ThinkingMarkers | ThinkingMessages
    visible_tokens: frozenset[int] = frozenset()
