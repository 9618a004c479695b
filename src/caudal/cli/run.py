"""`caudal run`: ask a model something, or talk with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli import options
from caudal.errors import CaudalError

if TYPE_CHECKING:
    from caudal import LLM, CompletionOutput

PLAIN_MAX_TOKENS = 256
"""Most tokens of a continuation by a base model, which seldom ends by itself."""


def run(
    model: options.Model,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="What to ask. Without it, a chat begins. Text piped in is added to it.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the likeliest token; higher is more varied.")
    ] = 0.7,
    max_model_len: options.MaxModelLen = None,
    chat_template: options.ChatTemplate = None,
    threads: options.Threads = None,
) -> None:
    """Ask a model something, or talk with it.

    One question, the answer on standard output:

        caudal run smollm2 "Name three rivers in Spain."

    About a file:

        caudal run smollm2 "Summarise this." < notes.txt

    A chat: /clear forgets what was said, Ctrl-C stops an answer, Ctrl-D or /bye ends it:

        caudal run smollm2

    A base model, one without a chat format, continues the text instead of answering it.
    """
    import sys

    from caudal import LLM
    from caudal.cli.pull_display import ensure_with_display
    from caudal.store import Store

    piped = None
    if sys.stdin is None:  # closed by whoever started us
        piped = ""
    elif not sys.stdin.isatty():
        piped = sys.stdin.buffer.read().decode(errors="replace").strip()
    question = "\n\n".join(part for part in (prompt, piped) if part)
    if not question and piped is not None:
        raise typer.BadParameter("there is no question: it is neither an argument nor piped in")
    ensure_with_display(Store(), model)
    with LLM(
        model,
        max_model_len=max_model_len,
        chat_template=chat_template,
        threads=threads,
        max_num_seqs=1,
    ) as llm:
        chat = _Chat(llm, temperature)
        if question:
            chat.say(question)
        else:
            _converse(chat, model)


class _Chat:
    """A conversation so far; or, with a base model, single texts to continue."""

    def __init__(self, llm: LLM, temperature: float) -> None:
        from caudal import SamplingParams

        self._llm = llm
        self.is_plain = not llm.has_chat_template
        self._params = SamplingParams(temperature=temperature, max_tokens=None)
        self._messages: list[dict[str, str]] = []

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

        if self.is_plain:
            params = replace(self._params, max_tokens=self._plain_max_tokens(text))
            asyncio.run(self._print(self._llm.stream(text, params), []))
            return
        messages = [*self._messages, {"role": "user", "content": text}]
        answer: list[str] = []
        try:
            asyncio.run(self._print(self._llm.stream_chat(messages, self._params), answer))
        finally:
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": "".join(answer)}]

    def _plain_max_tokens(self, text: str) -> int:
        """`PLAIN_MAX_TOKENS`, or what room the text leaves in the context."""
        room = self._llm.max_model_len - len(self._llm.get_tokenizer().encode(text))
        return max(1, min(PLAIN_MAX_TOKENS, room))  # if there is no room, that is what is refused

    async def _print(
        self, stream: AsyncGenerator[CompletionOutput, None], answer: list[str]
    ) -> None:
        from contextlib import aclosing

        try:
            async with aclosing(stream):
                async for output in stream:
                    answer.append(output.text)
                    typer.echo(output.text, nl=False)
        finally:
            typer.echo()


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
