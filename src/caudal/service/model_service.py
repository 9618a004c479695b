"""What a model does: the one door to it, for HTTP, the library and the command line alike.

What goes in is plain data (`caudal.service.work`), with a `RequestContext` beside it; what comes
out is text and events, or vectors and figures.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from caudal.chat.conversation import Conversation
from caudal.engine.request import Generate, Request
from caudal.engine.stats import EngineStats
from caudal.engine.thinking import ThinkingLimit
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.errors import (
    ContextOverflowError,
    ParameterError,
)
from caudal.sampling_params import SamplingParams
from caudal.service.allowance import check_answers, check_prompts, within_allowance
from caudal.service.answers import (
    ConversationSize,
    Embedding,
    PairScore,
    TokenForm,
    Tokens,
)
from caudal.service.chat_generation import ChatGeneration
from caudal.service.chats import Chats
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.generation import Generation
from caudal.service.info import AdapterInfo, ServiceInfo, ServiceLimits, TemplateInfo
from caudal.service.parts import ServiceParts
from caudal.service.service import Service
from caudal.service.texts import TextCoder
from caudal.service.timeouts import in_time
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, PromptForm, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    pass

logger = logging.getLogger("caudal.service")


class ModelService(Service):
    """A loaded model with its running engine, in this process.

    Args:
        parts: What it is made of.

    Attributes:
        parts: What it is made of.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self.parts = parts
        limit = parts.facts.loaded.max_model_len
        self._texts = TextCoder(parts.tokenizer, limit)
        self._chats = Chats(parts.chat, parts.grammars, self._texts, limit)
        self._id = uuid.uuid4().hex
        self._numbers = itertools.count()

    # What it is

    @cached_property
    def info(self) -> ServiceInfo:
        """See `Service`."""
        parts = self.parts
        config, executor = parts.engine.config, parts.engine.info
        tiers = parts.engine.stats().tiers
        guesses = config.speculative
        bos, eos = parts.tokenizer.bos_id, parts.tokenizer.eos_id
        template = parts.chat.template
        chats = "generate" in parts.facts.loaded.tasks
        return ServiceInfo(
            names=parts.names,
            created=parts.created,
            facts=parts.facts,
            fingerprint=parts.facts.fingerprint,
            limits=ServiceLimits(
                max_num_seqs=config.max_num_seqs,
                max_queue=config.max_queue,
                max_num_batched_tokens=config.max_num_batched_tokens,
                schedule=config.schedule,
                prefix_cache=config.prefix_cache,
                block_size=executor.block_size,
                num_blocks=executor.num_blocks,
                prefix_memory=config.prefix_memory,
                prefix_store=config.prefix_store,
                prefix_store_size=0 if tiers is None else tiers.disk_limit,
                speculative=None if guesses is None else str(guesses),
                num_speculative_tokens=0 if guesses is None else guesses.num_speculative_tokens,
            ),
            template=TemplateInfo(
                sources=template.sources,
                variables=template.variables if chats else frozenset(),
                can_think=chats and parts.chat.dialect.reasoning_parser != "none",
                is_default=template.is_default,
                fills_gaps=chats and parts.chat.fills_gaps,
            ),
            bos_token="" if bos is None else parts.tokenizer.token_text(bos),
            eos_token="" if eos is None else parts.tokenizer.token_text(eos),
        )

    @property
    def healthy(self) -> bool:
        """See `Service`."""
        return self.parts.engine.healthy

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return self.parts.adapters.infos

    async def stats(self) -> EngineStats:
        """See `Service`."""
        return self.parts.engine.stats()

    async def metrics(self) -> bytes:
        """See `Service`."""
        metrics = self.parts.metrics
        return b"" if metrics is None else metrics.render()

    # What it does

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> ChatGeneration:
        """See `Service`."""
        context, begun = context.begun(), time.monotonic()
        async with self._in_time(context):
            planned = await self._chats.plan(work)
            check_answers(context, planned.params.n)
            prompt = planned.prompt
            ignored = list(prompt.ignored)
            prediction = work.prediction
            guesses = self.info.limits.speculative is not None
            if prediction and not (guesses and planned.params.speculative != "off"):
                ignored.append("prediction")
                prediction = ""
            if self.parts.strict and ignored:
                field = ignored[0]
                raise ParameterError(field, f"{field} would have no effect on this server.")
            tokens: Sequence[int] = prompt.tokens
            if work.preceding:
                tokens = [*work.preceding, *self.parts.tokenizer.without_bos(tokens)]
            check_prompts(context, [len(tokens)])
            generation = await self._submit(
                tokens,
                planned.params,
                context,
                begun,
                context_length=work.context_length,
                visible_tokens=prompt.visible_tokens,
                thinking=prompt.thinking_limit(work.thinking_budget),
                show_ids=work.show_prompt_ids,
                prediction=await self._texts.encode_prediction(prediction) if prediction else (),
            )
        conversation = planned.conversation
        return ChatGeneration(
            generation,
            prompt.new_parser,
            include_reasoning=conversation.include_reasoning,
            single_call=not conversation.parallel_tool_calls,
            ignored=ignored,
        )

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> list[Generation]:
        """See `Service`."""
        self._check_count(len(work.prompts))
        check_answers(context, len(work.prompts) * work.params.n)
        context, begun = context.begun(), time.monotonic()
        started: list[Generation] = []
        try:
            async with self._in_time(context):
                prompts = await self._prompts(work)
                check_prompts(context, map(len, prompts))
                for prompt in prompts:
                    started.append(
                        await self._submit(
                            prompt,
                            work.params,
                            context,
                            begun,
                            context_length=work.context_length,
                            show_ids=work.show_prompt_ids,
                            show_text=work.show_prompt_text,
                        )
                    )
        except BaseException:
            for generation in started:
                await generation.aclose()
            raise
        return started

    async def _prompts(self, work: CompletionWork) -> list[list[int]]:
        if work.suffix is None:
            return await self._texts.encode_prompts(work)
        [prompt] = work.prompts
        assert isinstance(prompt, str)
        return [await self._chats.fill(prompt, work.suffix)]

    async def embed(
        self,
        work: EmbedWork,
        context: RequestContext = NO_CONTEXT,
        *,
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Embedding]:
        """See `Service`.

        Args:
            work: The inputs.
            context: Who asks.
            on_done: Called after each input.
        """
        context = context.begun()
        with self._logged(f"embeddings of {len(work.inputs)} inputs", context):
            return await self.parts.embedder.embed(
                work, context, adapter=self.parts.adapters.number(context.adapter), on_done=on_done
            )

    async def score(self, work: ScoreWork, context: RequestContext = NO_CONTEXT) -> list[PairScore]:
        """See `Service`."""
        context = context.begun()
        with self._logged(f"scoring of {len(work.pairs)} pairs", context):
            return await self.parts.embedder.score(
                work, context, adapter=self.parts.adapters.number(context.adapter)
            )

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        [ids] = await self._texts.encode(
            [text], add_special=add_special, parse_special=parse_special
        )
        return self._texts.shown(ids, show)

    async def tokenize_chat(
        self,
        conversation: Conversation,
        *,
        add_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        ids = list((await self._chats.prepare(conversation)).tokens)
        return self._texts.shown(self.parts.tokenizer.framed(ids) if add_special else ids, show)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """See `Service`."""
        return await self._texts.decode(tokens)

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        """See `Service`."""
        prompt = await self._chats.prepare(conversation, form)
        return ConversationSize(len(prompt.tokens), prompt.ignored)

    async def render(self, conversation: Conversation) -> str:
        """See `Service`."""
        return await self._chats.render(conversation)

    # What it keeps

    async def prefix_cache(self) -> PrefixCacheFigures:
        """See `Service`."""
        return await self.parts.engine.prefix_cache()

    async def reset_prefix_cache(self, choice: SpaceChoice) -> PrefixCacheReset:
        """See `Service`."""
        return await self.parts.engine.reset_prefix_cache(choice)

    # What it may do it with

    async def load_adapter(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> Sequence[AdapterInfo]:
        """See `Service`."""
        await self.parts.adapters.load(name, path, replace=replace, room=room)
        return self.adapters

    async def unload_adapter(self, name: str) -> Sequence[AdapterInfo]:
        """See `Service`."""
        self.parts.adapters.unload(name)
        return self.adapters

    async def shutdown(self) -> None:
        """See `Service`."""
        self._chats.close()
        await self.parts.engine.shutdown()

    # To the engine

    def _logged(self, what: str, context: RequestContext) -> AbstractContextManager[None]:
        metrics = self.parts.metrics
        if metrics is None:
            return nullcontext()
        # Not at the top: see `ServiceParts.from_loaded`.
        from caudal.service.pooling_log import logged

        return logged(metrics, what, context)

    def _in_time(self, context: RequestContext) -> AbstractAsyncContextManager[None]:
        """Where an answer is made ready to be submitted; raises `RequestTimeoutError`."""

        def count() -> None:
            if self.parts.metrics is not None:
                self.parts.metrics.count_unprepared(context)

        return in_time(context, self.parts.engine.config, generates=True, on_timeout=count)

    def _check_count(self, prompts: int) -> None:
        """Raises `ParameterError` for more prompts than can ever be taken at once.

        `QueueFullError` would be wrong: it asks the client to try again.
        """
        config = self.parts.engine.config
        limit = config.max_num_seqs + config.max_queue
        if prompts > limit:
            raise ParameterError(
                "prompt",
                f"prompt may be a list of at most {limit} prompts on this server, but has "
                f"{prompts}.",
            )

    def _check_length(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Raises `ContextOverflowError` for an answer too long, where none is to be cut short."""
        if not self.parts.strict or params.max_tokens is None:
            return
        remaining = self.max_model_len - prompt_tokens
        if 0 < remaining < params.max_tokens:
            raise ContextOverflowError(
                "max_tokens", self.max_model_len, prompt_tokens, params.max_tokens
            )

    async def _submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        context: RequestContext,
        begun: float,
        *,
        context_length: int | None,
        visible_tokens: Collection[int] = (),
        thinking: ThinkingLimit | None = None,
        show_ids: bool = False,
        show_text: PromptForm | None = None,
        prediction: Sequence[int] = (),
    ) -> Generation:
        parts = self.parts
        metrics = parts.metrics
        observer = None if metrics is None else metrics.observer(context)
        params = within_allowance(context, params, strict=parts.strict)
        if context_length is not None:
            params = _within(context_length, len(prompt), params)
        self._check_length(len(prompt), params)
        request = Request(
            request_id=f"{self._id}-{next(self._numbers)}",
            prompt=prompt,
            work=Generate(params, thinking, prediction),
            priority=context.priority,
            cache_salt=context.cache_salt,
            adapter=parts.adapters.number(context.adapter),
            tenant=context.tenant,
            weight=context.weight,
            max_waiting=context.max_waiting,
            arrived=context.arrived,
            first_token_timeout=context.first_token_timeout,
            timeout=context.timeout,
        )
        submitted = time.monotonic()
        updates = await parts.engine.submit(request)
        return Generation(
            request,
            updates,
            parts.tokenizer,
            observer,
            visible_tokens=visible_tokens,
            prompt=self._texts.shown_prompt(prompt, ids=show_ids, text=show_text),
            begun=begun,
            submitted=submitted,
        )


def _within(context_length: int, prompt_tokens: int, params: SamplingParams) -> SamplingParams:
    """The parameters, with no more tokens than there is room for.

    Raises:
        ParameterError: There is none; blames `context_length`.
    """
    room = context_length - prompt_tokens
    if room < 1:
        raise ParameterError(
            "context_length",
            f"context_length is {context_length} tokens, but your prompt has {prompt_tokens} and "
            "needs room for at least one more.",
        )
    if params.max_tokens is not None and params.max_tokens <= room:
        return params
    return replace(params, max_tokens=room)
