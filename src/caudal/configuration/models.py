"""Which models are served, and how each of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from caudal.chat.dialect import REASONING_PARSERS, TOOL_PARSERS
from caudal.configuration.chat_template_file import read_chat_template
from caudal.configuration.effective import EffectiveSettings, GivenModel
from caudal.configuration.problems import Problems
from caudal.engine.config import MOST_TOKENS, EngineConfig
from caudal.engine.drafting.speculation import (
    Speculation,
    speculation_of,
    speculation_of_config,
)
from caudal.errors import ParameterError
from caudal.fleet.catalogue import Catalogue, GivenModels, StoredModels, given_offer
from caudal.fleet.durations import FOREVER
from caudal.loading.adapters import parse_adapter
from caudal.loading.options import ENGINE_OPTIONS, LoadOptions
from caudal.store import Store
from caudal.workers.launcher import ServingOptions


def given_models(settings: EffectiveSettings) -> Sequence[GivenModel]:
    """The models that are served, each once; none for all of the store.

    Those that the command line names are served alone; what a file says of them holds.

    Raises:
        ConfigurationError: A name is none, or what goes with one model is said of several.
    """
    given = settings.values
    models = list(settings.file.models) if settings.file is not None else []
    if given.model:
        by_name = {name: each for each in models for name in (each.name, *each.names)}
        named = dict.fromkeys(given.model)
        if not all(named):
            raise settings.error("model", "must not be empty")
        models = [by_name.get(name) or GivenModel(name=name) for name in named]
    if not all(given.served_model_name):
        raise settings.error("served_model_name", "must not be empty")
    if given.served_model_name and len(models) != 1:
        raise settings.error(
            "served_model_name", "goes with one MODEL; several have their own names"
        )
    for name in ("in_process", "lora"):
        if getattr(given, name) and len(models) != 1:
            raise settings.error(name, "goes with one MODEL")
    if given.served_model_name:
        models = [replace(models[0], names=given.served_model_name)]
    if given.lora:
        names = models[0].names or (models[0].name,)
        models = [replace(models[0], lora=adapter_paths(settings, names))]
    return models


def adapter_paths(settings: EffectiveSettings, names: Sequence[str]) -> Mapping[str, str]:
    """The adapters that the one model begins with, by name.

    Args:
        settings: They.
        names: The model's own.

    Raises:
        ConfigurationError: One is none, or has a name that is another's.
    """
    paths: dict[str, str] = {}
    for text in settings.values.lora:
        try:
            name, path = parse_adapter(text)
        except ParameterError as error:
            raise settings.error("lora", str(error)) from error
        if name in paths:
            raise settings.error("lora", f"there are two adapters {name!r}")
        paths[name] = path
    if taken := paths.keys() & set(names):
        raise settings.error("lora", f"{min(taken)!r} is the model's own name")
    return paths


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model runs.

    Attributes:
        load: It is loaded so.
        serving: Its answers are read so.
    """

    load: LoadOptions
    serving: ServingOptions


def model_options(settings: EffectiveSettings, *, of_one: bool) -> ModelOptions:
    """How a model runs.

    Args:
        settings: Those that hold for it.
        of_one: They are meant for one model, and not for whatever model is loaded.

    Raises:
        ConfigurationError: They make no sense; tells of all that don't.
    """
    problems = Problems()
    serving, load = ServingOptions(), LoadOptions()
    with problems:
        serving = _serving_options(settings, problems)
    with problems:
        load = _load_options(settings, problems, of_one=of_one)
    problems.raise_all()
    return ModelOptions(load, serving)


def _serving_options(settings: EffectiveSettings, problems: Problems) -> ServingOptions:
    given = settings.values
    for name, known in (("tool_parser", TOOL_PARSERS), ("reasoning_parser", REASONING_PARSERS)):
        if getattr(given, name) not in known:
            problems.add(settings.error(name, f"must be one of {', '.join(known)}"))
    return ServingOptions(
        tool_parser=given.tool_parser,
        reasoning_parser=given.reasoning_parser,
        allow_request_templates=given.allow_request_templates,
        strict=given.strict_fields,
    )


def _load_options(settings: EffectiveSettings, problems: Problems, *, of_one: bool) -> LoadOptions:
    given = settings.values
    template = None
    if given.chat_template is not None:
        with problems.of(partial(settings.error, "chat_template")):
            template = read_chat_template(given.chat_template)
    length = settings.origins.get("max_model_len")
    try:
        options = LoadOptions(
            max_model_len=given.max_model_len,
            kv_memory=given.kv_memory,
            kv_type=given.kv_type,
            activations=given.activations,
            weights=given.weights,
            packed_size=given.packed_size,
            threads=given.threads,
            prefix_cache=not given.no_prefix_cache,
            prefix_store=None if given.prefix_store is None else str(given.prefix_store),
            schedule=given.schedule,
            batching=given.batching,
            chat_template=template,
            generation_config=given.generation_config,
            speculative=_speculation(settings),
            for_all=not of_one or (length is not None and length.kind == "environment"),
            **{name: getattr(given, name) for name in ENGINE_OPTIONS},
        )
        # Whether they make sense together; what depends on the model is seen when it is read.
        said = options.for_engine()
        said.setdefault("max_num_batched_tokens", MOST_TOKENS)
        EngineConfig(max_model_len=2, **said)
    except ParameterError as error:
        raise settings.error(error.param, str(error).removesuffix(".")) from error
    return options


def _speculation(settings: EffectiveSettings) -> Speculation | None:
    """How tokens are guessed.

    Raises:
        ConfigurationError: It makes no sense, or is said twice.
    """
    given = settings.values
    config = given.speculative_config
    name = "speculative" if config is None else "speculative_config"
    if config is not None and "speculative" in settings.origins:
        raise settings.error(name, "goes without `speculative`, which says the same")
    try:
        return (
            speculation_of(given.speculative) if config is None else speculation_of_config(config)
        )
    except ParameterError as error:
        raise settings.error(name, str(error).removesuffix(".").partition(": ")[2]) from error


def catalogue_of(
    settings: EffectiveSettings,
    models: Sequence[GivenModel],
    options: Mapping[str, ModelOptions],
    general: ModelOptions,
    store: Store,
) -> Catalogue:
    """Which models there are.

    Args:
        settings: They.
        models: Those that are named, which are on this machine; none for all of the store.
        options: How these run, by their own names.
        general: How others do.
        store: Where they are.

    Raises:
        ModelNotFoundError, StoreError: One isn't here, or is damaged.
    """
    if not models:
        return StoredModels(store, general.serving, general.load)
    kept = FOREVER if settings.values.keep_alive is None else settings.values.keep_alive
    return GivenModels(
        [
            given_offer(
                model.name,
                names=model.names,
                adapters=model.lora,
                store=store,
                serving=options[model.own_name].serving,
                load=options[model.own_name].load,
                pinned=len(models) == 1 if model.pinned is None else model.pinned,
                keep_alive=_kept(settings, model, kept),
            )
            for model in models
        ]
    )


def _kept(settings: EffectiveSettings, model: GivenModel, general: float) -> float:
    origin = settings.origins.get("keep_alive")
    overruled = origin is not None and origin.kind != "file"
    return general if model.keep_alive is None or overruled else model.keep_alive
