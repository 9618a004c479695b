"""Which tokens an answer may have: `allowed_token_ids` and `bad_words`.

This is a grammar for the engine, around the one that the answer is held to, if any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caudal.engine.grammar import Grammar, Matcher
from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.sampling_params import SamplingParams


def with_token_rules(
    params: SamplingParams, tokenizer: Tokenizer, inner: Grammar | None
) -> Grammar | None:
    """The grammar of a request, with its rules for tokens around it where it has any.

    Args:
        params: The request's parameters, checked.
        tokenizer: Says which tokens a bad word has.
        inner: The form that the answer must have besides.

    Raises:
        ParameterError: A token id doesn't exist, or no token is left to begin with.
    """
    if params.allowed_token_ids is None and not params.bad_words:
        return inner
    size = tokenizer.vocab_size
    params.validate_for_vocabulary(size)
    if params.allowed_token_ids is None:
        allowed = (1 << size) - 1
    else:
        bits = bytearray((size + 7) // 8)
        for token in params.allowed_token_ids:
            bits[token // 8] |= 1 << token % 8
        allowed = int.from_bytes(bits, "little")
    banned: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for word in params.bad_words:
        plain = word.lstrip()
        # At the beginning of a text or within it, and after a space.
        for text in (plain, f" {plain}"):
            *before, last = tokenizer.encode_continuation(text)
            if before:
                banned.setdefault(before[-1], []).append((tuple(before), last))
            else:
                allowed &= ~(1 << last)
    rules = TokenRules(allowed.to_bytes((size + 7) // 8, "little"), banned, inner)
    begin = rules.matcher()
    if not begin.complete and not any(begin.allowed()):
        name = "bad_words" if params.allowed_token_ids is None else "allowed_token_ids"
        what = "an answer" if inner is None else "an answer of the form that is demanded"
        raise ParameterError(name, f"{name} leaves no token that {what} can begin with.")
    return rules


@dataclass(frozen=True, slots=True)
class TokenRules:
    """A grammar (see `caudal.engine.grammar.Grammar`).

    Attributes:
        mask: The tokens that are allowed anywhere: bit i % 8 of byte i // 8 for token i.
        banned: What must not follow: by the token before, all the tokens before and the one that
            would complete a bad word.
        inner: The grammar that the answer is held to besides.
    """

    mask: bytes
    banned: Mapping[int, Sequence[tuple[tuple[int, ...], int]]]
    inner: Grammar | None = None

    @property
    def longest(self) -> int:
        """Most tokens that have to be known to tell what must not follow."""
        return max((len(before) for ends in self.banned.values() for before, _ in ends), default=0)

    def matcher(self) -> RulesMatcher:
        """A matcher at the answer's start."""
        return RulesMatcher(self, None if self.inner is None else self.inner.matcher(), ())


class RulesMatcher:
    """What a sequence may go on with (see `caudal.engine.grammar.Matcher`)."""

    def __init__(self, rules: TokenRules, inner: Matcher | None, recent: Sequence[int]) -> None:
        self._rules = rules
        self._inner = inner
        self._longest = rules.longest
        self._recent = list(recent)  # as many tokens as matter

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._inner is not None and self._inner.complete

    def allowed(self) -> bytes:
        """The tokens that may come next; see `Matcher.allowed`."""
        ends = self._ends(self._recent)
        if self._inner is None and not ends:
            return self._rules.mask
        left = int.from_bytes(self._rules.mask, "little")
        if self._inner is not None:
            left &= int.from_bytes(self._inner.allowed(), "little")
        for token in ends:
            left &= ~(1 << token)
        return left.to_bytes(len(self._rules.mask), "little")

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens; see `Matcher.accept`."""
        if self._inner is not None:
            self._inner.accept(tokens)
        self._recent = self._after(self._recent, tokens)

    def forced(self) -> Sequence[int]:
        """The tokens that follow in any case; see `Matcher.forced`. None that isn't allowed."""
        tokens = () if self._inner is None else self._inner.forced()
        recent = self._recent
        for place, token in enumerate(tokens):
            allowed = self._rules.mask[token // 8] >> token % 8 & 1
            if not allowed or token in self._ends(recent):
                return tokens[:place]
            recent = self._after(recent, [token])
        return tokens

    def fork(self) -> RulesMatcher:
        """A second matcher at the same place."""
        inner = None if self._inner is None else self._inner.fork()
        return RulesMatcher(self._rules, inner, self._recent)

    def _after(self, recent: list[int], tokens: Sequence[int]) -> list[int]:
        return [*recent, *tokens][-self._longest :] if self._longest else []

    def _ends(self, recent: list[int]) -> list[int]:
        """The tokens that would complete a bad word."""
        if not recent:
            return []
        return [
            last
            for before, last in self._rules.banned.get(recent[-1], ())
            if tuple(recent[-len(before) :]) == before
        ]
