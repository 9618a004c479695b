"""The library: a model in this process, with the call shapes of vLLM's offline API."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from caudal.engine.drafting.speculation import with_speculation
from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.library.answers import Answers, Chat, continuation
from caudal.library.chat_options import ChatOptions, ReadConversation, warn_of_no_effect
from caudal.library.embedding import embed_all
from caudal.library.lists import Lora, adapter_of_each, params_of_each, place_of
from caudal.library.prompts import Message, Prompt, as_list, parse_prompt
from caudal.library.results import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from caudal.library.running import first_error, run, run_all
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.sampling_params import SamplingParams
from caudal.service.context import RequestContext
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from caudal.service.work import ScoreWork, pair_texts

W = TypeVar("W")

IN_FLIGHT = 512
"""Most prompts of a list that the engine is given at once: enough to choose from."""


class LLM:
    """A model, ready to answer. Use it as a context manager, or `close` it.

    Args:
        model: A name in the store (see `caudal list`) or a path to a GGUF file.
        tool_parser: How it writes calls of tools, as for `caudal serve`.
        reasoning_parser: How it marks its reasoning, as for `caudal serve`.
        lora: Adapters that prompts may be answered with: by name, the path of a GGUF file or of a
            folder of PEFT's.
        options: Fields of `LoadOptions`, e.g. `max_model_len=4096`. `speculative` may be text, as
            for `caudal serve`, and `speculative_config` the dictionary that vLLM takes.

    Raises:
        ModelNotFoundError: There is no such model.
        AdapterNotFoundError: There is no such adapter.
        ModelLoadError: A file cannot be loaded.
        ParameterError: An option is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        lora: Mapping[str, str | os.PathLike[str]] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(model, str | os.PathLike):
            raise ParameterError(
                "model", f"model must be a name or a path, not {type(model).__name__}."
            )
        # The queue's bound protects servers; here it is the caller who waits.
        loaded = load_model(
            os.fspath(model),
            LoadOptions(**{"max_queue": 2**31} | with_speculation(options)),
            adapters={name: os.fspath(path) for name, path in (lora or {}).items()},
        )
        self._service = ModelService(
            ServiceParts.from_loaded(
                loaded,
                tool_parser=tool_parser,
                reasoning_parser=reasoning_parser,
                allow_request_templates=True,  # the caller's own
                measured=False,
                ready_for_chats=False,
            )
        )
        self._ids = itertools.count()
        self._answers = Answers(self._service, self._ids)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and give the model's memory back. Safe to call twice."""
        run(self._service.shutdown())

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._service.parts.tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self._service.max_model_len

    @property
    def has_chat_template(self) -> bool:
        """Whether the model's file says how to chat; a base model's does not."""
        return self._service.has_chat_template

    def get_default_sampling_params(self) -> SamplingParams:
        """What is sampled with where no parameters are given: what the model's maker recommends."""
        return SamplingParams(**self._service.facts.loaded.sampling.values())

    @property
    def adapters(self) -> Mapping[str, str]:
        """The adapters that there are: their paths, by name."""
        return {each.name: each.path for each in self._service.adapters}

    def load_adapter(
        self, name: str, path: str | os.PathLike[str], *, replace: bool = False
    ) -> None:
        """Load another adapter; what runs goes on.

        Args:
            name: What `lora` will call it.
            path: A GGUF file, or a folder of PEFT's.
            replace: It may take the place of one of the same name; what runs with that goes on.

        Raises:
            AdapterExistsError: The name is taken.
            AdapterNotFoundError: There is no such file.
            ModelLoadError: It can't be used with this model.
        """
        run(self._service.load_adapter(name, os.fspath(path), replace=replace))

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter, once what runs with it has ended; nothing new may name it.

        Raises:
            UnknownAdapterError: There is none of this name.
        """
        run(self._service.unload_adapter(name))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora: Lora = None,
    ) -> list[RequestOutput]:
        """Continue prompts as they stand, without a chat template.

        Args:
            prompts: Text, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these.
            sampling_params: For all prompts, or one per prompt; by default
                `get_default_sampling_params()`.
            use_tqdm: Show a progress bar on stderr, where that is a terminal.
            lora: The name of the adapter to answer with, or one per prompt; None for none.

        Returns:
            One result per prompt, in order.

        Raises:
            ParameterError: A prompt or parameter is refused; no other prompt is finished then.
            UnknownAdapterError: There is no such adapter; likewise.
        """
        self._service.check_task("generate")
        each = as_list(prompts)
        own = params_of_each(sampling_params or self.get_default_sampling_params(), len(each))
        adapters = adapter_of_each(lora, len(each))
        work = [
            continuation(prompt, params, place_of(index, is_one=each is not prompts), adapter)
            for index, (prompt, params, adapter) in enumerate(zip(each, own, adapters, strict=True))
        ]
        return self._run_all(work, self._answers.continue_prompt, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora: Lora = None,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer conversations.

        Args:
            messages: One conversation, or a list of conversations, in the form of OpenAI's chat
                API: a message may have parts, `reasoning` and `tool_calls`, or be a tool's.
            sampling_params: For all conversations, or one per conversation; by default
                `get_default_sampling_params()`. Their `structured_outputs` are demanded of the
                content; the model may think first.
            use_tqdm: Show a progress bar on stderr, where that is a terminal.
            lora: The name of the adapter to answer with, or one per conversation; None for none.
            options: See `ChatOptions`.

        Returns:
            One result per conversation, in order.

        Raises:
            TemplateError: The template refuses the messages, is wrong, or takes too much.
            ParameterError: A message or parameter is refused; no other conversation is finished
                then.
            UnknownAdapterError: There is no such adapter; likewise.

        Warns:
            NoEffectWarning: Something was asked for that makes no difference to this model.
        """
        self._service.check_task("generate")
        conversations = _read(messages, options)
        own = params_of_each(
            sampling_params or self.get_default_sampling_params(), len(conversations)
        )
        adapters = adapter_of_each(lora, len(conversations))
        work = [
            Chat(each, params, RequestContext(adapter=adapter))
            for each, params, adapter in zip(conversations, own, adapters, strict=True)
        ]
        ignored = [field for each in conversations for field in each.ignored]

        async def answer(chat: Chat) -> RequestOutput:
            result, unheard = await self._answers.answer_chat(chat)
            ignored.extend(unheard)
            return result

        results = self._run_all(work, answer, use_tqdm)
        warn_of_no_effect(ignored)
        return results

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        lora: str | None = None,
    ) -> AsyncGenerator[CompletionOutput, None]:
        """Continue one prompt, yielding what is new in each answer as it comes.

        Leaving the loop early and closing the generator cancels the request. Any number of streams
        may run at once, on any event loop.

        Raises:
            ParameterError: The prompt or a parameter is refused; where the prompt has another form
                at once, else by the first iteration.
        """
        self._service.check_task("generate")
        params = sampling_params or self.get_default_sampling_params()
        [adapter] = adapter_of_each(lora, 1)
        return self._answers.stream(continuation(prompt, params, "prompt", adapter))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        lora: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[CompletionOutput, None]:
        """Answer one conversation, yielding what is new in each answer as it comes.

        Arguments are those of `chat`. Of calls of tools, each comes whole.

        Raises:
            TemplateError, ParameterError: See `chat`; where messages or tools have another form at
                once, else by the first iteration.
        """
        self._service.check_task("generate")
        conversations = _read(messages, options)
        if len(conversations) != 1:
            raise ParameterError(
                "messages", "messages must be one conversation: a stream answers no more."
            )
        params = sampling_params or self.get_default_sampling_params()
        [adapter] = adapter_of_each(lora, 1)
        context = RequestContext(adapter=adapter)
        return self._answers.stream_chat(Chat(conversations[0], params, context))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
        use_tqdm: bool = True,
        lora: Lora = None,
    ) -> list[EmbeddingRequestOutput]:
        """Turn texts into vectors: with an encoder such as `minilm`, or any other model.

        Args:
            prompts: As for `generate`; token ids are used as they are.
            dimensions: Cut the vectors to this size, where the model was trained for it.
            truncate_prompt_tokens: Read only the first so many tokens; -1: as many as the model
                reads. Without it, a prompt that is too long is an error.
            prompt_name: What comes before each text: one of the prompts that the model was trained
                with, e.g. `query`, by its name; None: its default.
            use_tqdm: Show a progress bar on stderr, where that is a terminal.
            lora: As for `generate`.

        Returns:
            One result per prompt, in order; its vector is `outputs.embedding`.

        Raises:
            ParameterError: A prompt or parameter is refused.
        """
        each = as_list(prompts)
        parsed = [
            parse_prompt(prompt, place_of(index, is_one=each is not prompts))
            for index, prompt in enumerate(each)
        ]
        adapters = adapter_of_each(lora, len(each))
        made = embed_all(
            self._service,
            parsed,
            adapters,
            dimensions=dimensions,
            truncate=truncate_prompt_tokens,
            prompt_name=prompt_name,
            show_progress=use_tqdm,
        )
        return [
            EmbeddingRequestOutput(
                request_id=str(next(self._ids)),
                outputs=EmbeddingOutput(embedding.vector.tolist()),
                prompt_token_ids=list(embedding.token_ids),
                finished=True,
            )
            for embedding in run(first_error(made))
        ]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        lora: Lora = None,
    ) -> list[EmbeddingRequestOutput]:
        """VLLM's older name for `embed`."""
        return self.embed(
            prompts, truncate_prompt_tokens=truncate_prompt_tokens, use_tqdm=use_tqdm, lora=lora
        )

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        lora: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Say how well texts belong together: a cross-encoder's score, else the cosine.

        Args:
            text_1: One text, paired with each of `text_2`; or as many as there.
            text_2: One text or several.
            truncate_prompt_tokens: See `embed`.
            lora: The name of the adapter to score with; None for none.

        Returns:
            One result per pair, in order; its score is `outputs.score`.

        Raises:
            ParameterError: The lists differ in length, or a text is refused.
        """
        pairs = pair_texts(text_1, text_2)
        work = ScoreWork(pairs=pairs, truncate=truncate_prompt_tokens)
        [adapter] = adapter_of_each(lora, 1)
        scores = run(self._service.score(work, RequestContext(adapter=adapter)))
        return [
            ScoringRequestOutput(str(next(self._ids)), ScoringOutput(each.score), True)
            for each in scores
        ]

    def _run_all(
        self,
        work: Sequence[W],
        answer: Callable[[W], Awaitable[RequestOutput]],
        show_progress: bool,
    ) -> list[RequestOutput]:
        # The engine's queue is bounded, and refuses what does not fit; so wait out here.
        most = max(1, min(self._service.info.limits.max_queue, IN_FLIGHT))
        return run(first_error(run_all(work, answer, most, show_progress=show_progress)))


def _read(
    messages: Sequence[Message] | Sequence[Sequence[Message]], options: ChatOptions
) -> list[ReadConversation]:
    # Importing pydantic takes a while, and only chats need it.
    from caudal.library.conversations import read_conversations

    return read_conversations(messages, options)
