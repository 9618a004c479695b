"""How many tokens a second can be expected: what has to be read for them, over how fast that is."""

from __future__ import annotations

from dataclasses import dataclass

from caudal.planning.plan import Demand, Planner


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What computes.

    Attributes:
        bandwidth: Bytes that it reads a second.
        is_measured: Whether that was measured here, just now.
        is_busy: Whether others computed meanwhile, so that it may be faster.
        operations: Floating-point operations a second, as somebody says; None: nobody does.
    """

    bandwidth: float
    is_measured: bool
    operations: float | None = None
    is_busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second, at most: nothing else may take time.

    Attributes:
        weights: Bytes of weights that are read for an iteration with a token of each user.
        sequences: Bytes of keys, values and states that are read for it, at the end of contexts.
        each: Tokens a second that each user gets.
        together: Those of all users.
        prefill: Tokens of prompts a second; None where nobody says what the machine computes.
    """

    weights: float
    sequences: float
    each: float
    together: float
    prefill: float | None


def expected_speed(planner: Planner, demand: Demand, machine: Machine) -> Speed:
    """What a machine can do at most while all users' answers are generated.

    Weights are read once for all of them; of experts so many as tokens go to, if they are chosen
    evenly. A prefix that all share is read once, too.
    """
    figures, sizes = planner.figures, planner.sizes(demand.kv_type)
    users, shared = demand.users, demand.shared_prefix
    seen = shared + users * (demand.context - shared)
    in_windows = sum(size * min(demand.context, window) for window, size in sizes.windows)
    sequences = float(sizes.token_bytes * seen + users * (in_windows + 2 * sizes.slot_bytes))
    weights = figures.passed.read(users)
    seconds = (weights + sequences) / machine.bandwidth
    prefill = None
    if machine.operations is not None and figures.active:
        prefill = machine.operations / (2 * figures.active)
        seconds = max(seconds, users / prefill)
    return Speed(
        weights=weights,
        sequences=sequences,
        each=1 / seconds if seconds else 0.0,
        together=users / seconds if seconds else 0.0,
        prefill=prefill,
    )
