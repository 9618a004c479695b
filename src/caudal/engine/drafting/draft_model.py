"""A smaller model guesses what a larger one is going to say (Leviathan et al., arXiv 2211.17192).

What counts is what the larger one draws itself; guesses only save it iterations. The draft model
follows sequences that decode, with keys, values and states of its own in a memory like the
engine's, prefix cache included: so it computes what is common to several sequences once, and what
it has of a conversation is there at its next turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from caudal.backends.executor import Batch, Executor, SampledToken, SequenceStep, StateSlots
from caudal.engine.drafting.guess_rows import GuessRows
from caudal.engine.drafting.guessing_model import Followed, GuessingModel, Turn
from caudal.engine.drafting.proposer import Asked
from caudal.engine.memory import Memory
from caudal.engine.nodes import Match
from caudal.engine.prefix_tree import common_prefix
from caudal.engine.steps import place_step
from caudal.engine.tables import SequenceMemory
from caudal.engine.turns import Turns


class _Followed(Followed):
    """What the draft model has of a sequence.

    Attributes:
        certain: Tokens that were the sequence's own when they were computed; `memory` has those
            computed behind them, too.
        guesses: The latest that were made behind them; all but the last of them may be computed.
    """

    __slots__ = ("certain", "guesses")

    def __init__(self, asked: Asked, memory: SequenceMemory, drawing: GuessRows) -> None:
        super().__init__(asked, memory, drawing)
        self.certain = memory.length
        self.guesses: list[int] = []


_Turn = Turn[_Followed]


class DraftModel(GuessingModel[_Followed]):
    """Guesses (see `Proposer`) by a smaller model of the same vocabulary.

    Args:
        executor: Runs it. The draft model owns it and closes it.
        max_model_len: Most tokens of a sequence that it can compute.
        max_tokens: See `GuessingModel`.
        prefix_cache: Keep what it has computed of sequences for those that start the same.
        eos_token_ids, turns, clock: See `GuessingModel`.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_model_len: int,
        max_tokens: int,
        prefix_cache: bool = True,
        eos_token_ids: frozenset[int] = frozenset(),
        turns: Turns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info = executor.info
        memory = Memory(
            info.num_blocks,
            info.block_size,
            prefix_cache=prefix_cache,
            windows=info.windows,
            num_slots=info.num_slots,
        )
        super().__init__(
            executor,
            memory,
            max_tokens=max_tokens,
            eos_token_ids=eos_token_ids,
            turns=turns,
            clock=clock,
        )
        self._max_model_len = max_model_len

    def _guess(self, asked: SequenceOf[Asked], guesses: SequenceOf[list[int]]) -> None:
        turns = self._catch_up(asked, guesses)
        first = True
        while turns:
            turns = self._go_on(turns, first=first)
            first = False

    def _catch_up(self, asked: SequenceOf[Asked], guesses: SequenceOf[list[int]]) -> list[_Turn]:
        """Compute what sequences have got, and draw the first guess for those it is all of.

        Returns:
            The sequences that have a first guess and may have another.
        """
        left = self._max_tokens
        asking = {each.number for each in asked}
        steps: list[tuple[_Followed, SequenceStep]] = []
        drawing: list[_Turn | None] = []
        for place in self._shortest_first(asked):
            each = asked[place]
            length = len(each.tokens)
            if left <= 0 or length >= self._max_model_len:
                continue
            followed = self._follow(each)
            if followed.certain == length:  # it is asked again, and hasn't gone on
                guesses[place] += followed.guesses[: each.most]
                continue
            held = followed.memory
            count = self._extend(each, held, min(left, length - held.length), asking)
            if not count:
                continue
            left -= count
            end = held.length + count
            step = SequenceStep(each.tokens[held.length : end], held.length, held.blocks)
            turn = None
            if end == length:
                rows = each.ahead()
                row = rows.guess_row()
                if row is not None:
                    step.samples = followed.drawing.first(row)
                    turn = _Turn(followed, rows, guesses[place])
                    followed.guesses = turn.guesses
            steps.append((followed, step))
            drawing.append(turn)
        drawn = self._run(steps)
        turns: list[_Turn] = []
        for turn, (followed, step), samples in zip(drawing, steps, drawn, strict=True):
            held, each = followed.memory, followed.asked
            held.length += len(step.tokens)
            followed.certain = held.length
            self.memory.settle(held)
            if step.context < each.prompt:  # answers are kept once they have ended
                self.memory.publish(held, each.space, each.tokens, each.prompt)
            self.memory.slide(held)
            if turn is not None and samples and self._take(turn, followed.drawing.take(samples)):
                turns.append(turn)
        return turns

    def _go_on(self, turns: list[_Turn], *, first: bool) -> list[_Turn]:
        """Compute the latest guesses, and draw the next ones.

        Returns:
            The sequences that may have another.
        """
        steps: list[tuple[_Followed, SequenceStep]] = []
        going: list[_Turn] = []
        asking = {turn.followed.asked.number for turn in turns}
        for turn in turns:
            followed = turn.followed
            held = followed.memory
            row = turn.rows.guess_row()
            if row is None:
                continue
            if first:
                # One that has no room has the one guess that it has.
                end = followed.certain + self._most(followed.asked) - 1
                if not self._finds_room(held, end, asking, proposes=True):
                    continue
            rows = (followed.drawing.later(row),)
            step = SequenceStep(followed.guesses[-1:], held.length, held.blocks, rows)
            steps.append((followed, step))
            going.append(turn)
        turns = []
        for turn, samples in zip(going, self._run(steps), strict=True):
            held = turn.followed.memory
            held.length += 1
            self.memory.settle(held, proposed=True)
            if samples and self._take(turn, samples[0].token):
                turns.append(turn)
        return turns

    def _most(self, asked: Asked) -> int:
        """Most guesses for a sequence: all but the last are computed, too."""
        return min(asked.most, self._max_model_len - len(asked.tokens) + 1)

    def _run(
        self, steps: SequenceOf[tuple[_Followed, SequenceStep]]
    ) -> list[SequenceOf[SampledToken]]:
        """Run steps, and return what was drawn in each."""
        if not steps:
            return []
        copies = []
        for followed, step in steps:
            held = followed.memory
            if held.copy is not None:
                copies.append(held.copy)
            if self.memory.has_more_kinds:
                place_step(step, held)
                if step.state is not None and held.length > followed.certain:
                    # Behind the first guess: the sequence keeps the state before it.
                    step.state = StateSlots(held.next_slot, held.next_slot)
        window_copies = [
            [table.copy for table in tables if table.copy is not None]
            for tables in zip(*(followed.memory.windows for followed, _ in steps), strict=True)
        ]
        batch = Batch(
            [step for _, step in steps], copies, window_copies if any(window_copies) else ()
        )
        return [result.samples for result in self._execute(batch)]

    def _lacking(self, asked: Asked) -> int:
        followed = self._followed.get(asked.number)
        return len(asked.tokens) - (0 if followed is None else followed.certain)

    def _follow(self, asked: Asked) -> _Followed:
        """What there is of a sequence, whose tokens are all its own."""
        cache = self.memory.cache
        followed = self._followed.pop(asked.number, None)
        if followed is None:
            match = Match()
            if cache is not None:
                match = cache.match(asked.space, asked.tokens, len(asked.tokens) - 1)
            followed = _Followed(asked, self.memory.open(match), GuessRows(self._rates))
        else:
            self._agree(followed)
        self._followed[asked.number] = followed
        return followed

    def _agree(self, followed: _Followed) -> None:
        """Let go of guesses that weren't drawn."""
        held, certain, tokens = followed.memory, followed.certain, followed.asked.tokens
        if len(tokens) == certain:
            return  # it hasn't gone on
        followed.drawing.learn(tokens[certain])
        agreeing = 0
        if held.length > certain:
            new = tokens[certain : held.length]
            agreeing = common_prefix(new, followed.guesses)
            self.memory.trim(held, certain + agreeing, certain)
            self.memory.slide(held)
        followed.certain = held.length
        # Where it has come by guesses, but not behind them all, the others still stand.
        followed.guesses = followed.guesses[agreeing:] if held.length == len(tokens) else []

    def _settle(self, followed: _Followed, *, keep: bool) -> None:
        if keep:
            self._agree(followed)
        held = followed.memory
        if held.length > followed.certain:  # nobody knows yet whether they are right
            self.memory.trim(held, followed.certain, followed.certain)

    def _extend(self, asked: Asked, held: SequenceMemory, count: int, asking: set[int]) -> int:
        """Find room for as many of a sequence's next tokens as are computed at once.

        Returns:
            How many; 0 where there is no room.
        """
        memory = self.memory
        if memory.has_more_kinds:
            cut = memory.next_cut(held, asked.prompt)
            if cut is not None:
                count = min(count, cut - held.length)
            count = memory.affordable(held, count, len(asking))
        if self._finds_room(held, held.length + count, asking):
            return count
        self._drop(asked.number, keep=True)  # there will be again when others have ended
        return 0
