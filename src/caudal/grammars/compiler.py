"""Grammars for one model, by llguidance: compiled beside the event loop, checked, and kept.

A request's grammar is compiled before it is queued: what can't be enforced is refused while it is
still a bad request. What a grammar costs is bounded at both ends: here by its size (see
`grammar_source`) and llguidance's limits, and in the engine by the limits of each step, where a
grammar that turns out to explode fails its own request.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import llguidance
import numpy as np
from llguidance import TokenizerWrapper
from numpy.typing import NDArray

from caudal.engine.grammar import MatcherError
from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.source import grammar_source
from caudal.structured_outputs import StructuredOutputsParams

CACHED_GRAMMARS = 32
STACK_BYTES = 256 * 2**20
"""Of the compiling thread; only what is used is taken. Compiling goes down a level for each
reference in a chain of them, at up to 8 KB a level (measured), with no limit of its own."""

PROBE_STEPS = 16
"""Steps that a new grammar is tried for; one that can't begin, or explodes as it does, is refused.
"""

LONG_PROBE_STEPS = 40
"""The same with the longest tokens, which get further into what counts or repeats."""

RENEWAL_TOKENS = 64
"""Fewest tokens between two renewals of a grammar for one sequence."""

_USED_UP = re.compile("too many (states|expressions)")

# Lower than its defaults where a step in the engine, which holds up everyone, depends on them.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=300_000,  # some 30 ms
    step_max_items=20_000,
    max_lexer_states=64_000,  # of 2 KB each
    verbose_errors=False,
)


class MaskScratch(threading.local):
    """Where llguidance writes a mask before it is kept; each thread has its own.

    Args:
        vocab_size: Tokens there are.
    """

    def __init__(self, vocab_size: int) -> None:
        self.words = np.empty(-(-vocab_size // 32), np.uint32)
        self.address = self.words.ctypes.data
        self.size = self.words.nbytes


class LLGrammar:
    """A compiled grammar (see `caudal.engine.grammar.Grammar`).

    Its matchers share the states that llguidance finds as it goes, which is fast, but they are
    limited in number. A grammar whose states are used up is compiled anew.

    Args:
        start: A matcher at the start.
        renew: Makes another one that shares nothing with it.
        scratch: Where masks are computed.
    """

    def __init__(
        self,
        start: llguidance.LLMatcher,
        renew: Callable[[], llguidance.LLMatcher],
        scratch: MaskScratch,
    ) -> None:
        self.scratch = scratch
        self._start = start
        self._renew = renew
        self._generation = 0
        self._lock = threading.Lock()

    def matcher(self) -> LLMatcher:
        """A matcher at the grammar's start."""
        return LLMatcher(self, *self.start())

    def start(self, after: int = -1) -> tuple[llguidance.LLMatcher, int]:
        """A matcher at the start, and the generation of states that it shares.

        Args:
            after: A generation that is used up.
        """
        with self._lock:
            if self._generation == after:
                self._start = self._renew()
                self._generation += 1
            return self._start.deep_copy(), self._generation


class LLMatcher:
    """Where one sequence is in its grammar (see `caudal.engine.grammar.Matcher`)."""

    __slots__ = ("_generation", "_grammar", "_matcher", "_renewed_at", "_tokens")

    def __init__(self, grammar: LLGrammar, matcher: llguidance.LLMatcher, generation: int) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._generation = generation
        self._tokens: list[int] = []
        self._renewed_at = -RENEWAL_TOKENS

    @property
    def complete(self) -> bool:
        """Whether the grammar is matched and nothing but the end may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> bytes:
        """The tokens that may come next, a bit each; see `Matcher.allowed`."""
        mask = self._mask()
        if self._matcher.is_error():
            self._go_on_afresh()
            mask = self._mask()
            self._check()
        return mask

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens; see `Matcher.accept`."""
        self._tokens += tokens
        self._matcher.consume_tokens(list(tokens))
        if self._matcher.is_error():
            self._go_on_afresh()

    def forced(self) -> Sequence[int]:
        """The tokens that follow in any case; see `Matcher.forced`."""
        tokens = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            self._go_on_afresh()
            tokens = self._matcher.compute_ff_tokens()
            self._check()
        return tokens

    def fork(self) -> LLMatcher:
        """A second matcher at the same place."""
        twin = LLMatcher(self._grammar, self._matcher.deep_copy(), self._generation)
        twin._tokens = self._tokens.copy()
        twin._renewed_at = self._renewed_at
        return twin

    def _mask(self) -> bytes:
        # Not `compute_bitmask`: that hands the same bytes over one by one, which takes several
        # times as long as finding them with 262 000 tokens (13 µs instead of 2).
        scratch = self._grammar.scratch
        self._matcher.unsafe_compute_mask_ptr(scratch.address, scratch.size)
        return scratch.words.tobytes()

    def _go_on_afresh(self) -> None:
        """Come to the same place again with new states, where the grammar's are used up.

        Others may have used them, so it is no fault of this sequence; a grammar that uses them up
        again at once is too complex.

        Raises:
            MatcherError: It is, or something else is wrong.
        """
        used_up = _USED_UP.search(self._matcher.get_error()) is not None
        if not used_up or len(self._tokens) - self._renewed_at < RENEWAL_TOKENS:
            self._check()
        self._renewed_at = len(self._tokens)
        self._matcher, self._generation = self._grammar.start(after=self._generation)
        self._matcher.consume_tokens(self._tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatcherError(_reason(self._matcher.get_error()))


class GrammarCompiler:
    """Compiles what requests ask for, and keeps the latest results. Thread-safe.

    Args:
        tokenizer: The model's. Its vocabulary is indexed when it is first needed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._scratch = MaskScratch(tokenizer.vocab_size)
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._grammars: OrderedDict[StructuredOutputsParams, LLGrammar] = OrderedDict()
        self._guard = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._renewing: ThreadPoolExecutor | None = None
        self._lengths: NDArray[np.uint16] | None = None  # of tokens, in bytes

    def prepare(self) -> None:
        """Index the vocabulary now rather than when the first grammar is compiled.

        No other Python thread runs meanwhile: for 0.2 s with 49 000 tokens, 1.2 s with 262 000.
        """
        if self._tokenizer.eos_ids:
            self._compiling_thread().submit(self._index).result()

    async def compile(self, form: StructuredOutputsParams) -> LLGrammar:
        """Compile a grammar without holding up the event loop.

        Raises:
            ParameterError: See `compile_now`.
        """
        known = self._recall(form)
        if known is not None:
            return known
        return await asyncio.wrap_future(self._submit(form))

    def compile_now(self, form: StructuredOutputsParams) -> LLGrammar:
        """Compile a grammar, and wait for it.

        Raises:
            ParameterError: `structured_outputs`: it doesn't compile, is too large, or uses what
                can't be enforced; names the keyword or the place.
        """
        return self._recall(form) or self._submit(form).result()

    def _submit(self, form: StructuredOutputsParams) -> Future[LLGrammar]:
        return self._compiling_thread().submit(self._compile, form)

    def _compiling_thread(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._thread is None:
                # One at a time: compiling never takes more than one processor from the model.
                self._thread = _deep_thread("caudal-grammar")
            return self._thread

    def _start_anew(self, source: str) -> llguidance.LLMatcher:
        """Compile a grammar again, while the engine waits: so it doesn't queue behind new ones."""
        with self._guard:
            if self._renewing is None:
                self._renewing = _deep_thread("caudal-grammar-renewal")
            thread = self._renewing
        return thread.submit(self._start, source).result()

    def _start(self, source: str) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._index(), source, log_level=0, limits=_LIMITS)

    def _compile(self, form: StructuredOutputsParams) -> LLGrammar:
        known = self._recall(form)  # while this one waited, another may have come by it
        if known is not None:
            return known
        try:
            source = grammar_source(form)
        except (ValueError, RecursionError) as error:
            raise _refusal(form, str(error)) from error
        start = self._start(source)
        if start.is_error():
            raise _refusal(form, start.get_error())
        _probe(form, start.deep_copy())
        assert self._lengths is not None
        _probe_far(form, start.deep_copy(), self._lengths)
        grammar = LLGrammar(start, partial(self._start_anew, source), self._scratch)
        with self._guard:
            self._grammars[form] = grammar
            if len(self._grammars) > CACHED_GRAMMARS:
                self._grammars.popitem(last=False)
        return grammar

    def _recall(self, form: StructuredOutputsParams) -> LLGrammar | None:
        with self._guard:
            grammar = self._grammars.get(form)
            if grammar is not None:
                self._grammars.move_to_end(form)
            return grammar

    def _index(self) -> llguidance.LLTokenizer:
        if self._vocabulary is None:  # touched by the compiling thread alone
            self._vocabulary = _index_vocabulary(self._tokenizer)
            self._lengths = _token_lengths(self._tokenizer)
        return self._vocabulary


def _deep_thread(name: str) -> ThreadPoolExecutor:
    usual = threading.stack_size(STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1, name)
        pool.submit(int).result()  # the thread starts with the first task
        return pool
    finally:
        threading.stack_size(usual)


_SLICED_LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 16)
"""Characters of a JSON string up to which tokens are indexed together. Where as many may still
come, all of these are allowed at once, and only the others are looked at: a string with a
`maxLength` costs half of what it does with llguidance's own choice (10 and 30). More of them share
less of the tokens' beginnings, and cost as much as they save."""


def _slices() -> list[str]:
    """What tokens are indexed together by, as regular expressions, each a part of the last."""
    character = r'[^"\\\x00-\x1F\x7F]'
    lengths = (f"{character}{{1,{length}}}" for length in _SLICED_LENGTHS)
    return [r"[\x20\x0A\x0D\x09]+", *lengths, f"{character}+"]


class _Vocabulary:
    """What llguidance wants to know of a tokenizer, under the names it looks for."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(token) for token in ids]
        self.special_token_ids = [token for token in ids if tokenizer.is_control(token)]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode()
        return self._tokenizer.encode_continuation(text)


def _index_vocabulary(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    ends = sorted(tokenizer.eos_ids)
    if not ends:
        raise ParameterError(
            "structured_outputs",
            "This model has no end-of-sequence token, so its answers can't be held to a form.",
        )
    return llguidance.LLTokenizer(
        TokenizerWrapper(_Vocabulary(tokenizer, ends[0])),
        n_vocab=tokenizer.vocab_size,
        eos_token=ends,
        slices=_slices(),
    )


def _probe(form: StructuredOutputsParams, matcher: llguidance.LLMatcher) -> None:
    """Try a grammar for some steps, always by its first allowed token.

    Raises:
        ParameterError: It matches nothing, or hits a limit.
    """
    for _ in range(PROBE_STEPS):
        tokens = matcher.compute_ff_tokens()[:PROBE_STEPS]
        if not tokens and not matcher.is_error():
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            tokens = [(mask & -mask).bit_length() - 1] if mask else []
        if matcher.is_error():
            raise _refusal(form, matcher.get_error())
        if not tokens:
            raise _refusal(form, "it allows no token of this model")
        matcher.consume_tokens(tokens)
        if matcher.is_stopped() and not matcher.is_error():
            return


def _probe_far(
    form: StructuredOutputsParams, matcher: llguidance.LLMatcher, lengths: NDArray[np.uint16]
) -> None:
    """Try a grammar for more steps, always by the longest token that it allows.

    Args:
        form: What it was made of.
        matcher: At its start.
        lengths: Of all tokens, in bytes; 0 for those that end an answer.

    Raises:
        ParameterError: It hits a limit.
    """
    for _ in range(LONG_PROBE_STEPS):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise _refusal(form, matcher.get_error())
        allowed = np.unpackbits(mask, bitorder="little")[: len(lengths)] * lengths
        token = int(allowed.argmax())
        if not allowed[token]:
            return
        matcher.consume_tokens([token])
        if matcher.is_error():
            raise _refusal(form, matcher.get_error())
        if matcher.is_stopped():
            return


def _token_lengths(tokenizer: Tokenizer) -> NDArray[np.uint16]:
    lengths = [
        0 if tokenizer.is_control(token) else min(len(tokenizer.token_bytes(token)), 0xFFFF)
        for token in range(tokenizer.vocab_size)
    ]
    return np.array(lengths, np.uint16)


def _refusal(form: StructuredOutputsParams, reason: str) -> ParameterError:
    what = {
        "json": "This JSON schema",
        "json_object": "JSON",
        "regex": f"The pattern {_shortened(form.regex or '')!r}",
        "choice": "These choices",
        "grammar": "This grammar",
    }[form.kind]
    return ParameterError("structured_outputs", f"{what} can't be enforced: {_reason(reason)}.")


def _reason(message: str) -> str:
    """The gist of an error: llguidance appends the grammar's lines and the parser's state."""
    lines = message.strip().splitlines() or ["no reason is given"]
    first = lines[0]
    if first.startswith("NoExtension"):
        return "it matches no text"
    if "regex parse error" in first:
        for line in lines:
            if line.startswith("error: "):
                first = line.removeprefix("error: ")
    if any(
        word in first for word in ("limit", "max is", "fuel", "too many", "too big", "too large")
    ):
        first = f"it is too complex: {first}"
    return _shortened(first.removesuffix("."), 400)


def _shortened(text: str, length: int = 80) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
