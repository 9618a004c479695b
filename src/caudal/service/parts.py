"""What a model's service is made of, and how it is put together from a loaded model."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from caudal.chat.conversation import Message, Role
from caudal.chat.packaged import Opening
from caudal.chat.preparer import ChatPreparer
from caudal.engine.async_engine import AsyncEngine
from caudal.engine.turns import Turns
from caudal.errors import (
    TemplateError,
)
from caudal.formats.template_workers import TemplateWorkers
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.service.adapters import ModelAdapters
from caudal.service.embedding import Embedder
from caudal.service.facts import ServedFacts
from caudal.store.package import Package

if TYPE_CHECKING:
    from caudal.loading.load import LoadedModel
    from caudal.service.metrics import ServiceMetrics

_NICENESS = 10
"""Of requests' templates, so that they never slow down the answers of others much."""

logger = logging.getLogger("caudal.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParts:
    """What a model's service is made of.

    Attributes:
        names: Names that requests may use; its own first.
        tokenizer: Text to ids and back.
        chat: Conversations to ids, and answers to events.
        grammars: Compiles what an answer must look like.
        engine: Runs requests.
        embedder: Texts to vectors and scores.
        adapters: What requests may have it answer with.
        facts: What was loaded and what runs it.
        metrics: Told how each request goes; None where nobody asks.
        strict: Refuse what could not be given as it was asked for: parameters that have no effect
            on this model, and answers longer than the context has room for. Else the former are
            told, and the latter end with the context.
        created: Unix time of loading, in seconds.
    """

    names: Sequence[str]
    tokenizer: Tokenizer
    chat: ChatPreparer
    grammars: GrammarCompiler
    engine: AsyncEngine
    embedder: Embedder
    adapters: ModelAdapters
    facts: ServedFacts
    metrics: ServiceMetrics | None = None
    strict: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def from_loaded(
        cls,
        loaded: LoadedModel,
        names: Sequence[str] | None = None,
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        allow_request_templates: bool = False,
        strict: bool = False,
        measured: bool = True,
        ready_for_chats: bool = True,
        turns: Turns | None = None,
    ) -> ServiceParts:
        """Start the engine of a loaded model.

        Args:
            loaded: The model.
            names: Names to serve it under; by default its own.
            tool_parser: See `ChatPreparer`.
            reasoning_parser: See `ChatPreparer`.
            allow_request_templates: Whether requests may bring chat templates of their own.
            strict: See `ServiceParts`.
            measured: Whether it keeps metrics, and logs each request.
            ready_for_chats: Make ready now what the first chat would have to wait for, some
                seconds at most, and learn from the template how answers are told. Otherwise that
                happens when it is needed, and facts don't say it.
            turns: Whose turn it is to compute; None: nobody else computes.

        Raises:
            ParameterError: There is no parser of that name.
            TemplateProcessError: The processes that templates run in can't be started.
        """
        chat = ChatPreparer(
            loaded.chat_template,
            loaded.tokenizer,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            request_templates=TemplateWorkers(niceness=_NICENESS)
            if allow_request_templates
            else None,
            max_model_len=loaded.max_model_len,
            opening=_opening(loaded.package),
        )
        facts = ServedFacts(loaded=loaded.facts)
        if ready_for_chats and "generate" in loaded.tasks:
            chat.start()
            loaded.grammars.prepare()  # while nobody's answer has to wait for it
            try:
                loaded.chat_template.check()
            except TemplateError as error:  # texts can be completed all the same
                logger.warning("Chats will be refused: %s", error)
            facts = replace(
                facts,
                tool_parser=chat.dialect.tool_parser,
                reasoning_parser=chat.dialect.reasoning_parser,
            )
        engine = loaded.start_engine(turns)
        metrics = None
        names = tuple(names or [loaded.name])
        embedder = Embedder.of(loaded, engine)
        if measured:
            # Not at the top: importing Prometheus's client takes a while, and most of the library's
            # users never need it.
            from caudal.service.metrics import ServiceMetrics

            metrics = ServiceMetrics(names[0], engine, lambda: chat.processes)
            embedder = Embedder.of(loaded, engine, metrics.observe_queue_time)
        return cls(
            names=names,
            tokenizer=loaded.tokenizer,
            chat=chat,
            grammars=loaded.grammars,
            engine=engine,
            embedder=embedder,
            adapters=ModelAdapters(engine, loaded.read_adapter, names),
            facts=facts,
            metrics=metrics,
            strict=strict,
        )


def _opening(package: Package) -> Opening:
    """How conversations with a model begin, by its package."""
    return Opening(
        system=package.system,
        messages=[
            Message(role=cast("Role", each.role), content=each.content) for each in package.messages
        ],
    )
