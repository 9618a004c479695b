"""A plan and its answers: does it fit, what would, how fast could it be, how is it served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from caudal.errors import ParameterError
from caudal.loading.planning import check_prefix_sizes
from caudal.planning.arithmetic import Line, of_demand, of_model
from caudal.planning.figures import ModelFigures
from caudal.planning.plan import MOST_CONTEXT, Demand, Needs, Planner
from caudal.planning.processes import process_bytes
from caudal.planning.speed import Machine, Speed, expected_speed

GIB = 1 << 30
MEMORIES = (24 * GIB, 48 * GIB, 80 * GIB)
"""Memories that are looked at besides the one that is given."""

_SHORTEST = 2048


@dataclass(frozen=True, slots=True)
class Cell:
    """How many users have room.

    Attributes:
        context: Tokens of each conversation.
        memory: Bytes there are.
        users: The most that fit; 0 where not one does.
    """

    context: int
    memory: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A plan.

    Attributes:
        figures: The model.
        demand: What is asked of it.
        memory: Bytes that there are.
        of_model: What a token and a conversation take.
        of_demand: What all of it takes.
        needs: The same, added up.
        processes: Bytes that the server's processes take besides, about: of what is left to others.
        usable: Bytes of the memory that the model may take.
        fits: Whether it fits.
        missing: Bytes that the memory has too few.
        least_memory: The least memory in which it fits.
        most_context: The longest conversations that so many users may have; 0: none fit.
        most_users: The most users that may have so long conversations; 0: none.
        smaller: Where it doesn't fit: a quantisation with which it would, and its bytes.
        kept_tokens: About how many tokens of conversations that have ended places for prefixes
            hold: `memory`, `disk`.
        flags: What `caudal serve` is told; empty where it doesn't fit, or can't be served.
        table: Users by context and memory.
        speed: Tokens a second at most; None where nobody says how fast the machine is.
        machine: What that is for.
    """

    figures: ModelFigures
    demand: Demand
    memory: int
    of_model: Sequence[Line]
    of_demand: Sequence[Line]
    needs: Needs
    processes: int
    usable: int
    fits: bool
    missing: int
    least_memory: int
    most_context: int
    most_users: int
    smaller: tuple[str, int] | None
    kept_tokens: Mapping[str, int]
    flags: Sequence[str]
    table: Sequence[Cell]
    speed: Speed | None
    machine: Machine | None

    @property
    def weights_fit(self) -> bool:
        """Whether at least the weights have room."""
        return self.figures.weights <= self.usable

    def to_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        figures, demand, needs = self.figures, self.demand, self.needs
        return {
            "model": {
                "name": figures.name,
                "source": figures.source,
                "architecture": figures.architecture,
                "parameters": figures.parameters,
                "active_parameters": figures.active,
                "quantization": figures.quantisation,
                "context_length": figures.context_length,
                "weight_bytes": figures.weights,
                "file_bytes": figures.file_bytes,
                "servable": figures.obstacle is None,
                "obstacle": figures.obstacle,
            },
            "demand": {
                "context": demand.context,
                "users": demand.users,
                "shared_prefix": demand.shared_prefix,
                "kv_type": demand.kv_type.name,
                "kv_type_available": demand.kv_type.is_available,
                "max_num_batched_tokens": demand.tokens,
                "prefix_memory": demand.prefix_memory,
                "prefix_store_size": demand.prefix_store_size,
            },
            "arithmetic": [asdict(line) for line in (*self.of_model, *self.of_demand)],
            "needs": {
                "weights": needs.weights,
                "shared_prefix": needs.shared,
                "keys_and_values": needs.own,
                "windows": {str(window): size for window, size in needs.windows},
                "recurrent_states": needs.states,
                "workspace": needs.workspace,
                "draft_model": needs.draft_model,
                "draft_sequences": needs.draft_sequences,
                "prefixes": needs.prefixes,
                "kv_memory": needs.sequences,
                "total": needs.total,
            },
            "processes": self.processes,
            "memory": self.memory,
            "usable_memory": self.usable,
            "fits": self.fits,
            "missing": self.missing,
            "least_memory": self.least_memory,
            "most_context": self.most_context,
            "most_users": self.most_users,
            "kept_tokens": dict(self.kept_tokens),
            "smaller_quantization": None
            if self.smaller is None
            else {"name": self.smaller[0], "weight_bytes": self.smaller[1]},
            "serve": list(self.flags),
            "table": [asdict(cell) for cell in self.table],
            "machine": None if self.machine is None else asdict(self.machine),
            "tokens_per_second": None if self.speed is None else asdict(self.speed),
        }


def make_report(
    figures: ModelFigures, demand: Demand, memory: int, machine: Machine | None = None
) -> Report:
    """Answer what a model takes for a demand, and what fits in a memory.

    Raises:
        ParameterError: The model wasn't trained for so long conversations, or a place for prefixes
            has no room for one.
        ModelLoadError: It can't be served with this type of keys and values.
    """
    for each in (figures, figures.draft):
        if each is not None:
            demand.kv_type.check(each.name, each.kv_layers)
    longest = figures.context_length
    if longest is not None and demand.context > longest:
        raise ParameterError(
            "ctx", f"ctx is {demand.context}, but the model was trained for {longest} tokens"
        )
    planner = Planner(figures)
    check_prefix_sizes(
        planner.sizes(demand.kv_type).least_bytes, demand.prefix_memory, demand.prefix_store_size
    )
    fits = planner.fits(demand, memory)
    can_be_served = fits and figures.obstacle is None and demand.kv_type.is_available
    return Report(
        figures=figures,
        demand=demand,
        memory=memory,
        of_model=tuple(of_model(figures, demand.kv_type)),
        of_demand=tuple(of_demand(planner, demand)),
        needs=planner.needs(demand),
        processes=process_bytes(figures),
        usable=planner.usable(memory),
        fits=fits,
        missing=planner.missing(demand, memory),
        least_memory=planner.least_memory(demand),
        most_context=planner.most_context(demand, memory),
        most_users=planner.most_users(demand, memory),
        smaller=None if fits else planner.smaller(demand, memory),
        kept_tokens={
            name: planner.kept_tokens(demand, size)
            for name, size in (("memory", demand.prefix_memory), ("disk", demand.prefix_store_size))
            if size
        },
        flags=tuple(planner.flags(demand)) if can_be_served else (),
        table=_table(planner, demand, memory),
        speed=None
        if machine is None or figures.is_encoder
        else expected_speed(planner, demand, machine),
        machine=machine,
    )


def contexts(figures: ModelFigures, demand: Demand) -> Sequence[int]:
    """Lengths of conversations to look at: doubling, up to what the model was trained for."""
    longest = min(figures.context_length or max(demand.context, 131072), MOST_CONTEXT)
    found = {demand.context, longest}
    length = _SHORTEST
    while length < longest:
        found.add(length)
        length *= 2
    return sorted(found)


def _table(planner: Planner, demand: Demand, memory: int) -> tuple[Cell, ...]:
    cells = []
    for context in contexts(planner.figures, demand):
        shared = min(demand.shared_prefix, context)
        of_context = replace(demand, context=context, shared_prefix=shared)
        cells += [
            Cell(context, each, planner.most_users(of_context, each))
            for each in sorted({*MEMORIES, memory})
        ]
    return tuple(cells)
