"""From chat messages to a prompt, by the template in the model's file, package or request."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack

from caudal.errors import ContextOverflowError, ParameterError, TemplateError
from caudal.formats.chat_messages import normalize_messages
from caudal.formats.default_templates import choose_default_template
from caudal.formats.go_template.detection import is_go_template
from caudal.formats.marked_template import MarkedTemplate
from caudal.formats.model_file import ModelFile
from caudal.formats.template_guard import Marks, choose_marks, map_strings
from caudal.formats.template_kwargs import check_kwargs
from caudal.formats.template_workers import TemplateFailure, TemplateProcesses, TemplateWorkers
from caudal.formats.tokenizer import (
    COUNTED_CHARS,
    Tokenizer,
    surely_exceeds,
    without_surrogates,
)


class TemplateOptions(TypedDict, total=False):
    """What a chat template is told beside the messages; all of it may be left out.

    Attributes:
        tools: OpenAI-like tools.
        add_generation_prompt: End with what begins an assistant's message; the default.
        continue_final_message: End within the final message, for the model to continue it;
            nothing begins another one then.
        template_kwargs: Further variables for the template, e.g. `enable_thinking`.
        assistant_markers: Texts in whose place an assistant's content may have control tokens,
            beside what the template looks for there.
    """

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: Mapping[str, Any] | None
    assistant_markers: Sequence[str]


class ChatTemplate:
    """Renders chat messages as the model was trained to read them.

    Special tokens in the messages stay text: only those the template itself writes become control
    tokens. The exceptions are what the template looks for in an assistant's content, such as the
    `</think>` behind its reasoning, and `assistant_markers`.

    A template is Jinja's, or Go's as in the packages of Ollama, which is told by its text; what
    Ollama does around such a template is done here, too. It is told `enable_thinking` and
    `reasoning_effort` where it names `.Think` and `.ThinkLevel`, and can't leave out what begins an
    assistant's message.

    Templates are strangers' programs: they are compiled and run by `TemplateWorkers`, in other
    processes. That happens when one is first used, so that a broken one refuses chats and not the
    whole model; every use of it raises `TemplateError` then.

    Args:
        source: The template.
        tokenizer: The model's tokenizer.
        tool_source: Another template, used instead where a request has tools.
        origin: Where the template is from, for the start-up message.
        is_default: The model came with no template.
        field: The field of a request that the template came in; None for the model's own.
        workers: What runs it; by default workers of its own.

    Attributes:
        source: The template.
        is_go: It is Go's, and not Jinja's.
        origin: Where the template is from, for the start-up message.
        is_default: The model came with no template, so that it may not be made for chats.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        tool_source: str | None = None,
        origin: str = "given",
        is_default: bool = False,
        field: str | None = None,
        workers: TemplateWorkers | None = None,
    ) -> None:
        self.source = source
        self.is_go = is_go_template(source)
        self.origin = origin
        self.is_default = is_default
        self._workers = workers or TemplateWorkers()
        self._name = field or "the model's chat template"
        self._field = field or "messages"
        self._tokenizer = tokenizer
        self._tool_source = tool_source
        self._compiled: dict[str, MarkedTemplate | TemplateError] = {}
        # Empty where the model has none: templates join these to other texts without asking.
        self._token_variables = {
            f"{role}_token": "" if token is None else tokenizer.token_text(token)
            for role, token in (
                ("bos", tokenizer.vocabulary.bos_id),
                ("eos", tokenizer.vocabulary.eos_id),
                ("unk", tokenizer.vocabulary.unk_id),
                ("pad", tokenizer.vocabulary.pad_id),
            )
        }

    @classmethod
    def from_gguf(cls, file: ModelFile, tokenizer: Tokenizer) -> Self:
        """The template in the file (`tokenizer.chat_template`), or a default.

        A file without one gets the format whose control tokens its vocabulary has: ChatML, Llama 3,
        Gemma, Phi 3 or Mistral; else one in which each message is a line like `User: …`.

        Raises:
            ModelLoadError: The metadata has a wrong type.
        """
        source = file.get_str("tokenizer.chat_template", None)
        if source is None:
            return cls.default(tokenizer)
        return cls(
            source,
            tokenizer,
            tool_source=file.get_str("tokenizer.chat_template.tool_use", None),
            origin="from the model file",
        )

    @classmethod
    def given(cls, source: str, tokenizer: Tokenizer) -> Self:
        """A template that the user chose instead of the model's."""
        return cls(source, tokenizer, origin=f"given ({_digest_text(source)})")

    @classmethod
    def packaged(cls, source: str, tokenizer: Tokenizer) -> Self:
        """A template that the model's package has for it."""
        return cls(source, tokenizer, origin=f"from the package ({_digest_text(source)})")

    @classmethod
    def default(cls, tokenizer: Tokenizer) -> Self:
        """The format whose control tokens the vocabulary has; see `from_gguf`."""
        default = choose_default_template(tokenizer.special_tokens)
        origin = f"default ({default.name})"
        return cls(default.source, tokenizer, origin=origin, is_default=True)

    def start(self) -> None:
        """Start the processes that it runs in, which else happens when they are needed.

        Raises:
            TemplateProcessError: They can't be started.
        """
        self._workers.start()

    @property
    def processes(self) -> TemplateProcesses:
        """How the processes that it runs in are doing."""
        return self._workers.processes

    def close(self) -> None:
        """End the processes that it runs in. Safe to call twice."""
        self._workers.close()

    def check(self) -> None:
        """Compile the template, and that for tools.

        Raises:
            TemplateError: It is wrong, or compiling it takes too much.
        """
        for source in self.sources:
            self._compile(source)

    @property
    def supports_tools(self) -> bool:
        """Whether a request may have tools.

        Raises:
            TemplateError: The template is wrong.
        """
        return "tools" in self._for_tools.facts.variables

    @property
    def supports_suffix(self) -> bool:
        """Whether it can be told what follows the text that is to be written.

        Raises:
            TemplateError: The template is wrong.
        """
        return self._default.facts.takes_suffix

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """What it writes around thoughts, where its syntax shows that; None where it is wrong."""
        with contextlib.suppress(TemplateError):
            return self._default.facts.thinking_tags
        return None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source, and that for requests with tools where there is another."""
        return (self.source,) if self._tool_source is None else (self.source, self._tool_source)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that make a difference; none where the template is wrong.

        `tools` is looked for in the template for tools, everything else in both.
        """
        variables: frozenset[str] = frozenset()
        with contextlib.suppress(TemplateError):
            variables = self._default.facts.variables | self._for_tools.facts.variables
        with contextlib.suppress(TemplateError):
            return variables | {"tools"} if self.supports_tools else variables - {"tools"}
        return variables

    def reads(self, variable: str) -> bool:
        """Whether a variable makes a difference; see `variables`."""
        return variable in self.variables

    def choices(self, variable: str) -> frozenset[str]:
        """The texts that a variable is compared with; none where the template is wrong."""
        found: frozenset[str] = frozenset()
        for source in self.sources:
            with contextlib.suppress(TemplateError):
                found |= self._compile(source).facts.choices.get(variable, frozenset())
        return found

    @property
    def _default(self) -> MarkedTemplate:
        return self._compile(self.source)

    @property
    def _for_tools(self) -> MarkedTemplate:
        return self._compile(self.sources[-1])

    def _compile(self, source: str) -> MarkedTemplate:
        """The compiled template, or what is wrong with it: it is asked once."""
        compiled = self._compiled.get(source)
        if compiled is None:
            try:
                facts = self._workers.inspect(source)
                compiled = MarkedTemplate(source, facts, self._tokenizer)
            except TemplateFailure as failure:
                compiled = TemplateError(f"{self._name} {failure.words}", self._field)
            self._compiled[source] = compiled
        if isinstance(compiled, TemplateError):
            raise TemplateError(str(compiled), compiled.param)
        return compiled

    def render(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[TemplateOptions]
    ) -> str:
        """The prompt as text; for the model use `encode`, which tells typed from written tokens.

        Args:
            messages: OpenAI-like messages.
            options: What else the template is told.

        Raises:
            ParameterError: The messages or another argument are malformed, or have something this
                model can't take.
            TemplateError: The template refused them, in its own words, or is wrong.
        """
        _, text, marks = self._render(messages, **options)
        return marks.remove_from(text)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        **options: Unpack[TemplateOptions],
    ) -> list[int]:
        """The prompt as token ids, with exactly one BOS if the model wants one.

        Arguments and errors are those of `render`. A long text that has more than `max_tokens` for
        sure isn't tokenised, which takes a hundred bytes of memory for each byte of it: a
        `ContextOverflowError` says so.
        """
        template, text, marks = self._render(messages, **options)
        return self._tokenize(template, text, marks, "messages", max_tokens)

    def encode_gap(self, prompt: str, suffix: str, *, max_tokens: int | None = None) -> list[int]:
        """The tokens of a prompt for what is missing between two texts; see `encode`.

        Raises:
            ParameterError: The template has no place for a suffix.
            ContextOverflowError: They have more than `max_tokens` for sure.
            TemplateError: The template failed.
        """
        if not self.supports_suffix:
            raise ParameterError("suffix", "this model's template has no place for a suffix.")
        template = self._default
        texts = [without_surrogates(prompt), without_surrogates(suffix)]
        marks = choose_marks(texts)
        guarded = [template.guard_text(text, marks) for text in texts]
        variables = dict(zip(("prompt", "suffix"), guarded, strict=True))
        text = self._run(template, variables, marks)
        return self._tokenize(template, text, marks, "prompt", max_tokens)

    def _tokenize(
        self, template: MarkedTemplate, text: str, marks: Marks, param: str, max_tokens: int | None
    ) -> list[int]:
        if max_tokens is not None and len(text) > COUNTED_CHARS:
            length = len(marks.remove_from(text))
            least = surely_exceeds(self._tokenizer, length, max_tokens)
            if least is not None:
                raise ContextOverflowError(param, max_tokens, least, at_least=True)
        return self._tokenizer.with_bos(template.tokenize(text, marks, self._tokenizer))

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        assistant_markers: Sequence[str] = (),
    ) -> tuple[MarkedTemplate, str, Marks]:
        """The template used, and the prompt with marks still in it."""
        if tools and not self.supports_tools:
            raise ParameterError("tools", "this model's chat template has no place for tools.")
        template = self._for_tools if tools else self._default
        request = {
            "messages": normalize_messages(
                messages,
                takes_parts=template.facts.takes_parts,
                takes_text=template.facts.takes_text,
                arguments_as_text=template.facts.joins_arguments,
            ),
            "tools": list(tools) if tools else None,
            "kwargs": check_kwargs(template_kwargs or {}, taken=self._token_variables),
        }
        strings: list[str] = []

        def clean(text: str) -> str:
            strings.append(without_surrogates(text))
            return strings[-1]

        request = map_strings(request, clean)
        marks = choose_marks(strings)
        guarded = template.guard(request, marks, assistant_markers)
        if continue_final_message:
            _append_to_content(guarded["messages"][-1], marks.end + " ")
        variables = {
            **self._token_variables,
            "documents": None,
            **guarded["kwargs"],
            "messages": guarded["messages"],
            "tools": guarded["tools"],
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        text = self._run(template, variables, marks)
        return template, _cut_at_end(text, marks) if continue_final_message else text, marks

    def _run(self, template: MarkedTemplate, variables: Mapping[str, Any], marks: Marks) -> str:
        """What a template writes, with marks still in it."""
        try:
            return marks.restore_in(self._workers.render(template.source, variables))
        except TemplateFailure as failure:
            words = marks.remove_from(marks.restore_in(failure.words))
            if failure.refused:
                raise TemplateError(words) from None
            raise TemplateError(f"{self._name} {words}", self._field) from None


def _digest_text(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    return f"SHA-256 {digest[:8]}…"


def _append_to_content(message: dict[str, Any], text: str) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + text
    elif content and content[-1]["type"] == "text":
        content[-1]["text"] += text
    else:
        content.append({"type": "text", "text": text})


def _cut_at_end(text: str, marks: Marks) -> str:
    """The text up to the end mark; without the white space before it if the template trimmed.

    Whether it trims shows in the space that was put behind the mark.
    """
    before, mark, after = text.rpartition(marks.end)
    if not mark:
        raise TemplateError(
            "the model's chat template leaves out the final message, so it can't be continued"
        )
    return before if after.startswith(" ") else before.rstrip()
