"""What a grammar does to a sequence: which tokens it may draw next, and which it need not draw.

Jump-ahead (the name is SGLang's, arXiv 2312.07104): text that the grammar forces is appended at
once and computed like a piece of a prompt. Tokens are never taken back, for a matcher forces only
those that the model's tokenizer would cut in the same way whatever follows. What is forced depends
on a sequence's own tokens alone, and so do the random numbers of those drawn; hence an answer is
the same however it is batched.
"""

from __future__ import annotations

from caudal.backends.base import SampledToken
from caudal.engine.sequence import Sequence


def only_end_is_left(allowed: bytes, seq: Sequence) -> bool:
    """Whether the grammar would only let the answer end, and `min_tokens` or `ignore_eos` not.

    Args:
        allowed: The tokens that the grammar allows next, as `Matcher.allowed` has them.
        seq: The sequence.
    """
    banned = seq.banned
    if not banned:
        return False
    left = int.from_bytes(allowed, "little")
    ends = any(left >> token & 1 for token in seq.state.eos_token_ids)
    for token in banned:
        left &= ~(1 << token)
    return ends and not left


def advance(seq: Sequence, token: int) -> list[SampledToken]:
    """Go on in the grammar by the token just drawn, and append what must follow it.

    Returns:
        The tokens appended: as many as there is room for, or the answer is complete with.

    Raises:
        MatcherError: The matcher can't go on.
    """
    matcher = seq.matcher
    if matcher is None:
        return []
    matcher.accept([token])
    if matcher.complete:
        return []
    tokens = _forced(seq, seq.state.room - len(seq.output))
    if tokens:
        matcher.accept(tokens)
        seq.append(tokens)
    return [SampledToken(token) for token in tokens]


def begin(seq: Sequence) -> None:
    """Append what every answer begins with. One token at least is left to be drawn.

    Raises:
        MatcherError: The matcher can't go on.
    """
    tokens = _forced(seq, seq.state.room - 1)
    if seq.matcher is None or not tokens:
        return
    trial = seq.matcher.fork()
    trial.accept(tokens)
    if trial.complete:
        tokens.pop()
    seq.matcher.accept(tokens)
    seq.append(tokens)
    seq.unreported = [SampledToken(token) for token in tokens]


def _forced(seq: Sequence, room: int) -> list[int]:
    """Tokens that must follow, up to one that ends answers: ending is decided where it is drawn."""
    if seq.matcher is None or not seq.state.jumps or room <= 0:
        return []
    tokens = list(seq.matcher.forced()[:room])
    for place, token in enumerate(tokens):
        if token in seq.state.ending or token in seq.state.eos_token_ids:
            return tokens[:place]
    return tokens
