"""A model's answers in the library's shapes, whole or as they come."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from caudal.errors import ParameterError, TemplateError
from caudal.library.chat_options import ReadConversation, warn_of_no_effect
from caudal.library.prompts import Prompt, parse_prompt
from caudal.library.results import (
    ChatReader,
    CompletionOutput,
    RequestOutput,
    prompt_logprob_dicts,
)
from caudal.sampling_params import SamplingParams
from caudal.service.answers import ChatDelta, Delta
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.naming import FieldNames, renamed
from caudal.service.service import RunningAnswer, RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt to continue.

    Attributes:
        content: Text or token ids.
        context: What travels with it.
        params: Sampling parameters.
        where: What errors call it.
    """

    content: str | list[int]
    context: RequestContext
    params: SamplingParams
    where: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to answer.

    Attributes:
        read: The conversation.
        params: Sampling parameters.
        context: What travels with it.
    """

    read: ReadConversation
    params: SamplingParams
    context: RequestContext = NO_CONTEXT


def continuation(
    prompt: Prompt, params: SamplingParams, where: str, lora: str | None = None
) -> Continuation:
    """A prompt to continue, in any of the forms that the library takes.

    Raises:
        ParameterError: It has none of them.
    """
    content, salt = parse_prompt(prompt, where)
    context = RequestContext(cache_salt=salt, adapter=lora)
    return Continuation(content, context, params, where)


class Answers:
    """Asks a model, and shapes what it answers.

    Args:
        service: The model.
        ids: Of results.
    """

    def __init__(self, service: Service, ids: Iterator[int]) -> None:
        self._service = service
        self._ids = ids

    async def continue_prompt(self, prompt: Continuation) -> RequestOutput:
        """The result of a prompt; raises what `Service.complete` raises."""
        identity = next(self._ids)
        generation = await self._start(prompt)
        params = prompt.params
        outputs = [CompletionOutput(index) for index in range(params.n)]
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    outputs[delta.index].append(delta)
        text = prompt.content if isinstance(prompt.content, str) else None
        return self._result(identity, params, generation, outputs, text)

    async def answer_chat(self, chat: Chat) -> tuple[RequestOutput, Sequence[str]]:
        """The result of a conversation, and what of it had no effect on this model.

        Raises what `Service.chat` raises.
        """
        identity = next(self._ids)
        generation = await self._start_chat(chat)
        outputs = [CompletionOutput(index) for index in range(chat.params.n)]
        readers = [ChatReader(chat.read.custom_tools) for _ in outputs]
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    output = outputs[delta.index]
                    output.append(delta)
                    readers[delta.index].read(delta.events, output)
        result = self._result(identity, chat.params, generation, outputs, None)
        return result, generation.ignored

    async def stream(self, prompt: Continuation) -> AsyncGenerator[CompletionOutput, None]:
        """What is new in a prompt's results; raises what `Service.complete` raises."""
        generation = await self._start(prompt)
        sums = _LogprobSums()
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    yield sums.output_of(delta)

    async def stream_chat(self, chat: Chat) -> AsyncGenerator[CompletionOutput, None]:
        """What is new in a conversation's results; raises what `Service.chat` raises."""
        generation = await self._start_chat(chat)
        sums = _LogprobSums()
        readers = [ChatReader(chat.read.custom_tools) for _ in range(chat.params.n)]
        async with contextlib.aclosing(generation.deltas()) as stream:
            warn_of_no_effect([*chat.read.ignored, *generation.ignored])
            async for deltas in stream:
                for delta in deltas:
                    output = sums.output_of(delta)
                    readers[delta.index].read(delta.events, output)
                    yield output

    async def _start(self, prompt: Continuation) -> RunningText:
        work = CompletionWork(prompts=[prompt.content], params=prompt.params, show_prompt_ids=True)
        try:
            [generation] = await self._service.complete(work, prompt.context)
        except ParameterError as error:
            raise renamed(error, FieldNames({"prompt": prompt.where})) from None
        return generation

    async def _start_chat(self, chat: Chat) -> RunningChat:
        work = ChatWork(
            conversation=chat.read.conversation,
            params=chat.params,
            thinking_budget=chat.read.thinking_budget,
            show_prompt_ids=True,
        )
        try:
            return await self._service.chat(work, chat.context)
        except (ParameterError, TemplateError) as error:
            raise renamed(error, chat.read.names) from None

    def _result(
        self,
        identity: int,
        params: SamplingParams,
        running: RunningAnswer,
        outputs: list[CompletionOutput],
        text: str | None,
    ) -> RequestOutput:
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = prompt_logprob_dicts(running.prompt_tokens)
        return RequestOutput(
            request_id=str(identity),
            prompt=text,
            prompt_token_ids=list(running.prompt.token_ids),
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=True,
            num_cached_tokens=running.usage.cached_tokens,
        )


class _LogprobSums:
    """Makes a stream's outputs, each with the sum of log-probabilities so far."""

    def __init__(self) -> None:
        self._sums: dict[int, float] = {}

    def output_of(self, delta: Delta | ChatDelta) -> CompletionOutput:
        """What is new in an answer."""
        output = CompletionOutput(delta.index, cumulative_logprob=self._sums.get(delta.index))
        output.append(delta)
        if output.cumulative_logprob is not None:
            self._sums[delta.index] = output.cumulative_logprob
        return output
