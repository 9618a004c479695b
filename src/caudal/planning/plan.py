"""What a model takes for so many users of so long conversations, and what fits in a memory.

This is what Caudal does when it loads a model (backends/native/planning.py), the other way round:
there a budget is divided, here it is said which budget suffices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from caudal.backends.native.costs import BYTES_PER_FLOAT, SHARE_OF_OTHERS
from caudal.backends.native.executor import BLOCK_SIZE
from caudal.backends.native.planning import Division, KindSizes, division_of, largest
from caudal.engine.config import MOST_SEQS, MOST_TOKENS, EngineConfig, tier_bytes
from caudal.engine.drafting.ahead import most_states
from caudal.errors import ParameterError
from caudal.loading.planning import ENCODER_BATCH
from caudal.planning.figures import ModelFigures
from caudal.planning.kv_types import KV_TYPES, ElementType
from caudal.planning.processes import process_bytes

_DEFAULTS = EngineConfig(max_model_len=2)

MOST_CONTEXT = 1 << 27
"""More tokens than any model is trained for; where nobody says how many, so far is looked."""

MOST_BYTES = 1 << 62
"""More than any memory or disk has."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of a model.

    Attributes:
        context: Tokens of each conversation, prompt and answer together.
        users: Conversations at once.
        shared_prefix: Tokens that all of them begin with, which are kept once.
        kv_type: The type of keys and values.
        batch: Tokens of an iteration; there are more in any case than conversations.
        prefix_memory: Bytes of memory for prefixes that had to be given up.
        prefix_store_size: Bytes of a disk for those; None: there is none.

    Raises:
        ParameterError: One of them can't be.
    """

    context: int
    users: int = 1
    shared_prefix: int = 0
    kv_type: ElementType = field(default_factory=lambda: KV_TYPES["f16"])
    batch: int = _DEFAULTS.max_num_batched_tokens
    prefix_memory: int = 0
    prefix_store_size: int | None = None

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("ctx", self.context, 2, MOST_CONTEXT),
            ("users", self.users, 1, MOST_SEQS),
            ("shared_prefix", self.shared_prefix, 0, self.context),
            ("max_num_batched_tokens", self.batch, 2, MOST_TOKENS),
            ("prefix_memory", self.prefix_memory, 0, MOST_BYTES),
            ("prefix_store_size", self.prefix_store_size or 0, 0, MOST_BYTES),
        ):
            if not least <= value <= most:
                raise ParameterError(name, f"{name} must be {least} to {most}, but is {value}")

    @property
    def tokens(self) -> int:
        """Tokens of an iteration: each conversation has one, and prompts have the others."""
        return max(self.batch, self.users + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes that a demand takes.

    Attributes:
        weights: Of the weights.
        shared: Of keys and values of the common prefix, in layers that see all tokens.
        own: Of all other keys and values in those layers.
        windows: Of keys and values in layers with windows, by window.
        states: Of recurrent states: those of conversations, and snapshots.
        workspace: What an iteration computes with.
        draft_model: Of a draft model's weights, or those of a layer of the model's own, and what
            it computes with.
        draft_sequences: Of its keys, values and states, of the same conversations.
        prefixes: Of memory for prefixes that had to be given up, with those on their way to and
            from a disk.
    """

    weights: int
    shared: int
    own: int
    windows: tuple[tuple[int, int], ...]
    states: int
    workspace: int
    draft_model: int = 0
    draft_sequences: int = 0
    prefixes: int = 0

    @property
    def sequences(self) -> int:
        """What all conversations take: `--kv-memory`."""
        windows = sum(size for _, size in self.windows)
        return self.shared + self.own + windows + self.states + self.draft_sequences

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.sequences + self.workspace + self.draft_model + self.prefixes


class Planner:
    """Works out what a model takes.

    Args:
        figures: The model.
    """

    def __init__(self, figures: ModelFigures) -> None:
        self.figures = figures

    def sizes(self, kv_type: ElementType) -> KindSizes:
        """Bytes of a token, and of a sequence's states."""
        figures = self.figures
        return KindSizes.of_layers(
            figures.kv_layers, figures.state_layers, BLOCK_SIZE, kv_type.of_layer
        )

    def division(self, demand: Demand) -> Division:
        """How many blocks and slots a demand needs."""
        if self.figures.is_encoder:
            return Division(self._tokens(demand) // BLOCK_SIZE + 2 * demand.users, (), 0)
        shared = demand.shared_prefix // BLOCK_SIZE  # a block that is shared in part is copied
        of_one = -(-demand.context // BLOCK_SIZE)
        blocks = shared + demand.users * (of_one - shared)
        sizes = self.sizes(demand.kv_type)
        # What is left over for conversations that have ended is a matter of more memory.
        least = division_of(sizes, demand.users * of_one, demand.users, demand.tokens, 0)
        if not shared:
            return least
        # Whoever divides a budget knows of no common prefix, and keeps more of ends.
        usual = division_of(sizes, blocks, demand.users, demand.tokens)
        return min(usual, least, key=lambda each: each.bytes(sizes))

    def needs(self, demand: Demand) -> Needs:
        """What a demand takes."""
        figures, sizes = self.figures, self.sizes(demand.kv_type)
        division = self.division(demand)
        of_block = sizes.block_size * sizes.token_bytes
        of_one = -(-demand.context // BLOCK_SIZE)
        shared_blocks = 0
        if demand.users * of_one > division.num_blocks and not figures.is_encoder:
            shared_blocks = demand.shared_prefix // BLOCK_SIZE
        shared = shared_blocks * of_block
        windows = zip(sizes.windows, division.window_blocks, strict=True)
        workspace = figures.workspace
        draft = self._needs_of_draft(demand)
        return Needs(
            weights=figures.weights,
            shared=shared,
            own=division.num_blocks * of_block - shared,
            windows=tuple(
                (window, blocks * sizes.block_size * token_bytes)
                for (window, token_bytes), blocks in windows
            ),
            states=division.num_slots * sizes.slot_bytes,
            workspace=0 if workspace is None else workspace.bytes(self._tokens(demand)),
            draft_model=0 if draft is None else draft.weights + draft.workspace,
            draft_sequences=0 if draft is None else draft.sequences,
            prefixes=tier_bytes(
                demand.prefix_memory, has_store=demand.prefix_store_size is not None
            ),
        )

    def kept_tokens(self, demand: Demand, size: int) -> int:
        """About how many tokens of conversations that have ended so many bytes hold."""
        return int(size / self.sizes(demand.kv_type).kept_token_bytes)

    def _needs_of_draft(self, demand: Demand) -> Needs | None:
        """What a draft model takes that has room for the same conversations."""
        draft = self.figures.draft
        if draft is None:
            return None
        context = min(demand.context, draft.context_length or demand.context)
        same = replace(
            demand,
            context=context,
            shared_prefix=min(demand.shared_prefix, context),
            prefix_memory=0,
            prefix_store_size=None,
        )
        needs = Planner(draft).needs(same)
        waiting = most_states(demand.users, demand.tokens) * draft.state_width * BYTES_PER_FLOAT
        # While it guesses, a conversation has two recurrent states.
        more = demand.users * Planner(draft).sizes(demand.kv_type).slot_bytes
        return replace(needs, states=needs.states + more, workspace=needs.workspace + waiting)

    def _tokens(self, demand: Demand) -> int:
        """Tokens of an iteration; an encoder's has at least one whole input."""
        return max(ENCODER_BATCH, demand.context) if self.figures.is_encoder else demand.tokens

    def usable(self, memory: int) -> int:
        """Bytes of a memory that the model may take.

        A share is left to the system and the server's processes, or what those take where that is
        more.
        """
        return max(0, memory - self._left(memory))

    def _left(self, memory: int) -> int:
        return max(memory // SHARE_OF_OTHERS, process_bytes(self.figures))

    def fits(self, demand: Demand, memory: int) -> bool:
        """Whether a demand fits in a memory."""
        return self.needs(demand).total <= self.usable(memory)

    def missing(self, demand: Demand, memory: int) -> int:
        """Bytes that a memory has too few."""
        return max(0, self.needs(demand).total + self._left(memory) - memory)

    def least_memory(self, demand: Demand) -> int:
        """The least memory in which a demand fits."""
        memory = self.needs(demand).total + process_bytes(self.figures)
        while missing := self.missing(demand, memory):
            memory += missing
        return memory

    def most_context(self, demand: Demand, memory: int) -> int:
        """The longest conversations that so many users may have; 0 where none fit.

        What the model was trained for is an end, too.
        """
        longest = self.figures.context_length or MOST_CONTEXT
        shared = demand.shared_prefix

        def fits(context: int) -> bool:
            longer = replace(demand, context=context, shared_prefix=min(shared, context))
            return self.fits(longer, memory)

        return _most(fits, 2, min(longest, MOST_CONTEXT))

    def most_users(self, demand: Demand, memory: int) -> int:
        """The most users that may have such conversations; 0 where not even one may."""
        return _most(lambda users: self.fits(replace(demand, users=users), memory), 1, MOST_SEQS)

    def smaller(self, demand: Demand, memory: int) -> tuple[str, int] | None:
        """The largest other quantisation whose weights fit beside the rest, and its bytes."""
        rest = self.needs(demand).total - self.figures.weights
        for name, size in self.figures.others().items():
            if size + rest <= self.usable(memory):
                return name, size
        return None

    def flags(self, demand: Demand) -> list[str]:
        """What `caudal serve` has to be told, so that all users have their conversations."""
        limits = ["--max-num-seqs", str(demand.users), "--max-model-len", str(demand.context)]
        if self.figures.is_encoder:
            return limits
        flags = ["--kv-memory", _in_mib(self.needs(demand).sequences), *limits]
        if demand.tokens != _DEFAULTS.max_num_batched_tokens:
            flags += ["--max-num-batched-tokens", str(demand.tokens)]
        if demand.kv_type.name != "f16":
            flags += ["--kv-type", demand.kv_type.name]
        if self.figures.draft is not None:
            draft = self.figures.draft
            flags += ["--speculative", "mtp" if draft.state_width else f"draft:{draft.name}"]
        if demand.prefix_memory:
            flags += ["--prefix-memory", _in_mib(demand.prefix_memory)]
        if demand.prefix_store_size is not None:
            size = _in_mib(demand.prefix_store_size)
            flags += ["--prefix-store", "DIR", "--prefix-store-size", size]
        return flags


def _in_mib(size: int) -> str:
    return f"{-(-size // MIB)}MiB"


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest number that fits, of those where smaller ones do as well; 0 for none."""
    if least > most or not fits(least):
        return 0
    return largest(fits, least, most)
