"""A plan as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from caudal.cli.formatting import format_count
from caudal.planning.arithmetic import Line, binary

if TYPE_CHECKING:
    from caudal.planning.report import Report


def plan_text(report: Report, *, table: bool) -> Iterator[str]:
    """All that is worth saying; with `table`, users by context and memory too."""
    figures, demand = report.figures, report.demand
    yield headline(report)
    if figures.obstacle is not None:
        yield f"  Caudal cannot serve it ({figures.obstacle}); these are figures alone."
    elif not demand.kv_type.is_available:
        yield f"  Caudal has no keys and values in {demand.kv_type.name}: these are figures alone."
    yield ""
    yield from _lines(report.of_model)
    yield ""
    yield f"{_demanded(report)}:"
    yield from _lines([*report.of_demand, Line("together", "", report.needs.total)])
    yield ""
    yield from verdict(report)
    if report.kept_tokens:
        yield ""
        yield from kept_lines(report)
    if report.speed is not None:
        yield ""
        yield from speed_lines(report)
    if table:
        yield ""
        yield "Users that have room, by context and memory:"
        yield ""
        yield from _table(report)
    if report.flags:
        yield ""
        yield f"  {serve_command(report)}"


def headline(report: Report) -> str:
    """What the model is, in a line."""
    figures = report.figures
    parts = [figures.architecture] if figures.architecture else []
    if figures.parameters:
        parts.append(f"{format_count(figures.parameters)} weights")
    if figures.quantisation:
        parts.append(figures.quantisation)
    if figures.context_length is not None:
        parts.append(f"trained for {figures.context_length:,} tokens")
    return f"{figures.name}: {', '.join(parts)} (by {figures.source})"


def verdict(report: Report) -> Iterator[str]:
    """Whether it fits, and what would."""
    demand, memory = report.demand, binary(report.memory)
    if report.processes >= report.memory - report.usable:
        others = f"about {binary(report.processes)} are left to the server's own processes"
    else:
        others = (
            "a sixteenth is left to the system and to the server's own processes, which take about "
            f"{binary(report.processes)}"
        )
    of_it = f"{binary(report.usable)} of it: {others}"
    if report.fits:
        spare = report.usable - report.needs.total
        yield f"It fits in {memory} ({of_it}): {binary(spare)} are spare."
        if report.most_context > demand.context:
            yield f"  longer: {report.most_context:,} tokens {_for_users(demand.users)}"
        if report.most_users > demand.users and not report.figures.is_encoder:
            yield f"  more: {report.most_users:,} users of {demand.context:,} tokens"
        return
    yield f"It doesn't fit in {memory} ({of_it}): {binary(report.missing)} are missing. What would:"
    ways = list(_ways(report))
    yield from (f"  {way}" for way in ways)
    if not ways:
        yield "  nothing of this model: a smaller one, or more memory"
    if not report.weights_fit and report.figures.obstacle is None:
        yield (
            "  (Weights that don't fit are mapped from the disk, and read from it for every token: "
            "slow, but it runs.)"
        )


def _ways(report: Report) -> Iterator[str]:
    demand = report.demand
    if report.most_users:
        what = "user" if report.most_users == 1 else "users"
        yield f"fewer users: {report.most_users:,} {what} of {demand.context:,} tokens"
    if report.most_context:
        yield f"less context: {report.most_context:,} tokens {_for_users(demand.users)}"
    if report.smaller is not None:
        name, size = report.smaller
        yield f"a smaller quantisation: {name}, whose weights take {binary(size)}"
    yield f"more memory: {binary(report.least_memory)}"


def kept_lines(report: Report) -> Iterator[str]:
    """What places for prefixes hold."""
    demand = report.demand
    sizes = {"memory": demand.prefix_memory, "disk": demand.prefix_store_size or 0}
    for place, tokens in report.kept_tokens.items():
        conversations = tokens / demand.context
        yield (
            f"{binary(sizes[place])} of {place} holds about {tokens:,} tokens of conversations "
            f"that have ended: {conversations:,.1f} of {demand.context:,}"
        )


def speed_lines(report: Report) -> Iterator[str]:
    """How fast it can be."""
    speed, machine, demand = report.speed, report.machine, report.demand
    if speed is None or machine is None:
        return
    how = "measured here just now" if machine.is_measured else "as given"
    if machine.is_busy:
        how += ", while others computed: alone it may be more"
    if demand.users == 1:
        rate = f"{_rate(speed.each)} tokens a second"
    else:
        rate = f"{_rate(speed.each)} tokens a second for each user, {_rate(speed.together)} for all"
    yield f"At most {rate}, at the end of {demand.context:,} tokens:"
    yield (
        f"  {binary(speed.weights)} of weights and {binary(speed.sequences)} of keys, values and "
        f"states are read for a token {_for_users(demand.users)}, at "
        f"{_rate(machine.bandwidth / 1e9)} GB/s ({how})"
    )
    if speed.prefill is None and machine.operations is not None:
        yield "  Of prompts nothing is known: nobody says how many weights a token goes through"
    elif speed.prefill is None:
        yield "  Prompts are bounded by arithmetic, which isn't measured here: caudal bench engine"
    else:
        yield (
            f"  Prompts: at most {_rate(speed.prefill)} tokens a second, at 2 operations for each "
            f"of {format_count(report.figures.active)} weights, without attention"
        )


def serve_command(report: Report) -> str:
    """The command that serves it."""
    return " ".join(["caudal serve", report.figures.served_as or "MODEL", *report.flags])


def table_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of users."""
    memories = sorted({cell.memory for cell in report.table})
    found = {(cell.context, cell.memory): cell.users for cell in report.table}
    rows = []
    for context in sorted({cell.context for cell in report.table}):
        users = [found[context, memory] for memory in memories]
        rows.append([f"{context:,}", *(f"{each:,}" if each else "–" for each in users)])
    return ["context", *map(binary, memories)], rows


def _table(report: Report) -> Iterator[str]:
    headings, rows = table_rows(report)
    widths = [max(len(row[place]) for row in [headings, *rows]) for place in range(len(headings))]
    for row in [headings, *rows]:
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        yield "  " + "  ".join(cells)


def _demanded(report: Report) -> str:
    demand = report.demand
    shared = f", of which {demand.shared_prefix:,} are common" if demand.shared_prefix else ""
    return f"{demand.context:,} tokens {_for_users(demand.users)}{shared}"


def _for_users(users: int) -> str:
    return "for one user" if users == 1 else f"for each of {users:,} users"


def _lines(lines: Sequence[Line]) -> Iterator[str]:
    width = max((len(line.what) for line in lines), default=0)
    for line in lines:
        unit = f" {line.unit}" if line.unit else ""
        how = f"{line.how} = " if line.how else ""
        yield f"  {line.what:<{width}}  {how}{binary(line.bytes)}{unit}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
