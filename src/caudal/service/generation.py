"""From the engine's token updates to text: the one place where both HTTP and the library get it.

A `Generation` is a submitted request. Its `deltas()` yield `Delta`s: text that is final and the
tokens it came from, as plain data (`caudal.service.answers`). Characters appear when all their
bytes have, and text that may become a stop string is held back until that is decided, so what is
streamed never has to be taken back.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import Protocol

from caudal.backends.executor import SampledToken, TokenLogprob
from caudal.engine.drafting.lookup import tokens_as_predicted
from caudal.engine.request import FinishReason, Generate, Request, SequenceUpdate
from caudal.errors import (
    CaudalError,
    EngineDeadError,
    RequestFailedError,
    RequestTimeoutError,
)
from caudal.formats.detokenizer import IncrementalDetokenizer
from caudal.formats.tokenizer import Tokenizer
from caudal.sampling_params import SamplingParams
from caudal.service.answers import AnswerTimes, Delta, OutputToken, SubmittedPrompt, Usage
from caudal.service.scores import prompt_tokens, token_score
from caudal.service.stop_strings import StopMatcher


class UpdateStream(Protocol):
    """The updates of a submitted request, a list per iteration. Closing it cancels the request."""

    def __aiter__(self) -> AsyncIterator[Sequence[SequenceUpdate]]: ...

    def cancel(self, index: int, reason: FinishReason = FinishReason.CANCELLED) -> object:
        """End one of the request's sequences at the next iteration."""

    async def aclose(self) -> None: ...


def check_end(update: SequenceUpdate) -> None:
    """Raise where a sequence has ended otherwise than with what was asked for.

    Raises:
        RequestTimeoutError: A deadline passed.
        RequestFailedError: The executor failed.
        EngineDeadError: The engine was shut down: who cancels a request reads no more of it.
    """
    match update.finish_reason:
        case FinishReason.TIMEOUT:
            message, missed = update.error or "The request's deadline passed.", update.missed
            if missed is None:
                raise RequestTimeoutError(message)
            raise RequestTimeoutError(message, missed.limit, missed.retry_after)
        case FinishReason.FAILED:
            raise RequestFailedError(update.error or "The model could not be run.")
        case FinishReason.CANCELLED:
            raise EngineDeadError("The engine was shut down before the answer was complete.")


class GenerationObserver(Protocol):
    """Hears of a request's progress, for metrics."""

    def on_update(self, update: SequenceUpdate) -> None:
        """A sequence that has not ended got on."""

    def on_end(self, generation: Generation) -> None:
        """The request has ended, well or not: see `Generation.outcome`. Called once."""


class SequenceText:
    """Turns one sequence's tokens into text, watching for stop strings."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        index: int = 0,
        *,
        visible_tokens: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            visible_tokens=visible_tokens,
        )
        self._matcher = StopMatcher(params.stop)
        self._stops = bool(params.stop)
        self._params = params
        self._index = index
        self._held_text = ""  # decoded, not released
        self._held_tokens: list[tuple[SampledToken, int, int]] = []  # token, text begin, text end
        self._released = 0  # characters released
        self._decoded = 0  # characters decoded
        self.finished = False
        self.num_tokens = 0

    def push(self, update: SequenceUpdate) -> Delta | None:
        """Take an update; returns what became final, or None if nothing did.

        A stop string ends the sequence here even where the engine has gone on: `finished` says
        so, and further updates are ignored.
        """
        if self.finished:
            return None
        tokens = update.tokens
        if len(tokens) == 1 and not (update.finish_reason or self._stops or self._held_tokens):
            # A token that ends nothing where nothing is held back: what nearly all are.
            [sampled] = tokens
            piece = self._detokenizer.push(sampled.token)
            begin = self._decoded
            end = begin + len(piece)
            self.num_tokens += 1
            if not piece:
                self._held_tokens.append((sampled, begin, end))
                return None
            self._decoded = self._released = end
            plain = sampled.logprob is None
            token = OutputToken(sampled.token, begin) if plain else self._output(sampled, begin)
            return Delta(self._index, piece, [token])
        ended_by_token = update.stop_token is not None
        for sampled in tokens[:-1] if ended_by_token else tokens:
            self.num_tokens += 1
            if delta := self._decode(sampled, self._detokenizer.push(sampled.token)):
                return delta
        if update.finish_reason is None:
            return self._release(self._decoded - self._matcher.held_back)
        if delta := self._decode(None, self._detokenizer.finish()):
            return delta
        if ended_by_token:
            self.num_tokens += 1
        return self._finish(update)

    def _output(self, sampled: SampledToken, offset: int, in_text: bool = True) -> OutputToken:
        scored = sampled.logprob
        if scored is None:
            return OutputToken(sampled.token, offset, in_text)
        piece = self._tokenizer.token_bytes(sampled.token)
        return OutputToken(
            sampled.token, offset, in_text, piece, token_score(self._tokenizer, scored)
        )

    def _decode(self, sampled: SampledToken | None, piece: str) -> Delta | None:
        """Append a token's text; returns the last delta if it completes a stop string."""
        begin = self._decoded
        self._held_text += piece
        self._decoded += len(piece)
        if sampled is not None:
            self._held_tokens.append((sampled, begin, self._decoded))
        match = self._matcher.feed(piece) if piece else None
        if match is None:
            return None
        position, stop = match
        end = begin + position
        cut = end if self._params.include_stop_str_in_output else end - len(stop)
        self.finished = True
        text = self._take_text(cut)
        outputs = [
            self._output(token, token_begin, token_begin < cut)
            for token, token_begin, _ in self._held_tokens
        ]
        self._held_tokens.clear()
        return Delta(self._index, text, outputs, FinishReason.STOP.value, stop)

    def _finish(self, update: SequenceUpdate) -> Delta:
        assert update.finish_reason is not None
        self.finished = True
        text = self._take_text(self._decoded)
        outputs = [self._output(token, begin) for token, begin, _ in self._held_tokens]
        self._held_tokens.clear()
        stop_reason = None
        if update.stop_token is not None:
            outputs.append(self._output(update.tokens[-1], self._decoded, False))
            if update.stop_token in self._params.stop_token_ids:
                stop_reason = update.stop_token
        return Delta(self._index, text, outputs, update.finish_reason.value, stop_reason)

    def _release(self, end: int) -> Delta | None:
        text = self._take_text(end)
        if not text:  # tokens that have no text yet wait for those that complete it
            return None
        outputs: list[OutputToken] = []
        # A token at the very end has no text yet: what completes it may become a stop string.
        while self._held_tokens and self._held_tokens[0][1] < end >= self._held_tokens[0][2]:
            token, begin, _ = self._held_tokens.pop(0)
            outputs.append(self._output(token, begin))
        return Delta(self._index, text, outputs)

    def _take_text(self, end: int) -> str:
        # A match may begin in text before `end` that was never released, but not earlier: whatever
        # could become a match was held back.
        length = end - self._released
        text, self._held_text = self._held_text[:length], self._held_text[length:]
        self._released = end
        return text


class Generation:
    """A submitted request, as a stream of text.

    Args:
        request: What was submitted: to generate.
        updates: What submitting it returned.
        tokenizer: The model's.
        observer: Hears of its progress.
        visible_tokens: Control tokens that are part of the text whatever the request says.
        prompt: What is to be told of the prompt; by default how long it is.
        begun: When it was begun to be made ready; by default it was ready at once.
        submitted: When it was given to the engine; by default now.

    Attributes:
        request: What was submitted.
        prompt: See above.
        params: The request's sampling parameters.
        num_cached_tokens: Prompt tokens taken from the prefix cache, known with the first delta.
        outcome: None while it runs; then "stop", "length" (if any sequence ended so), "cancelled",
            "timeout" or "failed".
    """

    def __init__(
        self,
        request: Request,
        updates: UpdateStream,
        tokenizer: Tokenizer,
        observer: GenerationObserver | None = None,
        *,
        visible_tokens: Collection[int] = (),
        prompt: SubmittedPrompt | None = None,
        begun: float | None = None,
        submitted: float | None = None,
    ) -> None:
        if not isinstance(request.work, Generate):
            raise TypeError("what pools has no text")
        self.request = request
        self.params = request.work.params
        self.num_cached_tokens = 0
        self.prompt = prompt or SubmittedPrompt(len(request.prompt))
        self.outcome: str | None = None
        self._prompt_scores: Sequence[TokenLogprob] | None = None
        self._submitted = time.monotonic() if submitted is None else submitted
        self._begun = self._submitted if begun is None else begun
        self._first: SequenceUpdate | None = None  # that has tokens
        self._latest: SequenceUpdate | None = None
        self._tokenizer = tokenizer
        self._updates = updates
        self._observer = observer
        self._sequences = [
            SequenceText(tokenizer, self.params, index, visible_tokens=visible_tokens)
            for index in range(self.params.n)
        ]
        self._unfinished = len(self._sequences)
        self._prediction = request.work.prediction
        self._predicted: list[list[int]] = [[] for _ in self._sequences]

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens over all sequences, up to the one that completed a stop string."""
        return sum(sequence.num_tokens for sequence in self._sequences)

    @property
    def usage(self) -> Usage:
        """The request's figures, as of the latest deltas."""
        accepted, rejected = self._of_prediction()
        return Usage(
            self.prompt.num_tokens,
            self.num_cached_tokens,
            self.num_output_tokens,
            times=None if self.outcome is None else self._times(),
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=rejected,
        )

    def _of_prediction(self) -> tuple[int, int]:
        """Tokens that came as predicted, over all sequences, and those predicted that didn't."""
        prediction = self._prediction
        accepted = rejected = 0
        if prediction:
            for tokens, sequence in zip(self._predicted, self._sequences, strict=True):
                right = tokens_as_predicted(prediction, tokens[: sequence.num_tokens])
                accepted += right
                rejected += max(0, len(prediction) - right)
        return accepted, rejected

    def _times(self) -> AnswerTimes:
        latest, first = self._latest, self._first
        if latest is None:  # given up before anything was heard of it
            return AnswerTimes(self._begun, self._submitted)
        return AnswerTimes(
            self._begun,
            self._submitted,
            latest.first_scheduled,
            None if first is None else first.time,
            None if first is None else latest.time,
        )

    @property
    def prompt_tokens(self) -> Sequence[OutputToken]:
        """The prompt's tokens with their scores, where asked for; known with the first delta."""
        if self._prompt_scores is None:
            return ()
        return prompt_tokens(self._tokenizer, self.request.prompt, self._prompt_scores)

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """Yield the deltas of each iteration, never an empty list. Use it once, and close it.

        Raises:
            RequestTimeoutError: A deadline passed.
            RequestFailedError: The executor failed.
            EngineDeadError: The engine stopped first.
        """
        reasons: set[str] = set()
        try:
            async for updates in self._updates:
                deltas = []
                for update in updates:
                    if delta := self._take(update):
                        deltas.append(delta)
                        if delta.finish_reason is not None:
                            reasons.add(delta.finish_reason)
                            self._stop_sequence(
                                update.index, ended=update.finish_reason is not None
                            )
                if deltas:
                    if not self._unfinished:
                        self._end("length" if "length" in reasons else "stop")
                    yield deltas
                if not self._unfinished:
                    self._end("stop")
                    return
            raise EngineDeadError("The engine stopped before the answer was complete.")
        except CaudalError:
            self._end("failed")
            raise
        finally:
            await self.aclose()

    def end_sequence(self, index: int, num_tokens: int) -> None:
        """Take no more of one of the sequences: its first tokens are its answer.

        Args:
            index: Which one.
            num_tokens: How many tokens its answer has. The engine may have been further.
        """
        sequence = self._sequences[index]
        sequence.num_tokens = num_tokens
        if not sequence.finished:
            sequence.finished = True
            self._stop_sequence(index, ended=False)

    async def aclose(self) -> None:
        """Give up what still runs; the engine drops it at its next iteration."""
        await self._updates.aclose()
        self._end("cancelled")

    def _take(self, update: SequenceUpdate) -> Delta | None:
        sequence = self._sequences[update.index]
        if sequence.finished:
            return None
        self.num_cached_tokens = update.num_cached_tokens
        self._latest = update
        if self._first is None and update.tokens:
            self._first = update
        if update.prompt_logprobs is not None:
            self._prompt_scores = update.prompt_logprobs
        if update.finish_reason is not None:
            try:
                check_end(update)
            except RequestTimeoutError:
                self._end("timeout")
                raise
        if self._observer is not None:
            self._observer.on_update(update)
        if self._prediction:
            self._predicted[update.index] += [sampled.token for sampled in update.tokens]
        return sequence.push(update)

    def _stop_sequence(self, index: int, *, ended: bool) -> None:
        """A sequence is complete; `ended` says whether for the engine too."""
        self._unfinished -= 1
        # Closing the stream cancels the last one.
        if not ended and self._unfinished:
            self._updates.cancel(index, FinishReason.STOP)

    def _end(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            if self._observer is not None:
                self._observer.on_end(self)
