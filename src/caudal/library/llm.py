"""The library: a model in this process, with the call shapes of vLLM's offline API."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import (
    AsyncGenerator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from caudal.engine.request import Generate, Request
from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.library.prompts import Message, Prompt, as_conversations, as_list, parse_prompt
from caudal.library.results import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    prompt_logprob_dicts,
)
from caudal.library.running import first_error, progress_bar, run
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.sampling_params import SamplingParams
from caudal.service.context import RequestContext
from caudal.service.embedding import Embedder, pair_texts
from caudal.service.generation import Generation
from caudal.service.work import EmbedWork, ScoreWork

IN_FLIGHT = 512
"""Most prompts of a list that the engine is given at once: enough to choose from."""


@dataclass(frozen=True, slots=True)
class _EncodedPrompt:
    text: str | None
    tokens: list[int]
    cache_salt: str | None = None


class LLM:
    """A model, ready to answer. Use it as a context manager, or `close` it.

    Args:
        model: A name in the store (see `caudal list`) or a path to a GGUF file.
        options: Fields of `LoadOptions`, e.g. `max_model_len=4096`.

    Raises:
        ModelNotFoundError: There is no such model.
        ModelLoadError: The file cannot be loaded.
        ParameterError: An option is out of range.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        if not isinstance(model, str | os.PathLike):
            raise ParameterError(
                "model", f"model must be a name or a path, not {type(model).__name__}."
            )
        # The queue's bound protects servers; here it is the caller who waits.
        self._model = load_model(os.fspath(model), LoadOptions(**{"max_queue": 2**31} | options))
        self._engine = self._model.start_engine()
        self._embedder = Embedder.of(self._model, self._engine)
        self._ids = itertools.count()

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
        self._model.chat_template.close()
        run(self._engine.shutdown())

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._model.tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self._model.max_model_len

    @property
    def has_chat_template(self) -> bool:
        """Whether the model's file says how to chat; a base model's does not."""
        return not self._model.chat_template.is_default

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue prompts as they stand, without a chat template.

        Args:
            prompts: Text, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of these.
            sampling_params: For all prompts, or one per prompt; `SamplingParams()` by default.
            use_tqdm: Show a progress bar on stderr, where that is a terminal.

        Returns:
            One result per prompt, in order.

        Raises:
            ParameterError: A prompt or parameter is refused; no other prompt is finished then.
        """
        encoded = [self._encode(prompt) for prompt in as_list(prompts)]
        return self._generate_all(encoded, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations.

        Args:
            messages: One conversation, or a list of conversations.
            sampling_params: For all conversations, or one per conversation.
            use_tqdm: Show a progress bar on stderr, where that is a terminal.
            add_generation_prompt: Begin an answer after the last message.
            continue_final_message: Continue the last message instead.
            chat_template_kwargs: Further variables for the template.

        Returns:
            One result per conversation, in order.

        Raises:
            TemplateError: The template refuses the messages, is wrong, or takes too much.
            ParameterError: A prompt or parameter is refused; no other prompt is finished then.
        """
        conversations = as_conversations(messages)
        encoded = [
            _EncodedPrompt(
                None,
                self._encode_chat(
                    conversation,
                    add_generation_prompt=add_generation_prompt and not continue_final_message,
                    continue_final_message=continue_final_message,
                    template_kwargs=chat_template_kwargs or {},
                ),
            )
            for conversation in conversations
        ]
        return self._generate_all(encoded, sampling_params, use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[CompletionOutput, None]:
        """Continue one prompt, yielding what is new in each answer as it comes.

        Leaving the loop early and closing the generator cancels the request. Any number of streams
        may run at once, on any event loop.

        Raises:
            ParameterError: The prompt or a parameter is refused; raised by the first iteration.
        """
        return self._stream(self._encode(prompt), sampling_params)

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[CompletionOutput, None]:
        """Answer one conversation, yielding what is new in each answer as it comes.

        Raises:
            TemplateError: The template refuses the messages.
            ParameterError: See `stream`.
        """
        tokens = self._encode_chat(
            messages, add_generation_prompt=True, continue_final_message=False, template_kwargs={}
        )
        return self._stream(_EncodedPrompt(None, tokens), sampling_params)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Turn texts into vectors: with an encoder such as `minilm`, or any other model.

        Args:
            prompts: As for `generate`; token ids are used as they are.
            dimensions: Cut the vectors to this size, where the model was trained for it.
            truncate_prompt_tokens: Read only the first so many tokens; -1: as many as the model
                reads. Without it, a prompt that is too long is an error.
            use_tqdm: Show a progress bar on stderr, where that is a terminal.

        Returns:
            One result per prompt, in order; its vector is `outputs.embedding`.

        Raises:
            ParameterError: A prompt or parameter is refused.
        """
        inputs = [self._embed_input(each, truncate_prompt_tokens) for each in as_list(prompts)]
        by_salt: dict[str | None, list[int]] = {}
        for index, (_, salt) in enumerate(inputs):
            by_salt.setdefault(salt, []).append(index)

        async def run_all() -> list[EmbeddingRequestOutput]:
            vectors: dict[int, list[float]] = {}
            with progress_bar(len(inputs), use_tqdm) as advance:

                async def embed(salt: str | None, indices: Sequence[int]) -> None:
                    tokens = [inputs[index][0] for index in indices]
                    work = EmbedWork(inputs=tokens, dimensions=dimensions)
                    context = RequestContext(cache_salt=salt)
                    results = await self._embedder.embed(work, context, on_done=advance)
                    for index, result in zip(indices, results, strict=True):
                        vectors[index] = result.vector.tolist()

                async with asyncio.TaskGroup() as group:
                    for salt, indices in by_salt.items():
                        group.create_task(embed(salt, indices))
            return [
                EmbeddingRequestOutput(
                    request_id=str(next(self._ids)),
                    outputs=EmbeddingOutput(vectors[index]),
                    prompt_token_ids=list(tokens),
                    finished=True,
                )
                for index, (tokens, _) in enumerate(inputs)
            ]

        return run(first_error(run_all()))

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """VLLM's older name for `embed`."""
        return self.embed(prompts, truncate_prompt_tokens=truncate_prompt_tokens, use_tqdm=use_tqdm)

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
    ) -> list[ScoringRequestOutput]:
        """Say how well texts belong together: a cross-encoder's score, else the cosine.

        Args:
            text_1: One text, paired with each of `text_2`; or as many as there.
            text_2: One text or several.
            truncate_prompt_tokens: See `embed`.

        Returns:
            One result per pair, in order; its score is `outputs.score`.

        Raises:
            ParameterError: The lists differ in length, or a text is refused.
        """
        pairs = pair_texts(text_1, text_2)
        scores = run(self._embedder.score(ScoreWork(pairs=pairs, truncate=truncate_prompt_tokens)))
        return [
            ScoringRequestOutput(str(next(self._ids)), ScoringOutput(each.score), True)
            for each in scores
        ]

    def _embed_input(
        self, prompt: Prompt, truncate: int | None
    ) -> tuple[Sequence[int], str | None]:
        content, salt = parse_prompt(prompt)
        if isinstance(content, str):
            tokens: Sequence[int] = self._embedder.encode(
                content, truncate=truncate, field="prompts"
            )
        else:
            tokens = self._embedder.check_tokens(content, truncate=truncate, field="prompts")
        return tokens, salt

    def _encode(self, prompt: Prompt) -> _EncodedPrompt:
        content, salt = parse_prompt(prompt)
        if not isinstance(content, str):
            return _EncodedPrompt(None, content, salt)
        tokens = self._model.tokenizer.encode(content, add_special=True, parse_special=False)
        return _EncodedPrompt(content, tokens, salt)

    def _encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        return self._model.chat_template.encode(
            messages,
            tools=None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    async def _start(self, prompt: _EncodedPrompt, params: SamplingParams) -> Generation:
        request = Request(
            request_id=str(next(self._ids)),
            prompt=prompt.tokens,
            work=Generate(params),
            cache_salt=prompt.cache_salt,
        )
        return Generation(request, await self._engine.submit(request), self._model.tokenizer)

    async def _stream(
        self, prompt: _EncodedPrompt, params: SamplingParams | None
    ) -> AsyncGenerator[CompletionOutput, None]:
        generation = await self._start(prompt, params or SamplingParams())
        sums: dict[int, float] = {}
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    output = CompletionOutput(delta.index, cumulative_logprob=sums.get(delta.index))
                    output.append(delta, self._model.tokenizer)
                    if output.cumulative_logprob is not None:
                        sums[delta.index] = output.cumulative_logprob
                    yield output

    def _generate_all(
        self,
        prompts: Sequence[_EncodedPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        show_progress: bool,
    ) -> list[RequestOutput]:
        if params is None:
            params = SamplingParams()
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if not isinstance(params, Sequence) or not all(
            isinstance(own, SamplingParams) for own in params
        ):
            raise ParameterError(
                "sampling_params", "sampling_params must be SamplingParams or a list of them."
            )
        if len(params) != len(prompts):
            raise ParameterError(
                "sampling_params",
                f"There are {len(prompts)} prompts but {len(params)} sampling_params.",
            )

        async def run_all() -> list[RequestOutput]:
            # The engine's queue is bounded, and refuses what does not fit; so wait out here.
            places = asyncio.Semaphore(max(1, min(self._engine.config.max_queue, IN_FLIGHT)))
            with progress_bar(len(prompts), show_progress) as advance:

                async def run_one(prompt: _EncodedPrompt, own: SamplingParams) -> RequestOutput:
                    async with places:
                        result = await self._collect(await self._start(prompt, own), prompt.text)
                    advance()
                    return result

                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(run_one(prompt, own))
                        for prompt, own in zip(prompts, params, strict=True)
                    ]
            return [task.result() for task in tasks]

        return run(first_error(run_all()))

    async def _collect(self, generation: Generation, text: str | None) -> RequestOutput:
        tokenizer = self._model.tokenizer
        request, params = generation.request, generation.params
        outputs = [CompletionOutput(index) for index in range(params.n)]
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    outputs[delta.index].append(delta, tokenizer)
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = prompt_logprob_dicts(generation.prompt_logprobs, tokenizer)
        return RequestOutput(
            request_id=request.request_id,
            prompt=text,
            prompt_token_ids=list(request.prompt),
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=True,
            num_cached_tokens=generation.num_cached_tokens,
        )
