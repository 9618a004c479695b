"""The model behind the routes: what `/v1/models` names, and how text becomes a running request."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from caudal.chat.conversation import Conversation
from caudal.chat.generation import ChatGeneration
from caudal.chat.model import ChatModel
from caudal.chat.prompt import ChatPrompt
from caudal.engine.async_engine import AsyncEngine
from caudal.engine.request import Generate, Request
from caudal.engine.thinking import ThinkingLimit
from caudal.errors import ContextOverflowError, ParameterError, TemplateError
from caudal.formats.template_workers import PROCESSES, TemplateWorkers
from caudal.formats.tokenizer import COUNTED_CHARS, Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.machine import usable_processors
from caudal.sampling_params import SamplingParams
from caudal.server.errors import UnknownModelError, UnsupportedTaskError
from caudal.server.metrics import ServerMetrics
from caudal.service.embedding import EmbeddingModel
from caudal.service.facts import ServedFacts
from caudal.service.generation import Generation
from caudal.service.threads import WorkThreads
from caudal.service.tool_schemas import check_answer_form
from caudal.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from caudal.loading.load import LoadedModel
    from caudal.models.program import Task

INLINE_TOKENIZE_CHARS = 4096
"""Longer text is tokenised in a thread, so that it does not delay the streams of others."""

_CALL_CHARS = 32
"""What a text costs beside its characters."""

_TEXTS_AT_ONCE = 256

REQUEST_TEMPLATES = 16
"""Most requests with templates of their own that wait; one more is answered 429."""

MAX_DECODED_TOKENS = 2**18
"""As many tokens as this become text on request, however short the model's context."""

_NICENESS = 10
"""Of requests' templates, so that they never slow down the answers of others much."""

logger = logging.getLogger("caudal.server")


def _chat_threads() -> WorkThreads:
    return WorkThreads("chat", max(PROCESSES, usable_processors()) + 1)


def _request_template_threads() -> WorkThreads:
    return WorkThreads(
        "request-template",
        PROCESSES,
        max_waiting=REQUEST_TEMPLATES,
        queue="The queue of requests that bring a chat_template",
        retry_after=2,
    )


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A loaded model with its running engine.

    Attributes:
        names: Names that requests may use; its own first.
        tokenizer: Text to ids and back.
        chat: Conversations to ids, and answers to events.
        grammars: Compiles what an answer must look like.
        engine: Runs requests.
        embeddings: Texts to vectors and scores.
        tasks: What requests may ask of the model.
        max_model_len: Most tokens of one sequence, prompt and answer together.
        facts: What was loaded and what runs it.
        metrics: Told how each request goes.
        caps_answers: Whether a request may ask for more tokens than the context has room for: its
            answer ends there. Else it is refused.
        created: Unix time of loading, in seconds.
    """

    names: Sequence[str]
    tokenizer: Tokenizer
    chat: ChatModel
    grammars: GrammarCompiler
    engine: AsyncEngine
    embeddings: EmbeddingModel
    tasks: frozenset[Task]
    max_model_len: int
    facts: ServedFacts
    metrics: ServerMetrics
    caps_answers: bool = True
    created: int = field(default_factory=lambda: int(time.time()))
    _chat_threads: WorkThreads = field(default_factory=_chat_threads, repr=False)
    _request_template_threads: WorkThreads = field(
        default_factory=_request_template_threads, repr=False
    )

    @classmethod
    def from_loaded(
        cls,
        loaded: LoadedModel,
        names: Sequence[str] | None = None,
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        allow_request_templates: bool = False,
        caps_answers: bool = True,
    ) -> ServedModel:
        """Start the engine of a loaded model.

        Args:
            loaded: The model.
            names: Names to serve it under; by default its own.
            tool_parser: See `ChatModel`.
            reasoning_parser: See `ChatModel`.
            allow_request_templates: Whether requests may bring chat templates of their own.
            caps_answers: See above.

        Raises:
            ParameterError: There is no parser of that name.
            TemplateProcessError: The processes that templates run in can't be started.
        """
        chat = ChatModel(
            loaded.chat_template,
            loaded.tokenizer,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            request_templates=TemplateWorkers(niceness=_NICENESS)
            if allow_request_templates
            else None,
            max_model_len=loaded.max_model_len,
        )
        facts = ServedFacts(loaded=loaded.facts)
        if "generate" in loaded.tasks:
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
        engine = loaded.start_engine()
        return cls(
            names=tuple(names or [loaded.name]),
            tokenizer=loaded.tokenizer,
            chat=chat,
            grammars=loaded.grammars,
            engine=engine,
            embeddings=loaded.embedding_model(engine),
            tasks=loaded.tasks,
            max_model_len=loaded.max_model_len,
            facts=facts,
            metrics=ServerMetrics(engine.stats),
            caps_answers=caps_answers,
        )

    @property
    def fingerprint(self) -> str:
        """Changes when anything changes that may change answers."""
        return self.facts.fingerprint

    def check_task(self, task: Task) -> None:
        """Raises `UnsupportedTaskError` where the model can't do what a route is for."""
        if task not in self.tasks:
            raise UnsupportedTaskError(self.names[0], task, self.tasks)

    def name_for(self, asked: str | None) -> str:
        """The name under which a request means this model: the one it gives, or its first.

        Raises:
            UnknownModelError: The request names another model.
        """
        if not asked:  # there is but one
            return self.names[0]
        if asked not in self.names:
            raise UnknownModelError(asked, self.names)
        return asked

    async def encode_text(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        field: str = "prompt",
    ) -> list[int]:
        """Token ids of plain text.

        Args:
            text: The text.
            add_special: See `Tokenizer.encode`.
            parse_special: See `Tokenizer.encode`; by default, control tokens written in it stay
                text.
            field: What the API calls it.

        Raises:
            ContextOverflowError: The text is so long that counting its tokens isn't worth it.
        """
        texts = await self.encode_texts(
            [text], add_special=add_special, parse_special=parse_special, field=field
        )
        return texts[0]

    async def encode_texts(
        self,
        texts: Sequence[str],
        *,
        add_special: bool = True,
        parse_special: bool = False,
        field: str = "prompt",
    ) -> list[list[int]]:
        """Token ids of several texts; see `encode_text`."""
        for text in texts:
            self._check_size(field, len(text))

        def encode(some: Sequence[str]) -> list[list[int]]:
            return [
                self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
                for text in some
            ]

        size = sum(map(len, texts)) + _CALL_CHARS * (len(texts) - 1)
        if size <= INLINE_TOKENIZE_CHARS:
            return encode(texts)
        encoded: list[list[int]] = []
        for begin in range(0, len(texts), _TEXTS_AT_ONCE):
            encoded += await asyncio.to_thread(encode, texts[begin : begin + _TEXTS_AT_ONCE])
        return encoded

    async def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, with the names of control tokens.

        Raises:
            ParameterError: There are too many, or an id doesn't exist.
        """
        most = max(self.max_model_len, MAX_DECODED_TOKENS)
        if len(tokens) > most:
            raise ParameterError(
                "tokens", f"tokens has {len(tokens)} ids; at most {most} are decoded at once."
            )

        def decode() -> str:
            return self.tokenizer.decode(tokens, skip_special_tokens=False)

        inline = len(tokens) <= INLINE_TOKENIZE_CHARS
        return decode() if inline else await asyncio.to_thread(decode)

    async def prepare_chat(
        self, conversation: Conversation, wanted: StructuredOutputsParams | None = None
    ) -> ChatPrompt:
        """A conversation's prompt, with what reads the answer; raises what `start_chat` raises."""
        threads = self._threads_for(conversation)
        return await threads.run(self.chat.prepare, conversation, wanted)

    async def render_chat(self, conversation: Conversation) -> str:
        """A conversation's prompt as text; raises what `prepare_chat` raises."""
        return await self._threads_for(conversation).run(self.chat.render, conversation)

    def _threads_for(self, conversation: Conversation) -> WorkThreads:
        """Where a conversation's template runs.

        Raises:
            ContextOverflowError: No context has room for the conversation.
        """
        self._check_size("messages", conversation.num_characters)
        count = len(conversation.messages)
        if count > self.max_model_len:  # each takes a token at least
            raise ContextOverflowError("messages", self.max_model_len, count, at_least=True)
        # Whoever brings a template waits with those who do so too, and with nobody else.
        own = bool(conversation.template)
        return self._request_template_threads if own else self._chat_threads

    async def shutdown(self) -> None:
        """End what runs, and all threads and processes. Safe to call twice."""
        self._chat_threads.close()
        self._request_template_threads.close()
        self.chat.close()
        await self.engine.shutdown(drain=False)

    async def start_chat(
        self,
        conversation: Conversation,
        params: SamplingParams,
        *,
        thinking_budget: int | None = None,
        report_ignored: Callable[[Sequence[str]], None],
        field_names: Mapping[str, str] = MappingProxyType({}),
        priority: int | None = None,
        cache_salt: str | None = None,
        user: str | None = None,
    ) -> ChatGeneration:
        """Answer a conversation. Close what is returned.

        Args:
            conversation: The conversation.
            params: Sampling parameters. Their `structured_outputs` are demanded of the content: the
                model may still think first, and call tools where they are on offer.
            thinking_budget: Most tokens that the model may think for; at the last, its thinking is
                ended.
            report_ignored: Told what the conversation asks for that has no effect on this model,
                named as the API does; may refuse it.
            field_names: What the API calls `prompt`, `max_tokens` and so on, where it differs;
                by default `prompt` is called `messages`.
            priority: Lower runs first.
            cache_salt: Shares cached prefixes only with requests of the same salt.
            user: Named in the log.

        Raises:
            TemplateError: The template refuses the messages, in its own words.
            ParameterError: Something in the conversation or the parameters makes no sense, or can't
                be had of this model.
            QueueFullError: Too many requests are waiting.
        """
        names = {"prompt": "messages", **field_names}
        wanted = params.structured_outputs
        try:
            prompt = await self.prepare_chat(conversation, wanted)
            report_ignored([names.get(name, name) for name in prompt.ignored])
            while (form := prompt.structured_outputs) is not None and form is not wanted:
                tools = conversation.tools
                required = conversation.tool_choice.mode == "required"
                unchecked = await check_answer_form(
                    self.grammars, form, wanted, tools, required=required
                )
                if not unchecked:
                    params = replace(params, structured_outputs=form)
                    break
                tools = [
                    replace(tool, checked=tool.checked and tool.name not in unchecked)
                    for tool in tools
                ]
                conversation = replace(conversation, tools=tools)
                prompt = await self.prepare_chat(conversation, wanted)
        except ParameterError as error:
            error.param = names.get(error.param, error.param)
            raise
        generation = await self.submit(
            prompt.tokens,
            params,
            visible_tokens=prompt.visible_tokens,
            thinking=prompt.thinking_limit(thinking_budget),
            field_names=names,
            priority=priority,
            cache_salt=cache_salt,
            user=user,
        )
        return ChatGeneration(
            generation,
            prompt.new_parser,
            include_reasoning=conversation.include_reasoning,
            single_call=not conversation.parallel_tool_calls,
        )

    def check_count(self, prompts: int) -> None:
        """Raises `ParameterError` for more prompts than can ever be taken at once.

        `QueueFullError` would be wrong: it asks the client to try again.
        """
        config = self.engine.config
        limit = config.max_num_seqs + config.max_queue
        if prompts > limit:
            raise ParameterError(
                "prompt",
                f"prompt may be a list of at most {limit} prompts on this server, but has "
                f"{prompts}.",
            )

    def _check_room(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Raises `ContextOverflowError` for an answer too long, where none is to be cut short."""
        if self.caps_answers or params.max_tokens is None:
            return
        room = self.max_model_len - prompt_tokens
        if 0 < room < params.max_tokens:
            raise ContextOverflowError(
                "max_tokens", self.max_model_len, prompt_tokens, params.max_tokens
            )

    def _check_size(self, param: str, characters: int) -> None:
        """Raises `ContextOverflowError` for text that can't fit, whatever its tokens are.

        Tokenising takes a hundred bytes of memory for each byte of text. What the limit for bodies
        lets through, but no context has room for, must not get that far. Shorter text is counted,
        to say by how much it is too long.
        """
        longest = self.tokenizer.longest_token
        if longest is None or characters <= COUNTED_CHARS:
            return
        if characters > longest * self.max_model_len:
            raise ContextOverflowError(
                param, self.max_model_len, -(-characters // longest), at_least=True
            )

    async def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        visible_tokens: Collection[int] = (),
        thinking: ThinkingLimit | None = None,
        field_names: Mapping[str, str] = MappingProxyType({}),
        priority: int | None = None,
        cache_salt: str | None = None,
        user: str | None = None,
    ) -> Generation:
        """Submit a prompt.

        Args:
            prompt: Token ids.
            params: Sampling parameters.
            visible_tokens: See `Generation`.
            thinking: Bounds the model's thinking.
            field_names: What the API calls `prompt`, `max_tokens` and so on, where it
                differs.
            priority: Lower runs first.
            cache_salt: Shares cached prefixes only with requests of the same salt.
            user: Named in the log.

        Raises:
            ParameterError: The engine refuses the request, e.g. `ContextOverflowError`, or the
                grammar can't be enforced.
            QueueFullError: Too many requests are waiting.
        """
        observer = self.metrics.observer(user)
        try:
            self._check_room(len(prompt), params)
            request = Request(
                request_id=uuid.uuid4().hex,
                prompt=prompt,
                work=Generate(params, thinking),
                priority=priority or 0,
                cache_salt=cache_salt,
            )
            updates = await self.engine.submit(request)
        except ParameterError as error:
            error.param = field_names.get(error.param, error.param)
            raise
        return Generation(request, updates, self.tokenizer, observer, visible_tokens=visible_tokens)

    async def submit_all(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        field_names: Mapping[str, str] = MappingProxyType({}),
        priority: int | None = None,
        cache_salt: str | None = None,
        user: str | None = None,
    ) -> list[Generation]:
        """Submit several prompts, all or none; raises what `submit` raises."""
        started: list[Generation] = []
        try:
            for prompt in prompts:
                started.append(
                    await self.submit(
                        prompt,
                        params,
                        field_names=field_names,
                        priority=priority,
                        cache_salt=cache_salt,
                        user=user,
                    )
                )
        except BaseException:
            for generation in started:
                await generation.aclose()
            raise
        return started
