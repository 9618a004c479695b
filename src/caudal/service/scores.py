"""Log-probabilities in the tokenizer's terms, so that nobody needs it to write them."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.backends.executor import TokenLogprob
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.formats.tokenizer import Tokenizer
from caudal.service.answers import LikelyToken, OutputToken, TokenScore


def token_score(tokenizer: Tokenizer, scored: TokenLogprob) -> TokenScore:
    """How likely a token was, with the bytes of the likeliest."""
    piece = tokenizer.token_bytes
    return TokenScore(
        scored.logprob,
        scored.rank,
        [LikelyToken(token, logprob, piece(token)) for token, logprob in scored.top],
    )


def prompt_tokens(
    tokenizer: Tokenizer, prompt: Sequence[int], scores: Sequence[TokenLogprob]
) -> list[OutputToken]:
    """A prompt's tokens, with their places in its text without control tokens.

    Args:
        tokenizer: The model's.
        prompt: The tokens.
        scores: One per token after the first, which follows nothing and has none.
    """
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=True)
    tokens: list[OutputToken] = []
    offset = 0
    for token, scored in zip(prompt, (None, *scores), strict=True):
        score = None if scored is None else token_score(tokenizer, scored)
        tokens.append(OutputToken(token, offset, True, tokenizer.token_bytes(token), score))
        offset += len(detokenizer.push(token))
    return tokens
