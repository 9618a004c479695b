"""What the engine needs of a grammar: masks, progress, and the tokens that can only follow.

A request says in plain data what its answer is held to. The engine has that compiled by the
`Grammars` that it was given, before the request is queued, and gives every sequence a matcher of
its own, which stays with it until it ends, through preemption too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from caudal.engine.request import Generate


class MatcherError(Exception):
    """A matcher can't go on: a limit was hit, or a token was not allowed."""


class Matcher(Protocol):
    """Where one sequence is in its grammar. Used by one thread at a time."""

    @property
    def complete(self) -> bool:
        """Whether the grammar is matched and nothing but the end may follow."""

    def allowed(self) -> bytes:
        """The tokens that may come next: bit i % 8 of byte i // 8 for token i.

        End-of-sequence tokens are among them where the grammar is matched.

        Raises:
            MatcherError: See there.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens.

        Raises:
            MatcherError: See there.
        """

    def forced(self) -> Sequence[int]:
        """The tokens that follow in any case, as the model's tokenizer would cut their text.

        Tokens whose cut depends on what is still open are not among them. Changes nothing.
        """

    def fork(self) -> Matcher:
        """A second matcher at the same place."""


class Grammar(Protocol):
    """A compiled grammar. Safe to use from several threads."""

    def matcher(self) -> Matcher:
        """A matcher at the grammar's start."""


class Grammars(Protocol):
    """Makes the grammars of requests. Safe to use from several threads."""

    async def compile(self, work: Generate) -> Grammar:
        """The grammar of a request that `is_constrained`, made beside the event loop.

        Raises:
            ParameterError: What it asks for can't be enforced; names the field.
        """

    def compile_now(self, work: Generate) -> Grammar:
        """The same for callers that may wait."""


class NoGrammars:
    """For an engine none of whose requests takes a grammar."""

    async def compile(self, work: Generate) -> Grammar:
        """See `compile_now`."""
        return self.compile_now(work)

    def compile_now(self, work: Generate) -> Grammar:
        """Raises `ValueError`: what an answer is held to must not be forgotten."""
        raise ValueError("this request takes a grammar, but the engine was given none to make it")
