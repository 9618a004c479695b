"""How an answer grows: what a sequence asks to be drawn, and what becomes of what was drawn.

Tokens get into an answer in one way (`grow`), whether they were drawn one by one, accepted where
they had been proposed, or are the first of one of the `n` sequences that a prompt forks into.

A grammar says which tokens may come next, and which must. Jump-ahead (the name is SGLang's, arXiv
2312.07104): text that the grammar forces needs no tokens drawn for it. It is appended at once, and
computed like a piece of a prompt; where every token's log-probability is asked for, it is proposed
instead: all of it is computed in one iteration, and drawn at every place. A matcher forces only
tokens that the model's tokenizer would cut in the same way whatever follows, but a model may draw
others for the same text; then the rest of the proposal doesn't count.

What is forced or proposed depends on a sequence's own tokens alone, and so do the random numbers of
those drawn; hence an answer is the same however it is batched, and with proposals as without.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from caudal.backends.base import SampledToken, SamplingRow
from caudal.engine.grammar import MatcherError
from caudal.engine.request import FinishReason
from caudal.engine.sequence import Sequence


def rows_to_draw(seq: Sequence) -> SequenceOf[SamplingRow] | None:
    """What is to be drawn after the tokens planned; nothing where they don't reach the last.

    Returns:
        A row for each branch; or where proposed tokens are planned, one for each of them and one
        for the token behind them. There may be fewer of these, as the grammar goes on no further.
        None where it would only let the answer end, and `min_tokens` or `ignore_eos` not.

    Raises:
        MatcherError: The matcher can't go on.
    """
    proposed = seq.table.length + seq.planned - len(seq.tokens)
    if proposed < 0 or seq.state.room <= 0:
        return ()
    if proposed:
        return _rows_along(seq, seq.draft[:proposed]) or None
    allowed = None
    if seq.matcher is not None:
        allowed = seq.matcher.allowed()
        if _only_end_is_left(allowed, seq, len(seq.output)):
            return None
    return [seq.row(index, allowed) for index in seq.branches]


def grow(
    seq: Sequence, drawn: SequenceOf[SampledToken]
) -> tuple[SequenceOf[SampledToken], FinishReason | None, int | None]:
    """Let an answer go on by tokens that count, and by what must follow them.

    Args:
        seq: The sequence.
        drawn: What was drawn for it. Nothing, for what every answer begins with: that will be
            reported with the first token drawn, and leaves one at least to be drawn.

    Returns:
        The tokens to report, how the answer has ended if it has, and the token that ended it.
        What was drawn behind an end doesn't count.

    Raises:
        MatcherError: The matcher can't go on.
    """
    state = seq.state
    output, matcher = seq.output, seq.matcher
    new = drawn
    if seq.reported < len(output):
        new = [*map(SampledToken, output[seq.reported :]), *drawn]
    reason: FinishReason | None = None
    stop_token: int | None = None
    for sampled in drawn:
        token = sampled.token
        seq.tokens.append(token)
        output.append(token)
        if token in state.ending and len(output) > state.min_tokens:
            reason, stop_token = FinishReason.STOP, token
        elif matcher is not None:
            matcher.accept([token])
            if matcher.complete:
                reason = FinishReason.STOP
        if reason is None and len(output) >= state.room:
            reason = FinishReason.LENGTH
        if reason is not None:
            new = new[: len(output) - seq.reported]
            break
    if matcher is not None and reason is None:
        forced = _jump_ahead(seq, at_first=not drawn)
        if forced:
            new = [*new, *map(SampledToken, forced)]
            if matcher.complete:
                reason = FinishReason.STOP
            elif len(output) >= state.room:
                reason = FinishReason.LENGTH
    if drawn:
        seq.reported = len(output)
    return new, reason, stop_token


def _jump_ahead(seq: Sequence, *, at_first: bool) -> SequenceOf[int]:
    """Append what the grammar forces next, or propose it; returns what was appended."""
    state, matcher = seq.state, seq.matcher
    limit = state.room - len(seq.output)
    if matcher is None or not state.jumps or limit <= 0:
        return ()
    tokens = list(matcher.forced()[:limit])
    for place, token in enumerate(tokens):
        if token in state.ending or token in state.eos_token_ids:
            del tokens[place:]  # ending is decided where it is drawn
            break
    if state.draws_all:
        if len(seq.branches) == 1:  # they may draw different tokens
            seq.draft = tokens[: limit - 1]  # one more is drawn behind them
        return ()
    if at_first:
        del tokens[limit - 1 :]
        trial = matcher.fork()
        trial.accept(tokens)
        if trial.complete:
            tokens.pop()
    if tokens:
        matcher.accept(tokens)
        seq.tokens += tokens
        seq.output += tokens
    return tokens


def _rows_along(seq: Sequence, proposed: SequenceOf[int]) -> list[SamplingRow]:
    """A row for each proposed token, and one behind them, as far as the grammar goes on."""
    matcher = None if seq.matcher is None else seq.matcher.fork()
    rows: list[SamplingRow] = []
    for place in range(len(proposed) + 1):
        allowed = None
        if matcher is not None:
            try:
                if place:
                    matcher.accept(proposed[place - 1 : place])
                if matcher.complete:
                    break
                allowed = matcher.allowed()
            except MatcherError:
                if rows:
                    break  # it is asked again where it comes to that
                raise
            if _only_end_is_left(allowed, seq, len(seq.output) + place):
                break
        rows.append(seq.row(seq.index, allowed, proposed[:place]))
    return rows


def _only_end_is_left(allowed: bytes, seq: Sequence, length: int) -> bool:
    """Whether the grammar would only let the answer end, and `min_tokens` or `ignore_eos` not.

    Args:
        allowed: The tokens that the grammar allows next, as `Matcher.allowed` has them.
        seq: The sequence.
        length: Of the answer so far.
    """
    banned = seq.state.banned_after(length)
    if not banned:
        return False
    left = int.from_bytes(allowed, "little")
    ends = any(left >> token & 1 for token in seq.state.eos_token_ids)
    for token in banned:
        left &= ~(1 << token)
    return ends and not left
