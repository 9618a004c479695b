"""A bound on how long a model thinks: at the last token of its budget, its thinking is ended.

This is a grammar for the engine, around the one that the answer is held to, if any. It allows
everything, until the budget is spent; what ends thinking is then the only thing that may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caudal.chat.parser import AnswerParser
from caudal.engine.grammar import Grammar, Matcher
from caudal.formats.detokenizer import IncrementalDetokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """A grammar (see `caudal.engine.grammar.Grammar`).

    Attributes:
        tokens: Most tokens of thinking, without what begins and ends it.
        ending: The tokens that end thinking; at least one.
        vocab_size: Number of tokens of the model.
        new_parser: Makes what tells thinking from the answer.
        new_detokenizer: Makes what gives the parser its text.
        inner: The grammar that the whole answer is held to besides.
    """

    tokens: int
    ending: Sequence[int]
    vocab_size: int
    new_parser: Callable[[], AnswerParser]
    new_detokenizer: Callable[[], IncrementalDetokenizer]
    inner: Grammar | None = None

    def matcher(self) -> BudgetMatcher:
        """A matcher at the answer's start."""
        return BudgetMatcher(self, None if self.inner is None else self.inner.matcher())


class BudgetMatcher:
    """How much of its budget a sequence has spent (see `caudal.engine.grammar.Matcher`)."""

    def __init__(self, budget: ThinkingBudget, inner: Matcher | None) -> None:
        self._budget = budget
        self._inner = inner
        self._parser = budget.new_parser()
        self._detokenizer = budget.new_detokenizer()
        self._read = 0  # characters
        self._thinking = self._parser.in_reasoning(0)  # prompts may begin it
        self._spent = 0
        self._tokens: list[int] = []
        spent = self._thinking and budget.tokens <= 0
        self._pending = list(budget.ending) if spent else []  # what must follow to end thinking
        self._over = False
        everything = (1 << budget.vocab_size) - 1
        self._everything = everything.to_bytes((budget.vocab_size + 7) // 8, "little")

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._inner is not None and self._inner.complete

    def allowed(self) -> bytes:
        """The tokens that may come next; see `Matcher.allowed`."""
        if self._pending:
            return (1 << self._pending[0]).to_bytes(len(self._everything), "little")
        return self._everything if self._inner is None else self._inner.allowed()

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens; see `Matcher.accept`."""
        if self._inner is not None:
            self._inner.accept(tokens)
        for token in tokens:
            self._count(token)

    def forced(self) -> Sequence[int]:
        """The tokens that follow in any case; see `Matcher.forced`."""
        if self._pending:
            return list(self._pending)
        return () if self._inner is None else self._inner.forced()

    def fork(self) -> BudgetMatcher:
        """A second matcher at the same place."""
        twin = BudgetMatcher(self._budget, None if self._inner is None else self._inner.fork())
        for token in self._tokens:
            twin._count(token)
        return twin

    def _count(self, token: int) -> None:
        if self._over:
            return
        self._tokens.append(token)
        if self._pending:
            self._over = len(self._pending) == 1
            del self._pending[0]
            return
        was_thinking = self._thinking
        text = self._detokenizer.push(token)
        self._parser.push(text)
        self._read += len(text)
        self._thinking = self._parser.in_reasoning(self._read)
        if was_thinking and not self._thinking:
            self._over = True  # models think before they answer, and only then
            return
        self._spent += was_thinking
        if self._thinking and self._spent >= self._budget.tokens:
            self._pending = list(self._budget.ending)
