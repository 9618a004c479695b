"""How an answer grows: by what was drawn, and by what must follow.

Tokens get into an answer in one way (`grow`), whether they were drawn one by one, accepted where
they had been proposed, or are the first of one of the `n` sequences that a prompt forks into.

Jump-ahead (the name is SGLang's, arXiv 2312.07104): text that a grammar forces needs no tokens
drawn for it. It is appended at once, and computed like a piece of a prompt; where every token's
log-probability is asked for, it is proposed instead: all of it is computed in one iteration, and
drawn at every place. A matcher forces only tokens that the model's tokenizer would cut in the same
way whatever follows, but a model may draw others for the same text; then the rest of the proposal
doesn't count.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from caudal.backends.executor import SampledToken
from caudal.engine.drafting.speculation import MAX_PROPOSED
from caudal.engine.request import FinishReason
from caudal.engine.sequence import Sequence


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
    group = seq.group
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
        if token in group.ending and len(output) > group.min_tokens:
            reason, stop_token = FinishReason.STOP, token
        elif matcher is not None:
            matcher.accept([token])
            if matcher.complete:
                reason = FinishReason.STOP
        if reason is None and len(output) >= group.max_output_tokens:
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
            elif len(output) >= group.max_output_tokens:
                reason = FinishReason.LENGTH
    if drawn:
        seq.reported = len(output)
    return new, reason, stop_token


def _jump_ahead(seq: Sequence, *, at_first: bool) -> SequenceOf[int]:
    """Append what the grammar forces next, or propose it; returns what was appended."""
    group, matcher = seq.group, seq.matcher
    limit = group.max_output_tokens - len(seq.output)
    if matcher is None or not group.jumps or limit <= 0:
        return ()
    tokens = list(matcher.forced()[:limit])
    for place, token in enumerate(tokens):
        if token in group.ending or token in group.eos_token_ids:
            del tokens[place:]  # ending is decided where it is drawn
            break
    if group.draws_all:
        if len(seq.branches) == 1:  # they may draw different tokens
            seq.draft = tokens[: min(limit - 1, MAX_PROPOSED)]  # one more is drawn behind them
        return ()
    if at_first and tokens:
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
