"""The requests that live: how each of their sequences ends, once, and what is reported of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf

from caudal.backends.executor import SampledToken
from caudal.engine.adapters import Adapters
from caudal.engine.counters import Counters
from caudal.engine.drafting.drafting import Drafting
from caudal.engine.request import FinishReason, Missed, SequenceUpdate
from caudal.engine.scheduler import Scheduler
from caudal.engine.sequence import Sequence, SequenceGroup


class LiveRequests:
    """Every request that was accepted and has not ended, and the updates that nobody has yet.

    Args:
        scheduler: Holds their sequences; told of every end.
        counters: Count every end and every token.
        adapters: Told of every request's end.
        drafting: Told of every sequence's end.
        clock: The engine's.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        counters: Counters,
        adapters: Adapters,
        drafting: Drafting,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._adapters = adapters
        self._drafting = drafting
        self._clock = clock
        self._groups: dict[str, SequenceGroup] = {}
        self._updates: list[SequenceUpdate] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._groups

    @property
    def has_updates(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._updates)

    def take_updates(self) -> list[SequenceUpdate]:
        """What has become of sequences since the last call."""
        updates, self._updates = self._updates, []
        return updates

    def add(self, group: SequenceGroup) -> None:
        """A request begins to live."""
        self._groups[group.request.request_id] = group

    def report(self, seq: Sequence, tokens: SequenceOf[SampledToken], now: float) -> None:
        """A sequence goes on by these tokens."""
        self._counters.generated_tokens += len(tokens)
        self._updates.append(seq.group.update(seq.index, now, tokens))

    def end(
        self,
        seq: Sequence,
        reason: FinishReason,
        now: float,
        *,
        tokens: SequenceOf[SampledToken] = (),
        stop_token: int | None = None,
        error: str | None = None,
        missed: Missed | None = None,
        keep: bool = True,
    ) -> None:
        """End a sequence and all that it stands for.

        Args:
            seq: The sequence.
            reason: How it ends.
            now: The engine's clock.
            tokens: By which it has gone on before.
            stop_token: The token that ended it, where one did.
            error: What went wrong, where something did.
            missed: Which deadline, where it was that.
            keep: Leave what it computed in the prefix cache.
        """
        self._scheduler.end(seq, keep=keep)
        self._drafting.ended(seq)
        self._counters.generated_tokens += len(tokens)
        for index in seq.branches:
            update = seq.group.update(index, now, tokens, reason, stop_token, error, missed)
            self._updates.append(update)
            self._forget(seq.group, index, reason)

    def fail(self, sequences: Iterable[Sequence], error: str) -> None:
        """End sequences that can't go on; nothing of what they computed is kept."""
        now = self._clock()
        for seq in sequences:
            self.end(seq, FinishReason.FAILED, now, error=error, keep=False)

    def cancel(self, request_id: str, index: int | None, reason: FinishReason) -> bool:
        """End a request, or one of its sequences; returns whether there was anything to end."""
        group = self._groups.get(request_id)
        if group is None or (index is not None and index not in group.sequences):
            return False
        self.stop(group, reason, index=index)
        return True

    def cancel_all(self) -> None:
        """End every request."""
        for group in list(self._groups.values()):
            self.stop(group, FinishReason.CANCELLED)

    def stop(
        self,
        group: SequenceGroup,
        reason: FinishReason,
        *,
        index: int | None = None,
        error: str | None = None,
        missed: Missed | None = None,
    ) -> None:
        """End a request, or one of its sequences, whether that has forked yet or not."""
        now = self._clock()
        for each in list(group.sequences) if index is None else [index]:
            seq = group.sequences[each]
            if len(seq.branches) == 1:
                self.end(seq, reason, now, error=error, missed=missed)
            else:
                self._updates.append(group.update(each, now, (), reason, None, error, missed))
                seq.branches.remove(each)
                self._forget(group, each, reason)

    def _forget(self, group: SequenceGroup, index: int, reason: FinishReason) -> None:
        self._counters.finished[reason] += 1
        del group.sequences[index]
        if not group.sequences:
            del self._groups[group.request.request_id]
            self._adapters.leave(group.request.adapter)
