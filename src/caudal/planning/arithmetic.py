"""The arithmetic of a plan, line by line, as somebody would write it down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from caudal.backends.native.planning import BYTES_PER_STATE_ELEMENT
from caudal.models.program import KVLayer
from caudal.planning.figures import ModelFigures
from caudal.planning.kv_types import ElementType
from caudal.planning.plan import Demand, Planner


@dataclass(frozen=True, slots=True)
class Line:
    """One figure, and where it comes from.

    Attributes:
        what: What it is of.
        how: The factors.
        bytes: What they come to.
        unit: What that is for, e.g. `a token`; empty where it is all there is.
    """

    what: str
    how: str
    bytes: int
    unit: str = ""


def of_model(figures: ModelFigures, kv_type: ElementType) -> Iterator[Line]:
    """What a token and a conversation take, layer by kind of layer."""
    for layer, count in _kinds(figures.kv_layers).items():
        unit = "a token"
        what = "keys and values"
        if layer.window is not None:
            unit = f"a token, of the last {layer.window:,}"
            what = f"window of {layer.window:,}"
        yield Line(what, _factors(layer, count, kv_type), count * kv_type.of_layer(layer), unit)
    floats = sum(layer.floats for layer in figures.state_layers)
    if floats:
        count = len(figures.state_layers)
        yield Line(
            "recurrent states",
            f"{count} {'state' if count == 1 else 'states'} of {floats:,} numbers together × "
            f"{BYTES_PER_STATE_ELEMENT} bytes",
            floats * BYTES_PER_STATE_ELEMENT,
            "a conversation",
        )


def of_demand(planner: Planner, demand: Demand) -> Iterator[Line]:
    """What all of it takes together."""
    figures, needs = planner.figures, planner.needs(demand)
    sizes, division = planner.sizes(demand.kv_type), planner.division(demand)
    yield Line("weights", _weights(figures), needs.weights)
    block, of_token = sizes.block_size, binary(sizes.token_bytes)
    if needs.shared:
        tokens = needs.shared // sizes.token_bytes
        yield Line("common prefix", f"{tokens:,} tokens × {of_token}, once", needs.shared)
    if needs.own:
        blocks = needs.own // sizes.token_bytes // block
        if figures.is_encoder:
            how = f"{blocks:,} blocks of {block} tokens × {of_token}, for a batch"
        else:
            users = f"{demand.users:,} × " if demand.users > 1 else ""
            how = f"{users}{blocks // demand.users * block:,} tokens × {of_token}"
        yield Line("keys and values", how, needs.own)
    for (window, size), blocks, (_, of_windows) in zip(
        needs.windows, division.window_blocks, sizes.windows, strict=True
    ):
        yield Line(
            f"windows of {window:,}",
            f"{blocks * block:,} tokens × {binary(of_windows)}: of conversations, and of an "
            "iteration",
            size,
        )
    if needs.states:
        yield Line(
            "recurrent states",
            f"{division.num_slots:,} × {binary(sizes.slot_bytes)}: of conversations, forks and "
            "snapshots",
            needs.states,
        )
    if figures.workspace is not None:
        yield Line("workspace", "what an iteration computes with, at most", needs.workspace)
    if figures.draft is not None:
        is_layer = figures.draft.state_width > 0
        how = f"{_weights(figures.draft)}, and what it computes with"
        how += ", states that wait among it" if is_layer else ""
        yield Line("own layer" if is_layer else "draft model", how, needs.draft_model)
        yield Line("its sequences", "of the same conversations", needs.draft_sequences)
    if needs.prefixes:
        on_their_way = needs.prefixes - demand.prefix_memory
        how = f", with {binary(on_their_way)} for a disk" if on_their_way else ""
        yield Line("prefixes", f"that had to be given up{how}", needs.prefixes)


def binary(count: float) -> str:
    """A number of bytes in units of 1024, with three digits or so: `128 KiB`, `1.25 GiB`."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1023.95 or (unit == "bytes" and count < 1024):
            return f"{_digits(value)} {unit}"
        value /= 1024
    return f"{_digits(value)} TiB"


def _digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _kinds(layers: tuple[KVLayer, ...]) -> Counter[KVLayer]:
    """How many layers are alike, those that see all tokens first, then by window."""
    found = Counter(layers)
    return Counter(dict(sorted(found.items(), key=lambda each: (each[0].window or 0, -each[1]))))


def _factors(layer: KVLayer, count: int, kv_type: ElementType) -> str:
    layers = f"{count} {'layer' if count == 1 else 'layers'}"
    heads = f"{layer.kv_heads} KV {'head' if layer.kv_heads == 1 else 'heads'}"
    values = layer.channels_of_values
    scale = kv_type.scale
    if layer.latent:
        of_heads = "" if layer.kv_heads == 1 else f"{heads} × "
        channels = f"({layer.head_dim} + {2 * scale})" if scale else str(layer.head_dim)
        return f"{layers} × {of_heads}{channels} of a latent × {kv_type.text}"
    if values != layer.head_dim:
        scales = f" + {2 * scale}" if scale else ""
        return f"{layers} × {heads} × ({layer.head_dim} + {values}{scales}) × {kv_type.text}"
    channels = f"({layer.head_dim} + {scale})" if scale else str(layer.head_dim)
    return f"2 × {layers} × {heads} × {channels} × {kv_type.text}"


def _weights(figures: ModelFigures) -> str:
    parts = [figures.quantisation] if figures.quantisation else []
    if figures.parameters and figures.obstacle is None:
        bits = 8 * figures.weights / figures.parameters
        each = f"{bits:.3g} bits"
        parts = [f"{figures.parameters:,} × {each}", *(part for part in parts if part != each)]
    if figures.workspace is not None:
        parts.append("as kernels read them")
    if figures.file_bytes is not None and figures.obstacle is None:
        parts.append(f"{binary(figures.file_bytes)} in files")
    return ", ".join(parts)
