"""What guesses for a model, in the same process: a second, smaller one, or a layer of its own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from caudal.backends.backend import Backend, MemoryPlan, RunLimits, WeightMemory
from caudal.backends.executor import Executor
from caudal.backends.native.costs import BYTES_PER_FLOAT
from caudal.backends.native.planning import CONVERSATION
from caudal.engine.drafting.ahead import AheadModel, most_states
from caudal.engine.drafting.draft_model import DraftModel
from caudal.engine.drafting.proposer import Proposer
from caudal.engine.turns import Turns
from caudal.errors import ModelLoadError, ModelNotFoundError, ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.loading.facts import DraftFacts
from caudal.loading.files import ModelFiles, open_model
from caudal.loading.options import LoadOptions
from caudal.loading.planning import RunPlan, plan_run
from caudal.machine import total_memory
from caudal.models import build_ahead, has_ahead
from caudal.models.program import Program
from caudal.store import Store
from caudal.store.packed import PackedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDraft:
    """A draft model, or layer, ready to run.

    Attributes:
        executor: Runs it.
        is_layer: Whether it is a layer of the model itself.
        max_model_len: Most tokens of a sequence that it can compute.
        max_tokens: Most tokens that it computes at once.
        max_states: Most of the model's states that may wait for a layer; 0 for a draft model.
        prefix_cache: Keep what it has computed.
        facts: What was loaded.
    """

    executor: Executor
    is_layer: bool
    max_model_len: int
    max_tokens: int
    max_states: int
    prefix_cache: bool
    facts: DraftFacts

    def proposer(self, eos_token_ids: frozenset[int], turns: Turns | None) -> Proposer:
        """What guesses; closing it closes the executor.

        Args:
            eos_token_ids: Tokens that end an answer.
            turns: Whose turn it is to compute.
        """
        if self.is_layer:
            return AheadModel(
                self.executor,
                max_states=self.max_states,
                max_tokens=self.max_tokens,
                eos_token_ids=eos_token_ids,
                turns=turns,
            )
        return DraftModel(
            self.executor,
            max_model_len=self.max_model_len,
            max_tokens=self.max_tokens,
            prefix_cache=self.prefix_cache,
            eos_token_ids=eos_token_ids,
            turns=turns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDraft:
    """A draft model, or layer, whose files are open; nothing is set aside for it yet.

    Attributes:
        name: As the user gave it.
        files: What the files say; of a layer, with its program.
        is_layer: Whether it is a layer of the model itself.
        memory: What it takes where nobody says otherwise.
        need: Bytes for keys, values and states of the same sequences that the first model's `least`
            suffices for.
        kept: Where its packed weights may be kept.
    """

    name: str
    files: ModelFiles
    is_layer: bool
    memory: MemoryPlan
    need: int
    kept: PackedModel | None

    @property
    def layer(self) -> Program | None:
        """The program of a layer, whose weights are loaded with the model's."""
        return self.files.program if self.is_layer else None

    def load(
        self, plan: MemoryPlan, run: RunPlan, backend: Backend, beside: Executor
    ) -> LoadedDraft:
        """Pack the weights and set memory aside.

        Args:
            plan: What it takes.
            run: How the first model runs.
            backend: What runs both.
            beside: The first model's executor.

        Raises:
            ModelLoadError: The file can't be used.
        """
        files = self.files
        executor = backend.open(files.weights, files.program, plan, kept=self.kept, beside=beside)
        return LoadedDraft(
            executor=executor,
            is_layer=self.is_layer,
            max_model_len=plan.max_model_len,
            max_tokens=plan.limits.max_num_batched_tokens,
            max_states=_waiting_states(run) if self.is_layer else 0,
            prefix_cache=run.engine.prefix_cache,
            facts=DraftFacts(
                model=self.name,
                architecture=files.weights.architecture,
                matrices={} if self.is_layer else files.matrices,
                max_model_len=plan.max_model_len,
                weight_bytes=executor.info.facts.weight_bytes,
                weights_mapped=executor.info.facts.weights_mapped,
                memory=plan.kinds,
                state_bytes=_state_bytes(files, run) if self.is_layer else 0,
            ),
        )


@contextlib.contextmanager
def plan_draft(
    name: str,
    target: ModelFiles,
    run: RunPlan,
    options: LoadOptions,
    backend: Backend,
    store: Store,
) -> Iterator[PlannedDraft]:
    """Read a draft model, and close its files at the end.

    Args:
        name: Its name or path.
        target: The model that it guesses for.
        run: How that would run by itself.
        options: The user's choices.
        backend: What runs both.
        store: Where models are kept.

    Raises:
        ModelLoadError: It isn't on this machine, or its file can't be used.
        ParameterError: It can't guess for this model.
    """
    try:
        stored = store.resolve(name)
    except ModelNotFoundError as error:  # which would be said of the model that it guesses for
        logger.warning("No draft model: %s", error)
        raise ModelLoadError(
            name, "this draft model is not on this machine (caudal pull fetches models)"
        ) from error
    with open_model(stored) as files:
        if files.program.is_encoder:
            raise _unfit(name, "it generates nothing")
        check_vocabulary(name, files.tokenizer, target.tokenizer)
        longest = min(files.program.context_length, run.engine.max_model_len)
        program = replace(files.program, context_length=longest)
        files = replace(files, program=program)
        plan = _plan(files, run, options, backend, None)
        length = min(run.engine.max_model_len, options.max_model_len or CONVERSATION)
        yield PlannedDraft(
            name=name,
            files=files,
            is_layer=False,
            memory=plan,
            need=plan.kinds.sequence_bytes(min(length, longest)),
            kept=store.packed(options.packed_size).of_model(stored.name, stored.files_now()),
        )


def plan_layer(
    target: ModelFiles, run: RunPlan, options: LoadOptions, backend: Backend
) -> PlannedDraft:
    """What a model's own layer takes that predicts further ahead.

    Args:
        target: The model.
        run: How that would run by itself.
        options: The user's choices.
        backend: What runs both.

    Raises:
        ModelLoadError: Its tensors don't fit.
        ParameterError: The model has none.
    """
    if not has_ahead(target.weights):
        raise ParameterError(
            "speculative",
            "This model can't guess by mtp: it has no layers that predict tokens further ahead. "
            "Choose ngram, or draft:MODEL with a smaller model of the same vocabulary.",
        )
    longest = run.engine.max_model_len
    program = replace(build_ahead(target.weights), context_length=longest)
    files = replace(target, program=program)
    plan = _plan(files, run, options, backend, None, is_layer=True)
    length = min(longest, options.max_model_len or CONVERSATION)
    need = plan.kinds.sequence_bytes(length)
    return PlannedDraft(name="mtp", files=files, is_layer=True, memory=plan, need=need, kept=None)


def share_memory(
    target: ModelFiles,
    run: RunPlan,
    draft: PlannedDraft,
    options: LoadOptions,
    backend: Backend,
    context: int | None,
) -> tuple[RunPlan, MemoryPlan]:
    """Divide what there is for keys, values and states between a model and its draft model.

    Each gets what conversations of a usual length take in it, so that the draft model has room for
    all that the first one has.

    Args:
        target: The first model.
        run: How it would run by itself, with all of the memory.
        draft: The draft model.
        options: The user's choices, with all of the memory where they say so.
        backend: What runs both.
        context: See `plan_run`.

    Returns:
        How the first model runs, and what the draft model takes.

    Raises:
        ParameterError: The memory doesn't suffice for both.
    """
    total = run.memory.kinds.bytes if options.kv_memory is None else options.kv_memory
    length = min(run.engine.max_model_len, options.max_model_len or CONVERSATION)
    own = run.memory.kinds.sequence_bytes(length)
    share = total * draft.need // (own + draft.need)
    if total - run.memory.least >= draft.need:  # one sequence of each has room in any case
        share = min(share, total - run.memory.least)
    try:
        plan = _plan(draft.files, run, options, backend, share, is_layer=draft.is_layer)
    except ParameterError as error:
        raise ParameterError(
            "kv_memory",
            f"The KV pool of {total / 2**20:.0f} MiB doesn't suffice for the draft model "
            f"{draft.name} too, which takes {draft.need / 2**20:.1f} MiB for a sequence of "
            f"{length} tokens. Raise kv_memory or lower max_model_len.",
        ) from error
    memory = options.memory or total_memory()
    taken = plan.weights.held + plan.kinds.bytes + plan.workspace
    rest = replace(options, kv_memory=total - share, memory=max(0, memory - taken))
    program = target.program
    if draft.layer is not None:
        program = program.with_weights_of(draft.layer)
    return plan_run(target.weights, program, rest, backend, context), plan


def check_vocabulary(name: str, draft: Tokenizer, target: Tokenizer) -> None:
    """See that two models mean the same by every token.

    Raises:
        ParameterError: Names the first that differs.
    """
    texts, others = draft.vocabulary.texts, target.vocabulary.texts
    if len(texts) != len(others):
        raise _unfit(name, f"it knows {len(texts)} tokens, and the model {len(others)}")
    if texts != others:
        token = next(token for token, text in enumerate(texts) if text != others[token])
        raise _unfit(
            name, f"token {token} is {texts[token]!r:.60} there, and {others[token]!r:.60} here"
        )


def _plan(
    files: ModelFiles,
    run: RunPlan,
    options: LoadOptions,
    backend: Backend,
    kv_memory: int | None,
    *,
    is_layer: bool = False,
) -> MemoryPlan:
    """What a draft model takes, which follows as many sequences as may run."""
    engine = run.engine
    # While it guesses, a sequence has two recurrent states: one before and one behind its guesses.
    states = 2 if files.program.state_layers else 1
    limits = RunLimits(
        max_model_len=None,
        max_num_seqs=states * engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_memory=kv_memory,
    )
    plan = backend.plan(files.weights, files.program, options, limits)
    if is_layer:  # its weights are among the model's
        workspace = plan.workspace + _state_bytes(files, run)
        return replace(plan, weights=WeightMemory(bytes=0, mapped=False), workspace=workspace)
    return plan


def _waiting_states(run: RunPlan) -> int:
    """Most of the model's states that may wait for a layer."""
    return most_states(run.engine.max_num_seqs, run.engine.max_num_batched_tokens)


def _state_bytes(files: ModelFiles, run: RunPlan) -> int:
    """Bytes of those."""
    return _waiting_states(run) * files.program.state.width * BYTES_PER_FLOAT


def _unfit(name: str, why: str) -> ParameterError:
    return ParameterError(
        "speculative",
        f"The draft model {name} can't guess for this model: {why}. Choose a smaller model of the "
        "same family, whose tokens are the same.",
    )
