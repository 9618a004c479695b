"""A grammar over token ids that needs no tokenizer: a list of what each place may hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from caudal.engine.grammar import Grammar, MatcherError
from caudal.engine.request import Generate
from caudal.structured_outputs import StructuredOutputsParams
from support.fake_executor import next_token


@dataclass(frozen=True)
class SlotGrammar:
    """Matches sequences with a token of `slots[i]` at place i.

    Attributes:
        slots: Tokens allowed at each place; an end-of-sequence among them means that an answer
            may end there.
        alike: Places whose tokens stand for the same text, as real ones may: all are allowed, and
            the lowest is forced.
        vocab_size: Tokens there are.
        broken: Methods that raise, once so many tokens were accepted.
    """

    slots: Sequence[Collection[int]]
    vocab_size: int = 50
    alike: Collection[int] = ()
    broken: dict[str, int] = field(default_factory=dict)

    def matcher(self) -> SlotMatcher:
        return SlotMatcher(self, 0)

    def answer(
        self, prompt: Sequence[int], *, seed: int = 7, stream: int = 0, banned: Collection[int] = ()
    ) -> list[int]:
        """What the fake model says, token by token, until the grammar ends or token 0 is drawn."""
        history = list(prompt)
        for allowed in self.slots:
            token = next_token(history, seed, stream, self.vocab_size)
            while token not in allowed or token in banned:
                token = (token + 1) % self.vocab_size
            history.append(token)
            if token == 0:
                break
        return history[len(prompt) :]


class FakeGrammars:
    """Hands an engine the grammars that a test has made itself (see `engine.grammar.Grammars`)."""

    def __init__(self) -> None:
        self._grammars: list[Grammar] = []

    def form(self, grammar: Grammar) -> StructuredOutputsParams:
        """What a request asks for to get this grammar."""
        self._grammars.append(grammar)
        return StructuredOutputsParams(grammar=str(len(self._grammars) - 1))

    async def compile(self, work: Generate) -> Grammar:
        return self.compile_now(work)

    def compile_now(self, work: Generate) -> Grammar:
        form = work.params.structured_outputs
        assert form is not None
        assert form.grammar is not None
        return self._grammars[int(form.grammar)]


class SlotMatcher:
    """Where one sequence is."""

    def __init__(self, grammar: SlotGrammar, place: int) -> None:
        self._grammar = grammar
        self._place = place

    @property
    def complete(self) -> bool:
        return self._place == len(self._grammar.slots)

    def allowed(self) -> bytes:
        self._break("allowed")
        mask = bytearray(-(-self._grammar.vocab_size // 8))
        for token in self._grammar.slots[self._place]:
            mask[token // 8] |= 1 << token % 8
        return bytes(mask)

    def accept(self, tokens: Sequence[int]) -> None:
        self._break("accept")
        for token in tokens:
            assert not self.complete
            if token not in self._grammar.slots[self._place]:
                raise MatcherError(f"token {token} is not allowed at {self._place}")
            self._place += 1

    def forced(self) -> Sequence[int]:
        self._break("forced")
        tokens: list[int] = []
        for place in range(self._place, len(self._grammar.slots)):
            allowed = self._grammar.slots[place]
            if len(allowed) != 1 and place not in self._grammar.alike:
                break
            tokens.append(min(allowed))
        return tokens

    def fork(self) -> SlotMatcher:
        return SlotMatcher(self._grammar, self._place)

    def _break(self, method: str) -> None:
        if self._place >= self._grammar.broken.get(method, len(self._grammar.slots) + 1):
            raise MatcherError(f"{method} is broken")
