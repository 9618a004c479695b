"""Who is guessed for in an iteration, by what, and how far."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile

import numpy as np
from numpy.typing import NDArray

from caudal.engine.drafting.chances import OF_MODELS, OF_TEXTS, Chances, CommonChances
from caudal.engine.drafting.costs import Costs
from caudal.engine.drafting.counts import DraftCounters, DraftCounts
from caudal.engine.drafting.guarded import GuardedProposer
from caudal.engine.drafting.lengths import choose_lengths
from caudal.engine.drafting.lookup import CachedText, Follower, OwnText, PredictedText
from caudal.engine.drafting.proposer import Asked, Proposer
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.memory import Memory
from caudal.engine.sequence import Sequence
from caudal.engine.steps import RowsAhead
from caudal.errors import ParameterError

MOST_ROWS, FEW_TOKENS = 128, 4
"""Guesses for all sequences together beyond which each gets a few at most: more hardly ever pay,
and to think about them takes time."""

IDLE_AFTER, IDLE_EVERY = 32, 4
"""Iterations in which a sequence repeated nothing, after which it is looked at in every fourth:
looking takes time, too."""

PROBE_EVERY = 64
"""Iterations after which a model that isn't worth asking is asked again, for one token of one
sequence: it may have become so."""


@dataclass(slots=True, eq=False)
class _Guessed:
    """A sequence that is guessed for.

    Attributes:
        asked: What a proposer is shown of it.
        texts: What it may be repeating.
        chances: How often the proposer is right.
        source: What its draft was made by, while there is one.
        idle: Iterations since it repeated anything.
    """

    asked: Asked
    texts: list[Follower]
    chances: Chances
    source: Follower | GuardedProposer | None = None
    idle: int = 0


@dataclass(slots=True)
class _Candidate:
    """What could be guessed for a sequence, and how likely it is that so much of it is right."""

    seq: Sequence
    guessed: _Guessed
    source: Follower | GuardedProposer
    along: SequenceOf[float]
    most: int


class Drafting:
    """Gives sequences that decode their drafts, and learns from what becomes of them.

    Args:
        speculation: How it guesses; None: not at all.
        proposer: What guesses where that isn't a look-up.
        memory: What the prefix cache has can be looked up too.
        vocab_size: Tokens there are: no other is ever tried, whoever guesses it.

    Raises:
        ParameterError: There is nothing that guesses as it is to be done.
    """

    def __init__(
        self,
        speculation: Speculation | None,
        proposer: Proposer | None,
        memory: Memory,
        vocab_size: int,
    ) -> None:
        if speculation is not None and speculation.method != "ngram" and proposer is None:
            raise ParameterError(
                "speculative", f"speculative: this model can't guess by {speculation}."
            )
        self._speculation = speculation
        self._memory = memory
        self._vocab_size = vocab_size
        self._numbers = count()
        self._guessed: dict[Sequence, _Guessed] = {}
        self._costs = Costs()
        self._own, self._cached, self._predicted = (CommonChances(OF_TEXTS) for _ in range(3))
        self._proposed = CommonChances(OF_MODELS)
        self._unasked = 0  # iterations since the proposer was asked
        self._counters = DraftCounters()
        self._proposer: GuardedProposer | None = None
        if proposer is not None:
            self._proposer = GuardedProposer(proposer, self._counters)

    @property
    def counts(self) -> DraftCounts:
        """What has become of guesses. Safe to take from other threads."""
        seconds = 0.0 if self._proposer is None else self._proposer.seconds
        return replace(self._counters.counts, seconds=seconds)

    def draft(self, running: SequenceOf[Sequence], room: int) -> None:
        """Give drafts to those that decode, where that is likely to pay.

        Args:
            running: Those that run.
            room: Most tokens to guess for all of them together.
        """
        if self._speculation is None:
            return
        most = self._speculation.num_speculative_tokens
        if self._speculation.adaptive:
            most = min(most, max(MOST_ROWS // max(len(running), 1), FEW_TOKENS))
        candidates: list[_Candidate] = []
        for seq in running:
            if seq.output and seq.group.speculates and len(seq.branches) == 1:
                candidate = self._candidate(seq, self._speculation, most)
                if candidate is not None:
                    candidates.append(candidate)
        if not candidates or room <= 0:
            return
        lengths = self._lengths(candidates, len(running), room)
        asking: list[_Candidate] = []
        for each, length in zip(candidates, lengths, strict=True):
            if length and isinstance(each.source, Follower):
                self._give(each, each.source.guess(length))
            elif length:
                each.guessed.asked.most = length
                asking.append(each)
        if asking:
            self._ask(asking)

    @property
    def sees_states(self) -> bool:
        """Whether what guesses is to be shown what the model computes of sequences."""
        proposer = self._proposer
        return self._speculation is not None and proposer is not None and proposer.sees_states

    def saw(self, seq: Sequence, context: int, states: NDArray[np.float32]) -> None:
        """These are the final states of a sequence's tokens behind `context` others."""
        speculation, proposer = self._speculation, self._proposer
        if speculation is not None and proposer is not None and seq.group.speculates:
            proposer.saw(self._guessed_of(seq, speculation).asked, context, states)

    def observe(self, sequences: int, guesses: int, seconds: float) -> None:
        """An iteration of nothing but sequences that decode has taken so long.

        Args:
            sequences: How many.
            guesses: Tokens computed beside one for each.
            seconds: How long.
        """
        if self._speculation is not None:
            self._costs.observe(sequences, guesses, seconds)

    def learn(self, seq: Sequence, proposed: int, right: int) -> None:
        """So many of a sequence's draft were computed, and so many of them right."""
        guessed = self._guessed.get(seq)
        if guessed is None or guessed.source is None:
            return  # what a grammar forces is no guess
        source, guessed.source = guessed.source, None
        if not proposed:
            return
        self._counters.count(proposed, right)
        if not isinstance(source, Follower):  # of texts it is seen as the answer grows
            for place in range(right):
                guessed.chances.learn(place, right=True)
            if right < proposed:
                guessed.chances.learn(right, right=False)

    def ended(self, seq: Sequence) -> None:
        """A sequence has ended."""
        guessed = self._guessed.pop(seq, None)
        if guessed is not None and self._proposer is not None:
            self._proposer.ended(guessed.asked.number)

    def close(self) -> None:
        """Close what guesses."""
        if self._proposer is not None:
            self._proposer.close()

    def _candidate(self, seq: Sequence, speculation: Speculation, most: int) -> _Candidate | None:
        """What could be guessed for a sequence, if anything can; it is followed in any case.

        Args:
            seq: The sequence.
            speculation: How it is guessed.
            most: Most tokens of it.
        """
        guessed = self._guessed_of(seq, speculation)
        proposer = self._proposer
        asks = proposer is not None and proposer.works
        guessed.idle += 1
        if not asks and guessed.idle > IDLE_AFTER and guessed.idle % IDLE_EVERY:
            return None
        best, source = 0.0, None
        for text in guessed.texts:
            text.advance()
            if text.same:
                guessed.idle = 0
                chance = text.chance()
                if chance > best:
                    best, source = chance, text
        if guessed.texts and guessed.texts[0].over:
            del guessed.texts[0]
        if seq.draft or len(seq.tokens) - seq.memory.length != 1:
            return None  # there is something to compute already
        left = seq.group.max_output_tokens - len(seq.output) - 1  # one is drawn behind them
        most = min(most, left)
        if most <= 0:
            return None
        if source is not None and (not asks or best > 0.5):
            return _Candidate(seq, guessed, source, source.along(most), most)
        if proposer is not None and asks:
            return _Candidate(seq, guessed, proposer, guessed.chances.along(0, most), most)
        return None

    def _guessed_of(self, seq: Sequence, speculation: Speculation) -> _Guessed:
        guessed = self._guessed.get(seq)
        if guessed is None:
            guessed = self._guessed[seq] = self._begin(seq, speculation)
        return guessed

    def _begin(self, seq: Sequence, speculation: Speculation) -> _Guessed:
        group, tokens = seq.group, seq.tokens
        assert group.params is not None
        least, most = speculation.prompt_lookup_min, speculation.prompt_lookup_max
        texts: list[Follower] = []
        proposer = self._proposer
        looks_up = speculation.method == "ngram" and (proposer is None or not proposer.works)
        cache = self._memory.cache
        if looks_up and cache is not None:
            texts.append(CachedText(tokens, Chances(self._cached), group.space, cache))
        if group.prediction:
            chances = Chances(self._predicted)
            predicted = PredictedText(
                tokens, chances, len(group.prompt), group.prediction, least, most
            )
            texts.append(predicted)
        if looks_up:
            texts.append(OwnText(tokens, Chances(self._own), least, most))
        asked = Asked(
            number=next(self._numbers),
            tokens=tokens,
            prompt=len(group.prompt),
            space=group.space,
            prediction=group.prediction,
            params=group.params,
            seed=group.seed,
            stream=seq.index,
            adapter=group.adapter,
            ahead=partial(RowsAhead, seq),
        )
        return _Guessed(asked, texts, Chances(self._proposed))

    def _lengths(
        self, candidates: SequenceOf[_Candidate], sequences: int, room: int
    ) -> SequenceOf[int]:
        """How many tokens to guess for each."""
        assert self._speculation is not None
        if not self._speculation.adaptive:
            return choose_lengths(
                [[1.0] * each.most for each in candidates],
                sequences,
                room,
                lambda guesses: 1.0,
                repeats=False,
            )
        if self._costs.wants_plain(sequences):
            return [0] * len(candidates)
        asks = sum(each.source is self._proposer for each in candidates)
        lengths = choose_lengths(
            [each.along for each in candidates],
            sequences,
            room,
            self._factor(sequences, asks),
            repeats=self._memory.slots is not None,
        )
        if asks:
            self._probe(candidates, lengths)
        return lengths

    def _factor(self, sequences: int, asks: int) -> Callable[[float], float]:
        """How many times longer an iteration takes with so many guesses than without.

        Args:
            sequences: How many it has.
            asks: For how many of them the proposer is to guess, if anything.
        """
        seconds = self._costs.seconds(sequences)
        curve = self._costs.curve(sequences)
        if not asks or not seconds:
            return curve
        assert self._proposer is not None
        each = self._proposer.pass_seconds / seconds / asks  # a pass is a guess for each
        return lambda guesses: curve(guesses) + each * guesses

    def _probe(self, candidates: SequenceOf[_Candidate], lengths: list[int]) -> None:
        """Now and then, have the proposer asked though it isn't worth it."""
        self._unasked += 1
        if self._unasked < PROBE_EVERY or any(lengths):
            return
        for place, each in enumerate(candidates):
            if each.source is self._proposer:
                lengths[place] = 1
                return

    def _ask(self, asking: SequenceOf[_Candidate]) -> None:
        """Have the proposer guess."""
        assert self._proposer is not None
        self._unasked = 0
        guesses = self._proposer.propose([each.guessed.asked for each in asking])
        for each, guess in zip(asking, guesses, strict=True):
            self._give(each, guess)

    def _give(self, candidate: _Candidate, guess: SequenceOf[int]) -> None:
        known = self._vocab_size
        if guess and (min(guess) < 0 or max(guess) >= known):  # the executor would refuse all
            guess = list(takewhile(lambda token: 0 <= token < known, guess))
        if guess:
            candidate.seq.draft = list(guess)
            candidate.guessed.source = candidate.source
