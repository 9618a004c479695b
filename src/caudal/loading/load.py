"""From a model's name to something that can run: file, tokenizer, template, program, executor."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from caudal.backends.backend import MemoryPlan
from caudal.backends.executor import Executor
from caudal.backends.registry import find_backend
from caudal.engine.async_engine import AsyncEngine
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.turns import Turns
from caudal.errors import ParameterError
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.lora.adapter import Adapter
from caudal.formats.lora.base import AdapterBase
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.requests import RequestGrammars
from caudal.loading.adapters import NO_ADAPTERS, AdapterPaths, load_adapter, own_adapter
from caudal.loading.draft import LoadedDraft, PlannedDraft, plan_draft, plan_layer, share_memory
from caudal.loading.facts import ModelFacts
from caudal.loading.files import ModelFiles, open_model
from caudal.loading.options import LoadOptions
from caudal.loading.packaged import OWN_ADAPTER, PackagedChoices, package_facts
from caudal.loading.planning import RunPlan, plan_run
from caudal.models.program import Program, Task
from caudal.store import Store, StoredModel
from caudal.store.package import NO_PACKAGE, Package
from caudal.store.packed import PackedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        name: As the user gave it.
        path: The file, or the first of a split one.
        tokenizer: Text to ids and back.
        chat_template: Conversations to ids.
        grammars: Compiles what an answer must look like.
        program: The computation.
        executor: Runs it.
        engine_config: Limits for the engine.
        facts: What was loaded and what runs it.
        adapter_base: What adapters for it are checked against.
        adapters: Those that it begins with, by name.
        package: What came with its weights.
        ends: Tokens that end an answer by the package's word, besides the tokenizer's.
        draft: The draft model that guesses for it, where it has one.
    """

    name: str
    path: Path
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    grammars: GrammarCompiler
    program: Program
    executor: Executor
    engine_config: EngineConfig
    facts: ModelFacts
    adapter_base: AdapterBase
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    package: Package = NO_PACKAGE
    ends: frozenset[int] = frozenset()
    draft: LoadedDraft | None = None

    @property
    def tasks(self) -> frozenset[Task]:
        """What requests may ask of the model."""
        return self.program.tasks

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self.engine_config.max_model_len

    def read_adapter(self, name: str, path: str) -> Adapter:
        """Read an adapter for it; see `load_adapter`."""
        return load_adapter(name, path, self.adapter_base)

    def close(self) -> None:
        """Give memory back, where no engine is started. Safe to call twice."""
        self.executor.close()
        if self.draft is not None:
            self.draft.executor.close()

    def start_engine(self, turns: Turns | None = None) -> AsyncEngine:
        """Start the one engine that runs this model; shutting it down closes the executor.

        Args:
            turns: Whose turn it is to compute; None: nobody else computes.

        Raises:
            ModelLoadError: The executor can't have an adapter.
        """
        grammars = RequestGrammars(self.tokenizer, self.grammars)
        ends = self.tokenizer.eos_ids | self.ends
        engine = Engine(
            self.executor,
            self.engine_config,
            ends,
            grammars,
            turns=turns,
            suppressed_token_ids=self.tokenizer.suppressed_ids,
            proposer=None if self.draft is None else self.draft.proposer(ends, turns),
        )
        for name, adapter in self.adapters.items():
            engine.adapters.load(name, adapter)
        return AsyncEngine(engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model whose files are open and understood; nothing is set aside for it yet.

    Attributes:
        name: As the user gave it.
        path: The file, or the first of a split one.
        options: The user's choices.
        files: What the files say.
        run: How it is going to run where nobody says otherwise.
        adapters: Those that it begins with, by name; the package's is `OWN_ADAPTER`.
        stored: Where it is, and what came with it.
        choices: What its package says of how it runs.
        kept: Where its packed weights may be kept.
        draft: The draft model that guesses for it, where it has one.
        draft_memory: What that takes where nobody says otherwise.
    """

    name: str
    path: Path
    options: LoadOptions
    files: ModelFiles
    run: RunPlan
    adapters: Mapping[str, Adapter]
    stored: StoredModel
    choices: PackagedChoices
    kept: PackedModel | None
    draft: PlannedDraft | None = None
    draft_memory: MemoryPlan | None = None

    def load(
        self, memory: int | None = None, progress: Callable[[float], None] | None = None
    ) -> LoadedModel:
        """Pack the weights, and set memory aside.

        Args:
            memory: Bytes for keys, values and states; None: as planned. What keeps nothing needs
                none.
            progress: Called with the share of weights packed so far, 0 to 1.

        Raises:
            ModelLoadError: The file can't be used.
            ParameterError: So much memory doesn't suffice.
        """
        backend, files = find_backend(self.options.backend), self.files
        run, draft_memory = self.run, self.draft_memory
        if memory is not None and not files.program.is_encoder:
            options, context = replace(self.options, kv_memory=memory), self.choices.context
            if self.draft is None:
                run = plan_run(files.weights, files.program, options, backend, context)
            else:
                run, draft_memory = share_memory(files, run, self.draft, options, backend, context)
        executor = backend.open(
            files.weights,
            files.program,
            run.memory,
            progress,
            self.kept,
            more=None if self.draft is None else self.draft.layer,
        )
        draft = None
        if self.draft is not None and draft_memory is not None:
            try:
                draft = self.draft.load(draft_memory, run, backend, executor)
            except BaseException:
                executor.close()
                raise
        return LoadedModel(
            name=self.name,
            path=self.path,
            tokenizer=files.tokenizer,
            chat_template=files.chat_template,
            grammars=GrammarCompiler(files.tokenizer),
            program=files.program,
            executor=executor,
            engine_config=run.engine,
            facts=replace(self._facts(run, executor), draft=None if draft is None else draft.facts),
            adapter_base=files.adapter_base,
            adapters=self.adapters,
            package=self.stored.package,
            ends=self.choices.ends(files.tokenizer),
            draft=draft,
        )

    def _facts(self, plan: RunPlan, executor: Executor) -> ModelFacts:
        files, program = self.files, self.files.program
        recommended = files.sampling if self.options.generation_config == "auto" else None
        return ModelFacts(
            model=self.name,
            architecture=files.weights.architecture,
            tasks=program.tasks,
            matrices=files.matrices,
            tokenizer=files.tokenizer.kind,
            vocab_size=files.tokenizer.vocab_size,
            pooling=program.pooling,
            embedding_width=program.state.width,
            max_model_len=plan.engine.max_model_len,
            context_length=program.context_length,
            executor=executor.info.facts,
            left_out=files.left_out,
            sampling=self.choices.sampled(files.tokenizer, recommended),
            chat_template=None if program.is_encoder else files.chat_template.origin,
            memory=None if program.is_encoder else plan.memory.kinds,
            package=package_facts(self.stored, self.adapters.get(OWN_ADAPTER)),
            weights_hash=_one_hash(self.stored.sha256),
            chat_template_hash=None if program.is_encoder else _hash(files.chat_template.source),
        )


def _one_hash(hashes: Sequence[str]) -> str | None:
    """Of a model's files: that of one, or one of the list."""
    return hashes[0] if len(hashes) == 1 else _hash("\n".join(hashes)) if hashes else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def plan_model(
    name: str,
    options: LoadOptions,
    *,
    adapters: AdapterPaths = NO_ADAPTERS,
    store: Store | None = None,
) -> Iterator[PlannedModel]:
    """Read a model by name or path, and close its files at the end.

    Args:
        name: A name that the store resolves, or the path of a GGUF file or a model's folder.
        options: The user's choices.
        adapters: Those that it begins with.
        store: Where models are kept; default: the user's store.

    Raises:
        ModelNotFoundError: There is no such model.
        AdapterNotFoundError: There is no such adapter.
        ModelLoadError: A file can't be used.
        ParameterError: An option makes no sense, or doesn't fit this model.
    """
    backend = find_backend(options.backend)
    store = store or Store()
    stored = store.resolve(name)
    kept = store.packed(options.packed_size).of_model(stored.name, stored.files_now())
    choices = PackagedChoices.of(stored)
    opened = open_model(
        stored,
        chat_template=options.chat_template,
        served_length=options.max_model_len or choices.context,
        with_ahead=options.speculative is not None and options.speculative.method == "mtp",
    )
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(opened)
        own = own_adapter(stored, files.adapter_base)
        run = plan_run(files.weights, files.program, options, backend, choices.context)
        draft, draft_memory = None, None
        guesses = options.speculative
        if guesses is not None and guesses.method != "ngram" and not files.program.is_encoder:
            try:
                draft = (
                    plan_layer(files, run, options, backend)
                    if guesses.model is None
                    else stack.enter_context(
                        plan_draft(guesses.model, files, run, options, backend, store)
                    )
                )
                run, draft_memory = share_memory(
                    files, run, draft, options, backend, choices.context
                )
            except ParameterError as error:
                if not options.for_all:
                    raise
                logger.warning("%s runs without %s: %s", name, guesses, error)
                options, draft = replace(options, speculative=None), None
                run = plan_run(files.weights, files.program, options, backend, choices.context)
        yield PlannedModel(
            name=name,
            path=stored.path,
            options=options,
            files=files,
            run=run,
            stored=stored,
            choices=choices,
            kept=kept,
            adapters=({} if own is None else {OWN_ADAPTER: own})
            | {
                each: load_adapter(each, path, files.adapter_base)
                for each, path in adapters.items()
            },
            draft=draft,
            draft_memory=draft_memory,
        )


def load_model(
    name: str,
    options: LoadOptions,
    *,
    adapters: AdapterPaths = NO_ADAPTERS,
    store: Store | None = None,
    progress: Callable[[float], None] | None = None,
) -> LoadedModel:
    """Load a model by name or path. It must be in the store already; nothing is fetched.

    Args:
        name: See `plan_model`.
        options: Likewise.
        adapters: Likewise.
        store: Likewise.
        progress: Called with the share of weights packed so far, 0 to 1.

    Raises:
        ModelNotFoundError, AdapterNotFoundError, ModelLoadError, ParameterError: See `plan_model`.
    """
    with plan_model(name, options, adapters=adapters, store=store) as planned:
        return planned.load(progress=progress)
