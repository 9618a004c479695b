"""From a model's name to something that can run: file, tokenizer, template, program, executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from caudal.backends.executor import Executor
from caudal.backends.registry import find_backend
from caudal.engine.async_engine import AsyncEngine
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.requests import RequestGrammars
from caudal.loading.facts import ModelFacts
from caudal.loading.files import ModelFiles, open_model
from caudal.loading.options import LoadOptions
from caudal.loading.planning import RunPlan, plan_run
from caudal.models.program import Program, Task
from caudal.sampling_params import NO_RECOMMENDATION
from caudal.store import Store


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

    @property
    def tasks(self) -> frozenset[Task]:
        """What requests may ask of the model."""
        return self.program.tasks

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self.engine_config.max_model_len

    def start_engine(self) -> AsyncEngine:
        """Start the one engine that runs this model; shutting it down closes the executor."""
        grammars = RequestGrammars(self.tokenizer, self.grammars)
        return AsyncEngine(
            Engine(self.executor, self.engine_config, self.tokenizer.eos_ids, grammars)
        )


def load_model(
    name: str,
    options: LoadOptions,
    *,
    store: Store | None = None,
    progress: Callable[[float], None] | None = None,
) -> LoadedModel:
    """Load a model by name or path. It must be in the store already; nothing is fetched.

    Args:
        name: A name that the store resolves, or the path of a GGUF file or a model's folder.
        options: The user's choices.
        store: Where models are kept; default: the user's store.
        progress: Called with the share of weights packed so far, 0 to 1.

    Raises:
        ModelNotFoundError: There is no such model.
        ModelLoadError: The file can't be used.
        ParameterError: An option makes no sense, or doesn't fit this model.
    """
    backend = find_backend(options.backend)
    stored = (store or Store()).resolve(name)
    opened = open_model(
        stored, chat_template=options.chat_template, served_length=options.max_model_len
    )
    with opened as files:
        plan = plan_run(files.program, options, backend)
        executor = backend.open(files.weights, files.program, plan.memory, progress)
        return LoadedModel(
            name=name,
            path=stored.path,
            tokenizer=files.tokenizer,
            chat_template=files.chat_template,
            grammars=GrammarCompiler(files.tokenizer),
            program=files.program,
            executor=executor,
            engine_config=plan.engine,
            facts=_facts(name, options, files, plan, executor),
        )


def _facts(
    name: str, options: LoadOptions, files: ModelFiles, plan: RunPlan, executor: Executor
) -> ModelFacts:
    program = files.program
    return ModelFacts(
        model=name,
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
        sampling=files.sampling if options.generation_config == "auto" else NO_RECOMMENDATION,
        chat_template=None if program.is_encoder else files.chat_template.origin,
        memory=None if program.is_encoder else plan.memory.kinds,
    )
