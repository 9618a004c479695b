"""`caudal run`: ask a model something, or talk with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from caudal.cli import options
from caudal.cli.partners import LocalPartner, Partner
from caudal.cli.server_client import ApiKey, AskedUrl, base_url
from caudal.errors import CaudalError

if TYPE_CHECKING:
    from caudal.chat.conversation import Conversation, Message
    from caudal.chat.events import Answer
    from caudal.loading.load import LoadedModel
    from caudal.service.service import Service

Think = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def run(
    model: options.Model,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="What to ask. Without it, a chat begins. Text piped in is added to it.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 always takes the likeliest token; higher is more varied.  [default: as the "
            "model's maker recommends, else 0.7]",
            show_default=False,
        ),
    ] = None,
    think: Annotated[
        Think | None,
        typer.Option(
            help="How much to think first, where the model's template has levels or a switch: none "
            "turns it off.  [default: as the template has it]",
            show_default=False,
        ),
    ] = None,
    hide_thinking: Annotated[
        bool, typer.Option("--hide-thinking", help="Show the answer only.")
    ] = False,
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="An adapter (LoRA) to answer with: a GGUF file, or a folder of PEFT's.",
            show_default=False,
        ),
    ] = None,
    max_model_len: options.MaxModelLen = None,
    chat_template: options.ChatTemplate = None,
    threads: options.Threads = None,
    packed_size: options.PackedSize = None,
    url: AskedUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Ask a model something, or talk with it.

    One question, the answer on standard output:

        caudal run smollm2 "Name three rivers in Spain."

    About a file:

        caudal run smollm2 "Summarise this." < notes.txt

    A chat: /clear forgets what was said, Ctrl-C stops an answer, Ctrl-D or /bye ends it:

        caudal run smollm2

    The model runs in this process; or in a server, which may be Ollama's, where `--url`, CAUDAL_URL
    or OLLAMA_HOST names one.

    What a model thinks before it answers goes to standard error, dimmed at a terminal.

    A base model, one without a chat format, continues the text instead of answering it.
    """
    import sys

    from caudal.cli.pull_display import ensure_with_display
    from caudal.loading.load import load_model
    from caudal.loading.options import LoadOptions
    from caudal.store import Store

    template = None if chat_template is None else _template(chat_template)
    piped = None
    if sys.stdin is None:  # closed by whoever started us
        piped = ""
    elif not sys.stdin.isatty():
        piped = sys.stdin.buffer.read().decode(errors="replace").strip()
    question = "\n\n".join(part for part in (prompt, piped) if part)
    if not question and piped is not None:
        raise typer.BadParameter("there is no question: it is neither an argument nor piped in")
    if url is not None:
        from caudal.cli.partners import ServerPartner

        for option, given in (
            ("--lora", lora),
            ("--max-model-len", max_model_len),
            ("--chat-template", chat_template),
            ("--threads", threads),
        ):
            if given is not None:
                raise typer.BadParameter("goes with a model that runs here", param_hint=option)
        _talk(
            ServerPartner(base_url(url), api_key, model, temperature),
            model,
            question,
            think=think,
            hide_thinking=hide_thinking,
        )
        return
    ensure_with_display(Store(), model)
    loaded = load_model(
        model,
        LoadOptions(
            max_model_len=max_model_len,
            chat_template=template,
            threads=threads,
            packed_size=packed_size,
            max_num_seqs=1,
        ),
        adapters={} if lora is None else {lora: lora},
    )
    with _served(loaded) as service:
        _talk(
            LocalPartner(service, temperature),
            model,
            question,
            think=think,
            hide_thinking=hide_thinking,
        )


def _template(file: Path) -> str:
    from caudal.configuration.chat_template_file import read_chat_template

    try:
        return read_chat_template(file)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--chat-template") from error


def _talk(
    partner: Partner, name: str, question: str, *, think: Think | None, hide_thinking: bool
) -> None:
    """Ask one question, or talk where there is none."""
    chat = _Chat(partner, think=think, hide_thinking=hide_thinking)
    if question:
        chat.say(question)
    else:
        _converse(chat, name)


@contextlib.contextmanager
def _served(loaded: LoadedModel) -> Iterator[Service]:
    """The model's service, with its adapter where it has one, until the end."""
    import asyncio

    from caudal.service.adapted import AdaptedService
    from caudal.service.model_service import ModelService
    from caudal.service.parts import ServiceParts

    # What runs templates is started with the first question; a base model never needs it.
    service = ModelService(ServiceParts.from_loaded(loaded, measured=False, ready_for_chats=False))
    try:
        yield AdaptedService(service, service.adapters[0]) if service.adapters else service
    finally:
        asyncio.run(service.shutdown())


class _Chat:
    """A conversation so far; or, with a base model, single texts to continue.

    Args:
        partner: Who answers.
        think: How much it is to think; None leaves it to its template.
        hide_thinking: Whether what it thinks isn't shown.
    """

    def __init__(
        self, partner: Partner, *, think: Think | None = None, hide_thinking: bool = False
    ) -> None:
        self._partner = partner
        self.is_plain = partner.is_plain
        self._think = think
        self._hide_thinking = hide_thinking
        self._messages: list[Message] = []
        self._said_no_effect = False

    def clear(self) -> None:
        """Forget what was said."""
        self._messages.clear()

    def say(self, text: str) -> None:
        """Print the answer as it comes.

        Raises:
            KeyboardInterrupt: Ctrl-C; what had been said by then stays part of the conversation.
            CaudalError: The conversation is refused; `text` does not become part of it.
        """
        import asyncio

        from caudal.chat.conversation import Conversation, Message
        from caudal.chat.events import Answer

        if self.is_plain:
            if self._think is not None:
                self._say_no_effect()
            asyncio.run(self._continue(text))
            return
        messages = [*self._messages, Message(role="user", content=text)]
        conversation = Conversation(messages=messages, reasoning_effort=self._think)
        answer = Answer()
        try:
            asyncio.run(self._answer(conversation, answer))
        finally:
            if answer.content or answer.reasoning:
                said = Message(
                    role="assistant",
                    content=answer.content,
                    reasoning=answer.reasoning or None,
                )
                self._messages = [*messages, said]

    async def _answer(self, conversation: Conversation, answer: Answer) -> None:
        """Print the answer, and note it in `answer`, as it comes."""
        from caudal.chat.events import ContentDelta, ReasoningDelta
        from caudal.cli.answer_display import AnswerDisplay
        from caudal.cli.partners import NoEffect

        with AnswerDisplay(with_thinking=not self._hide_thinking) as display:
            async with contextlib.aclosing(self._partner.answer(conversation)) as events:
                async for event in events:
                    match event:
                        case NoEffect():
                            self._say_no_effect()
                            continue
                        case ContentDelta(text):
                            display.show(text)
                        case ReasoningDelta(text):
                            display.show_thinking(text)
                    answer.add([event])

    async def _continue(self, text: str) -> None:
        """Print how a text goes on, as it comes."""
        from caudal.cli.answer_display import AnswerDisplay

        with AnswerDisplay() as display:
            async with contextlib.aclosing(self._partner.go_on(text)) as pieces:
                async for piece in pieces:
                    display.show(piece)

    def _say_no_effect(self) -> None:
        """Say, once, of the one thing that can be asked for in vain."""
        if not self._said_no_effect:
            self._said_no_effect = True
            typer.echo("caudal: --think has no effect on this model", err=True)


def _converse(chat: _Chat, name: str) -> None:
    if chat.is_plain:
        typer.echo(f"{name} is a base model: it continues what you write. Ctrl-D or /bye ends.")
    else:
        typer.echo(f"Chat with {name}. /clear starts anew, Ctrl-C stops an answer, /bye ends.")
    for line in _lines():
        if line == "/bye":
            return
        if line == "/clear":
            chat.clear()
        elif line.startswith("/"):
            typer.echo(f"There is no command {line.split()[0]}; there are /clear and /bye.")
        elif line:
            try:
                chat.say(line)
            except KeyboardInterrupt:
                continue
            except CaudalError as error:
                typer.echo(f"caudal: {error}", err=True)


def _lines() -> Iterator[str]:
    """What the user types, with line editing and history, until Ctrl-D."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession("> ")
    while True:
        try:
            yield session.prompt().strip()
        except KeyboardInterrupt:
            continue  # clears the line, as shells do
        except EOFError:
            return
