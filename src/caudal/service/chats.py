"""Conversations on their way to the engine: templates run, forms compiled, off the event loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from caudal.chat.conversation import Conversation
from caudal.chat.preparer import ChatPreparer
from caudal.chat.prompt import ChatPrompt
from caudal.errors import ContextOverflowError
from caudal.formats.template_workers import PROCESSES
from caudal.grammars.compiler import GrammarCompiler
from caudal.machine import usable_processors
from caudal.sampling_params import SamplingParams
from caudal.service.texts import TextCoder
from caudal.service.threads import WorkThreads
from caudal.service.tool_schemas import check_answer_form
from caudal.service.work import ChatWork
from caudal.structured_outputs import StructuredOutputsParams

REQUEST_TEMPLATES = 16
"""Most requests with templates of their own that wait; one more is answered 429."""


@dataclass(frozen=True, slots=True)
class PlannedChat:
    """A conversation, ready to be submitted.

    Attributes:
        conversation: As it was understood: what can't be enforced and need not be is unchecked.
        prompt: Its tokens, and what reads the answer.
        params: Sampling parameters, with the form of the whole answer.
    """

    conversation: Conversation
    prompt: ChatPrompt
    params: SamplingParams


class Chats:
    """Prepares one model's conversations in threads of its own.

    Args:
        preparer: Renders them.
        grammars: Compiles the forms of answers.
        texts: Knows what fits.
        max_model_len: Most tokens of one sequence.
    """

    def __init__(
        self,
        preparer: ChatPreparer,
        grammars: GrammarCompiler,
        texts: TextCoder,
        max_model_len: int,
    ) -> None:
        self._preparer = preparer
        self._grammars = grammars
        self._texts = texts
        self._max_model_len = max_model_len
        self._threads = WorkThreads("chat", max(PROCESSES, usable_processors()) + 1)
        # Whoever brings a template waits with those who do so too, and with nobody else.
        self._strangers = WorkThreads(
            "request-template",
            PROCESSES,
            max_waiting=REQUEST_TEMPLATES,
            queue="The queue of requests that bring a chat_template",
            limit="max_request_templates",
            retry_after=2,
        )

    async def prepare(
        self, conversation: Conversation, content_form: StructuredOutputsParams | None = None
    ) -> ChatPrompt:
        """A conversation's prompt, with what reads the answer.

        Raises:
            ContextOverflowError: No context has room for the conversation.
            ParameterError, TemplateError, TemplateProcessError: See `ChatPreparer.prepare`.
            QueueFullError: Too many requests that bring a template are waiting.
        """
        threads = self._threads_for(conversation)
        return await threads.run(self._preparer.prepare, conversation, content_form)

    async def render(self, conversation: Conversation) -> str:
        """A conversation's prompt as text; raises what `prepare` raises."""
        return await self._threads_for(conversation).run(self._preparer.render, conversation)

    async def fill(self, prompt: str, suffix: str) -> list[int]:
        """The prompt for what is missing between two texts; raises as `ChatPreparer.fill`."""
        self._texts.check_size("prompt", len(prompt) + len(suffix))
        return await self._threads.run(self._preparer.fill, prompt, suffix)

    async def plan(self, work: ChatWork) -> PlannedChat:
        """All that the engine has to know; raises what `prepare` raises.

        Raises:
            ParameterError: A form can't be enforced; blames `structured_outputs`, or the tool.
        """
        conversation, params = work.conversation, work.params
        content_form = params.structured_outputs
        prompt = await self.prepare(conversation, content_form)
        while (form := prompt.structured_outputs) is not None and form is not content_form:
            tools = conversation.tools
            required = conversation.tool_choice.mode == "required"
            unchecked = await check_answer_form(
                self._grammars, form, content_form, tools, required=required
            )
            if not unchecked:
                params = replace(params, structured_outputs=form)
                break
            tools = [
                replace(tool, checked=tool.checked and tool.name not in unchecked) for tool in tools
            ]
            conversation = replace(conversation, tools=tools)
            prompt = await self.prepare(conversation, content_form)
        return PlannedChat(conversation, prompt, params)

    def close(self) -> None:
        """End threads and template processes. Safe to call twice."""
        self._threads.close()
        self._strangers.close()
        self._preparer.close()

    def _threads_for(self, conversation: Conversation) -> WorkThreads:
        """Where a conversation's template runs."""
        self._texts.check_size("messages", conversation.num_characters)
        count = len(conversation.messages)
        if count > self._max_model_len:  # each takes a token at least
            raise ContextOverflowError("messages", self._max_model_len, count, at_least=True)
        return self._strangers if conversation.template else self._threads
