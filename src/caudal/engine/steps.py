"""What a sequence asks of an iteration: the tokens to compute, and what is wanted of them.

Everything asked depends on the sequence's own tokens alone, and so do the random numbers of the
tokens drawn; hence an answer is the same however it is batched, and with proposed tokens as
without.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from caudal.backends.executor import PooledRows, SamplingRow, SequenceStep, StateSlots
from caudal.engine.grammar import MatcherError
from caudal.engine.request import Pool
from caudal.engine.sequence import Sequence
from caudal.engine.tables import GONE, SequenceMemory


def step_of(seq: Sequence) -> SequenceStep | None:
    """The part of a batch that computes a sequence's planned tokens.

    Where they reach its last token, what follows is drawn: for each of its branches; or where
    proposed tokens are planned, in the place of each of them and behind them. Those are fewer than
    planned where the grammar goes on no further, and `planned` is then, too.

    Returns:
        The step. None where the grammar would only let the answer end, and `min_tokens` or
        `ignore_eos` not.

    Raises:
        MatcherError: The matcher can't go on.
    """
    held = seq.memory
    tokens = seq.tokens
    context = held.length
    end = context + seq.planned
    group = seq.group
    if group.pooling is not None:
        return _pooling_step(seq, group.pooling)
    rows: SequenceOf[SamplingRow] = ()
    proposed = end - len(tokens)
    if proposed >= 0 and group.max_output_tokens > 0:
        rows = _rows_along(seq, seq.draft[:proposed]) if proposed else _rows(seq)
        if not rows:
            return None
    step = SequenceStep(tokens[context:end], context, held.blocks, rows, adapter=group.adapter)
    if group.prompt_scores is not None and context < len(group.prompt) - 1:
        step.score_targets = tokens[context + 1 : min(end + 1, len(group.prompt))]
        step.score_top = group.score_top
    if proposed > 0:
        step.proposed = len(rows) - 1
        step.tokens = [*step.tokens, *seq.draft[: step.proposed]]
        seq.planned = len(step.tokens)
    return step


def place_step(step: SequenceStep, held: SequenceMemory) -> None:
    """Say where a step finds what its sequence has besides blocks of the main pool."""
    step.window_tables = [table.blocks for table in held.windows]
    if held.next_slot != GONE:
        step.state = StateSlots(None if held.slot == GONE else held.slot, held.next_slot)


def _only_end_is_left(allowed: bytes, seq: Sequence, length: int) -> bool:
    """Whether the grammar would only let the answer end, and `min_tokens` or `ignore_eos` not.

    Args:
        allowed: The tokens that the grammar allows next, as `Matcher.allowed` has them.
        seq: The sequence.
        length: Of the answer so far.
    """
    banned = seq.group.banned_after(length)
    if seq.group.eos_token_ids.isdisjoint(banned):
        return False
    left = int.from_bytes(allowed, "little")
    ends = any(left >> token & 1 for token in seq.group.eos_token_ids)
    for token in banned:
        left &= ~(1 << token)
    return ends and not left


def _rows(seq: Sequence) -> list[SamplingRow]:
    """A row for each branch; none where only the end is left."""
    allowed = None
    if seq.matcher is not None:
        allowed = seq.matcher.allowed()
        if _only_end_is_left(allowed, seq, len(seq.output)):
            return []
    return [_row(seq, index, allowed) for index in seq.branches]


def _rows_along(seq: Sequence, proposed: SequenceOf[int]) -> list[SamplingRow]:
    """A row for each proposed token, and one behind them, as far as the grammar goes on."""
    ahead = RowsAhead(seq)
    rows: list[SamplingRow] = []
    for token in (*proposed, None):
        row = ahead.row()
        if row is None:
            break
        rows.append(row)
        if token is None or not ahead.take(token):
            break
    return rows


class RowsAhead:
    """How to draw the tokens that follow a sequence's last, each taken for granted for the next.

    Args:
        seq: The sequence, which stays as it is.
    """

    __slots__ = ("_matcher", "_seq", "_taken")

    def __init__(self, seq: Sequence) -> None:
        self._seq = seq
        self._matcher = None if seq.matcher is None else seq.matcher.fork()
        self._taken: list[int] = []

    def row(self) -> SamplingRow | None:
        """How to draw the next one; None where the grammar goes on no further.

        Raises:
            MatcherError: The matcher can't go on, and nothing has been taken for granted yet:
                where something has, it is asked again where it comes to that.
        """
        seq, taken = self._seq, self._taken
        allowed = None
        if self._matcher is not None:
            try:
                if self._matcher.complete:
                    return None
                allowed = self._matcher.allowed()
            except MatcherError:
                if taken:
                    return None
                raise
            if _only_end_is_left(allowed, seq, len(seq.output) + len(taken)):
                return None
        return _row(seq, seq.index, allowed, taken.copy())

    def guess_row(self) -> SamplingRow | None:
        """The same for a guess: without its log-probability, for which nobody asks."""
        try:
            row = self.row()
        except MatcherError:  # which ends the sequence, but isn't said here
            return None
        if row is not None and row.params.logprobs is not None:
            row.params = replace(row.params, logprobs=None)
        return row

    def take(self, token: int) -> bool:
        """Take a token for granted; returns whether the grammar allows it."""
        if self._matcher is not None:
            try:
                self._matcher.accept([token])
            except MatcherError:
                return False
        self._taken.append(token)
        return True


def _row(
    seq: Sequence, index: int, allowed: bytes | None, proposed: SequenceOf[int] = ()
) -> SamplingRow:
    """How to draw the token that follows.

    Args:
        seq: The sequence.
        index: Which of the request's sequences it is drawn for.
        allowed: The mask of the tokens that the grammar allows, if there is one.
        proposed: Tokens taken for granted behind the sequence's last.
    """
    group = seq.group
    params = group.params
    assert params is not None, "what pools draws no tokens"
    length = len(seq.output) + len(proposed)
    banned = group.banned_after(length)
    if group.needs_history:
        output = [*seq.output, *proposed] if proposed else seq.output
        return SamplingRow(params, group.seed, index, length, group.prompt, output, banned, allowed)
    return SamplingRow(params, group.seed, index, length, (), (), banned, allowed)


def _pooling_step(seq: Sequence, pooling: Pool) -> SequenceStep:
    context = seq.memory.length
    end = context + seq.planned
    return SequenceStep(
        seq.tokens[context:end],
        context,
        seq.memory.blocks,
        pooled_rows=_pooled_rows(seq, pooling, context, end),
        second_segment=pooling.second_segment,
        adapter=seq.group.adapter,
    )


def _pooled_rows(seq: Sequence, pooling: Pool, context: int, end: int) -> PooledRows | None:
    """Which states of the tokens from `context` to `end` are wanted and not yet known."""
    group = seq.group
    match pooling.kind:
        case "mean":
            first = group.pooled_tokens
            if first < end:
                return PooledRows(first - context, end - first, group.pooled)
        case "cls":
            if context == 0 and group.pooled is None:
                return PooledRows(0, 1)
        case "last":
            if end == len(seq.tokens):
                return PooledRows(end - context - 1, 1)
    return None
