"""Who is loaded next, and who has to go for it: decided of plain figures, without doing any of it.

Models that requests wait for stand in a line, the one whose request has waited longest first;
tenants take turns, so that who asks for many models gets one, and not all of them, before another's
first. The first in line gets the room that there is, or that others leave; those behind it get what
it doesn't need. A model that answers keeps its place for a *turn*, so that two that don't fit
together each answer all that has come meanwhile instead of being loaded anew for every request.
Then it is closed: what comes for it has to wait, what runs ends, and it makes way.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Stage(enum.Enum):
    """How far a model is on its way."""

    UNLOADED = "unloaded"
    READING = "reading"
    READ = "read"
    OPENING = "opening"
    LOADED = "loaded"
    UNLOADING = "unloading"
    CLOSING = "closing"  # it has been read, and is given up


TURN = 10.0
"""Seconds: long enough that loading, which takes one or two for models of some GB, isn't most of
what is done; short enough to be waited for."""

PAUSE = 0.5
"""Seconds: more than there is between two requests of a client that sends one after another."""

HOLDS_MEMORY = frozenset((Stage.OPENING, Stage.LOADED, Stage.UNLOADING))
"""Stages in which a model has memory of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """What a model takes, in bytes.

    Attributes:
        fixed: What it takes whatever it is given for sequences.
        least: What it needs for sequences at least.
        usual: What it takes for them where there is room.
    """

    fixed: int
    least: int
    usual: int

    @property
    def least_bytes(self) -> int:
        """Bytes below which it can't run."""
        return self.fixed + self.least

    @property
    def fair_bytes(self) -> int:
        """Bytes with which it runs well: others make way for so much, and not for more."""
        return self.fixed + max(self.least, min(self.usual, self.usual // 4))

    def granted(self, room: int) -> int:
        """Bytes for sequences, where so many are left in all."""
        return max(self.least, min(self.usual, room - self.fixed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """A model, as far as it matters here. Times are seconds on the clock of `now`.

    Attributes:
        name: Its name.
        stage: How far it is.
        need: What it takes; None as long as its file hasn't been read.
        held: Bytes of the budget that it has.
        running: Requests that run.
        oldest: When the first of those came that wait for it; None where none does.
        asked_for_by: The tenants whose requests these are: when the first of each came, and the
            number of the tenant's last turn, larger for later ones.
        since: When it was loaded.
        reading_since: When its file began to be read; None where it isn't being read.
        idle_since: When its last request ended; None while one runs.
        keep_until: When it goes by itself, if it stays idle.
        pinned: It makes way for nobody.
        told_to_go: Somebody asked for it to be unloaded.
        modest: Whoever waits for it wants nobody to go for it.
    """

    name: str
    stage: Stage
    need: MemoryNeed | None = None
    held: int = 0
    running: int = 0
    oldest: float | None = None
    asked_for_by: Mapping[str | None, tuple[float, int]] = field(default_factory=dict)
    since: float = 0.0
    reading_since: float | None = None
    idle_since: float | None = None
    keep_until: float = math.inf
    pinned: bool = False
    told_to_go: bool = False
    modest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the fleet has to keep to.

    Attributes:
        memory: Bytes that all models may have together.
        max_loaded: Most models that are loaded at a time; None for as many as fit.
        turn: Seconds that a model may go on with new requests while another waits for its place,
            and that a model's file may be read before those behind it in the line go past.
        pause: Seconds without requests after which one that hasn't had its turn makes way too.
        readers: Most models whose files are read, or have been and wait for room, at a time.
    """

    memory: int
    max_loaded: int | None = None
    turn: float = TURN
    pause: float = PAUSE
    readers: int = 4


@dataclass(slots=True)
class Moves:
    """What is to be done.

    Attributes:
        read: Models to begin with.
        give_up: Models that have been read, and that nobody waits for any more.
        open: Models to load, with their bytes for sequences.
        refuse: Models that can never have the room that they need.
        put_off: Models that would have it only if others went, which nobody wants.
        unload: Models to unload, with why; nothing runs on them.
        closed: Models that take no new requests.
        wake_at: When to look again, if nothing happens before.
    """

    read: list[str] = field(default_factory=list)
    give_up: list[str] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    refuse: list[str] = field(default_factory=list)
    put_off: list[str] = field(default_factory=list)
    unload: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    wake_at: float = math.inf


def decide(models: Sequence[ModelState], bounds: Bounds, now: float) -> Moves:
    """What is to be done now.

    Args:
        models: All of them.
        bounds: What to keep to.
        now: The time.
    """
    return _Decision(models, bounds, now).made()


class _Decision:
    def __init__(self, models: Sequence[ModelState], bounds: Bounds, now: float) -> None:
        self._models = models
        self._bounds = bounds
        self._now = now
        self._moves = Moves()
        holding = [model for model in models if model.stage in HOLDS_MEMORY]
        self._free = bounds.memory - sum(model.held for model in holding)
        most = len(models) if bounds.max_loaded is None else bounds.max_loaded
        self._places = most - len(holding)
        leaving = [model for model in holding if model.stage is Stage.UNLOADING]
        self._coming = sum(model.held for model in leaving)
        self._coming_places = len(leaving)

    def made(self) -> Moves:
        for model in self._models:
            if model.stage is Stage.LOADED:
                self._see_off(model)
        waiting = [
            model
            for model in self._models
            if model.oldest is not None and model.stage not in HOLDS_MEMORY
        ]
        waiting = in_line(waiting)
        self._read(waiting)
        entitled = True
        for model in waiting:
            if model.stage is not Stage.READ:
                if self._reads_long(model):
                    continue  # its process may have stopped: the others don't wait for that
                break  # what it needs isn't known, so nobody knows what it would leave
            assert model.need is not None
            if self._cannot_ever(model.need):
                self._moves.refuse.append(model.name)
            elif model.modest:
                if not self._take(model, model.need, model.need.least_bytes):
                    self._moves.put_off.append(model.name)
            elif not self._take_place(model, model.need) and entitled:
                self._make_room(model, model.need)
                entitled = False
        return self._moves

    def _see_off(self, model: ModelState) -> None:
        """Unload a model that is to go by itself."""
        if model.told_to_go:
            self._moves.closed.add(model.name)
        if model.running or (model.oldest is not None and not model.told_to_go):
            return
        if model.told_to_go:
            self._unload(model, "it was told to go")
        elif model.keep_until <= self._now:
            self._unload(model, "nobody has asked for it any more")
        else:
            self._wake_at(model.keep_until)

    def _read(self, waiting: Sequence[ModelState]) -> None:
        """Begin with those that come first, and give up what nobody waits for."""
        readers = 0
        for model in self._models:
            if model.stage is Stage.READING:
                readers += not self._reads_long(model)
            elif model.stage is Stage.READ:
                readers += model.oldest is not None
                if model.oldest is None:
                    self._moves.give_up.append(model.name)
        for model in waiting:
            if model.stage is Stage.UNLOADED and readers < self._bounds.readers:
                readers += 1
                self._moves.read.append(model.name)

    def _reads_long(self, model: ModelState) -> bool:
        if model.reading_since is None:
            return False
        too_long = model.reading_since + self._bounds.turn
        if too_long > self._now:
            self._wake_at(too_long)
        return too_long <= self._now

    def _take_place(self, model: ModelState, need: MemoryNeed) -> bool:
        """Load a model where there is room for it as things are."""
        return self._take(model, need, need.fair_bytes)

    def _make_room(self, model: ModelState, need: MemoryNeed) -> None:
        """See to it that there will be room for the model that is first in the line."""
        wanted = need.fair_bytes
        chosen = self._victims(wanted)
        if (chosen is None or not all(map(_is_idle, chosen))) and self._take(
            model, need, need.least_bytes
        ):
            return  # rather a little memory now than more of it once somebody else has ended
        if chosen is None:
            wanted = need.least_bytes
            chosen = self._victims(wanted) or []  # else some are on their way in, and must go then
        for victim in chosen:
            self._ask_to_go(victim, model)
        # What it waits for is its own; what is left beside that is everybody's.
        staying = [victim for victim in chosen if victim.name not in self._moves.unload]
        coming = self._coming + sum(victim.held for victim in staying)
        self._free -= max(0, wanted - coming)
        self._places -= max(0, 1 - self._coming_places - len(staying))

    def _cannot_ever(self, need: MemoryNeed) -> bool:
        pinned = [model for model in self._models if model.pinned and model.stage in HOLDS_MEMORY]
        room = self._bounds.memory - sum(model.held for model in pinned)
        most = self._bounds.max_loaded
        return need.least_bytes > room or (most is not None and len(pinned) >= most)

    def _take(self, model: ModelState, need: MemoryNeed, wanted: int) -> bool:
        """Load a model, if so many bytes are free."""
        if self._free < wanted or self._places < 1:
            return False
        granted = need.granted(self._free)
        self._moves.open[model.name] = granted
        self._free -= need.fixed + granted
        self._places -= 1
        return True

    def _victims(self, wanted: int) -> list[ModelState] | None:
        """Those who have to go so that so many bytes and a place are free; None if none suffice.

        Idle ones first, the least recently used of them first; then those that have been there
        longest.
        """
        candidates = [
            model
            for model in self._models
            if model.stage is Stage.LOADED
            and not model.pinned
            and model.name not in self._moves.unload
        ]
        candidates.sort(key=_order_of_going)
        chosen: list[ModelState] = []

        def suffices(gone: Sequence[ModelState]) -> bool:
            room = self._free + self._coming + sum(each.held for each in gone)
            return room >= wanted and self._places + self._coming_places + len(gone) > 0

        for candidate in candidates:
            if suffices(chosen):
                break
            chosen.append(candidate)
        if not suffices(chosen):
            return None
        for each in list(chosen):  # a small one went first, and then a large one did
            if suffices(fewer := [other for other in chosen if other is not each]):
                chosen = fewer
        return chosen

    def _ask_to_go(self, victim: ModelState, waiting: ModelState) -> None:
        """Unload a model that is idle, or close one that has had its turn."""
        assert waiting.oldest is not None
        turn_over = max(waiting.oldest, victim.since) + self._bounds.turn
        if _is_idle(victim):
            assert victim.idle_since is not None
            over = min(turn_over, victim.idle_since + self._bounds.pause)
        else:
            over = turn_over
        if over > self._now:
            self._wake_at(over)
            return
        self._moves.closed.add(victim.name)
        if not victim.running:
            self._unload(victim, f"{waiting.name} takes its place")

    def _unload(self, model: ModelState, reason: str) -> None:
        self._moves.unload[model.name] = reason
        self._moves.closed.add(model.name)
        self._coming += model.held
        self._coming_places += 1

    def _wake_at(self, time: float) -> None:
        self._moves.wake_at = min(self._moves.wake_at, time)


def _is_idle(model: ModelState) -> bool:
    return not model.running and model.oldest is None


def _order_of_going(model: ModelState) -> tuple[bool, float, str]:
    if _is_idle(model):
        assert model.idle_since is not None
        return False, model.idle_since, model.name
    return True, model.since, model.name


def in_line(waiting: Sequence[ModelState]) -> list[ModelState]:
    """Models that are waited for, in the order in which they are seen to.

    Each tenant's first comes before any tenant's second, and so on; among these, first those of
    tenants whose last turn is longest ago; at last, the one that is waited for longest.
    """
    places: dict[str, tuple[int, int]] = {}
    for tenant in {tenant for model in waiting for tenant in model.asked_for_by}:
        own = [model for model in waiting if tenant in model.asked_for_by]
        own.sort(key=lambda model: (model.asked_for_by[tenant], model.name))
        for number, model in enumerate(own):
            place = (number, model.asked_for_by[tenant][1])
            places[model.name] = min(place, places.get(model.name, place))
    return sorted(
        waiting, key=lambda model: (places.get(model.name, (0, 0)), model.oldest, model.name)
    )
