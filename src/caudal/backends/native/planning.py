"""How the memory that there is goes to the kinds of memory that a program takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from caudal.backends.executor import blocks_of_window
from caudal.backends.native.options import KVType
from caudal.errors import ModelLoadError
from caudal.models.program import KVLayer, Program, StateLayer

CONVERSATION = 4096
"""Tokens of a conversation that is taken for usual: so many of those fill all kinds alike."""

SNAPSHOT_INTERVAL = 2048
"""Tokens of a conversation for each snapshot of its states, besides those of its ends."""

MOST_SPARE = 4
"""Slots beyond those of sequences that run, at least: for snapshots and forks."""

BYTES_PER_STATE_ELEMENT = 4

BYTES_PER_ELEMENT: dict[KVType, int] = {"f16": 2, "f32": 4, "q8": 1}

BYTES_PER_SCALE = 2

MOST_SCALED_CHANNELS = 512
"""Channels that may share a scale, of a head in `q8`, as csrc/kernels/token_ops.h has it."""


def check_heads(source: str, layers: Sequence[KVLayer], kv_type: KVType) -> None:
    """See that heads aren't too wide for a type; found out here, before any weights are packed.

    Args:
        source: The model's file or name.
        layers: Its layers.
        kv_type: The type.

    Raises:
        ModelLoadError: They are; says what to take instead.
    """
    if kv_type != "q8":
        return
    for layer in layers:
        values = layer.channels_of_values
        widest = max(layer.head_dim - (values if layer.latent else 0), values)
        if widest > MOST_SCALED_CHANNELS:
            raise ModelLoadError(
                source,
                f"its heads have {widest} channels, and keys and values in q8 have "
                f"{MOST_SCALED_CHANNELS} at most; take f16 for kv_type",
            )


def layer_bytes(layer: KVLayer, kv_type: KVType) -> int:
    """Bytes that a token takes in a layer.

    With `q8` each head has two scales: of its key and of its value, or of the channels of a latent
    that are values, and of the others.
    """
    scales = 2 * layer.kv_heads * BYTES_PER_SCALE if kv_type == "q8" else 0
    return layer.numbers * BYTES_PER_ELEMENT[kv_type] + scales


@dataclass(frozen=True, slots=True)
class KindSizes:
    """What a program takes of each kind of memory.

    Attributes:
        block_size: Tokens of a block.
        token_bytes: Bytes of a token in the layers that see all tokens.
        windows: The windows of the others, with the bytes of a token in their layers.
        slot_bytes: Bytes of a sequence's recurrent states; 0 where there are none.
    """

    block_size: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...]
    slot_bytes: int

    @classmethod
    def of(cls, program: Program, block_size: int, kv_type: KVType) -> KindSizes:
        """The sizes of a program's kinds."""
        return cls.of_layers(
            program.kv_layers,
            program.state_layers,
            block_size,
            lambda layer: layer_bytes(layer, kv_type),
        )

    @classmethod
    def of_layers(
        cls,
        kv_layers: Sequence[KVLayer],
        state_layers: Sequence[StateLayer],
        block_size: int,
        layer_bytes: Callable[[KVLayer], int],
    ) -> KindSizes:
        """The sizes of kinds of memory.

        Args:
            kv_layers: Layers that keep keys and values.
            state_layers: Layers that keep a state.
            block_size: Tokens of a block.
            layer_bytes: Bytes of a token in a layer.
        """
        of_windows: dict[int | None, int] = {None: 0}
        for layer in kv_layers:
            of_windows[layer.window] = of_windows.get(layer.window, 0) + layer_bytes(layer)
        token_bytes = of_windows.pop(None)
        return cls(
            block_size,
            token_bytes,
            tuple(sorted((w, size) for w, size in of_windows.items() if w is not None)),
            sum(layer.floats for layer in state_layers) * BYTES_PER_STATE_ELEMENT,
        )

    @property
    def least_bytes(self) -> int:
        """Bytes of all kinds that the shortest sequence takes."""
        of_token = self.token_bytes + sum(size for _, size in self.windows)
        return self.block_size * of_token + self.slot_bytes

    @property
    def kept_token_bytes(self) -> float:
        """Bytes of all kinds that a token takes of a usual conversation that has ended."""
        blocks = CONVERSATION // self.block_size
        one = division_of(self, blocks, 1, 0)
        lasting = replace(one, num_slots=_snapshots(CONVERSATION) if self.slot_bytes else 0)
        return lasting.bytes(self) / CONVERSATION


@dataclass(frozen=True, slots=True)
class Division:
    """How many there are of each kind.

    Attributes:
        num_blocks: Blocks of the main pool.
        window_blocks: Blocks of the pools for windows.
        num_slots: Slots for states; 0 where there are none.
    """

    num_blocks: int
    window_blocks: tuple[int, ...]
    num_slots: int

    def bytes(self, sizes: KindSizes) -> int:
        """Bytes that they take, all together."""
        windows = zip(self.window_blocks, sizes.windows, strict=True)
        per_token = self.num_blocks * sizes.token_bytes
        per_token += sum(blocks * token_bytes for blocks, (_, token_bytes) in windows)
        return per_token * sizes.block_size + self.num_slots * sizes.slot_bytes


def divide(
    sizes: KindSizes,
    budget: int,
    length: int,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    for_all: bool = False,
) -> Division:
    """As much of each kind as a budget suffices for.

    So many that conversations of a usual length fill all kinds alike; and windows and slots for
    all sequences that may run at once, as far as a sequence of `length` tokens fits beside them.

    Args:
        sizes: What there is to divide the budget for.
        budget: Bytes.
        length: Tokens that one sequence must be able to have.
        max_num_seqs: Most sequences that run at once.
        max_num_batched_tokens: Most tokens of an iteration.
        for_all: Where the budget suffices for so many tokens of all sequences that may run at once,
            they have them, and less is kept of conversations that have ended.

    Returns:
        The division; with fewer blocks than `length` tokens take where the budget is too small.
    """
    needed = -(-length // sizes.block_size)

    def most(running: int) -> Division:
        def of(num_blocks: int) -> Division:
            return division_of(sizes, num_blocks, running, max_num_batched_tokens)

        limit = budget // (sizes.block_size * sizes.token_bytes)
        return of(largest(lambda blocks: of(blocks).bytes(sizes) <= budget, 0, limit))

    usual = most(max_num_seqs)
    if for_all and usual.num_blocks < max_num_seqs * needed:

        def keeping(kept: int) -> Division:
            blocks = max_num_seqs * needed
            return division_of(sizes, blocks, max_num_seqs, max_num_batched_tokens, kept)

        if keeping(0).bytes(sizes) <= budget:
            limit = max_num_seqs * needed
            return keeping(
                largest(lambda kept: keeping(kept).bytes(sizes) <= budget, 0, limit),
            )
    if usual.num_blocks >= needed:
        return usual
    # The most sequences that leave enough for that one.
    return most(largest(lambda few: most(few).num_blocks >= needed, 0, max_num_seqs - 1))


def largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest number that fits, of those where smaller ones do as well; `least` is one."""
    above = range(least + 1, most + 1)
    return least + bisect_left(above, True, key=lambda number: not fits(number))


def least_bytes(sizes: KindSizes, length: int) -> int:
    """Bytes that one sequence of so many tokens takes."""
    return division_of(sizes, -(-length // sizes.block_size), 0, 0).bytes(sizes)


def division_of(
    sizes: KindSizes, num_blocks: int, running: int, batch: int, kept_blocks: int | None = None
) -> Division:
    """What goes with so many blocks of the main pool.

    Args:
        sizes: Of the kinds.
        num_blocks: Blocks of the main pool.
        running: Sequences that have windows and slots of their own; 0 for the least that one takes.
        batch: Tokens of an iteration.
        kept_blocks: Blocks with conversations of which windows and snapshots are kept when they
            have ended; None: all.
    """
    kept_blocks = num_blocks if kept_blocks is None else kept_blocks
    conversation = CONVERSATION // sizes.block_size
    window_blocks = []
    for window, _ in sizes.windows:
        one = blocks_of_window(window, sizes.block_size) + 1  # one may be copied
        least = running * one + -(-batch // sizes.block_size) if running else one
        # Those of its end, and those of its last prompt's end.
        kept = -(-kept_blocks * min(2 * one, conversation) // conversation) if running else 0
        # No sequence has more of them than it has of the main pool's.
        window_blocks.append(min(max(least, kept), num_blocks))
    num_slots = 0
    if sizes.slot_bytes:
        kept = -(-kept_blocks * _snapshots(CONVERSATION) // conversation) if running else 0
        num_slots = max(running + MOST_SPARE, kept) if running else 2
    return Division(num_blocks, tuple(window_blocks), num_slots)


def _snapshots(length: int) -> int:
    """Snapshots of a conversation: on its way, and of its end and its last prompt's."""
    return 2 + length // SNAPSHOT_INTERVAL
