"""`caudal launch`: a coding agent that asks a running server."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from caudal.cli.server_client import (
    DEFAULT_URL,
    ApiKey,
    NoServerError,
    ServerError,
    Url,
    ask_server,
    base_url,
)

if TYPE_CHECKING:
    from caudal.launch.agents import Agent
    from caudal.launch.settings import Journal
    from caudal.launch.setup import Setup, Target


def launch(
    agent: Annotated[
        str | None,
        typer.Argument(metavar="AGENT", help="Which; without one, the list.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGUMENT", help="For the agent.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model of the server; by default its only one.", show_default=False),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Show what to set, and change and start nothing.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take out of the agent's files what was written there.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Write to the agent's files without asking.")
    ] = False,
) -> None:
    """Start a coding agent that asks a running server for its answers.

    Most agents are told by their environment and command line, which changes nothing for later.
    Where one has to be told by its own file, what will be written is shown first, and `--undo`
    takes it out again. For example:

        caudal serve smollm2
        caudal launch claude
        caudal launch codex --model qwen3:8b -- exec 'Explain this repository.'
        caudal launch opencode --print
    """
    from caudal.launch.agents import AGENTS
    from caudal.launch.settings import Journal
    from caudal.store.layout import default_home

    if agent is None:
        _show(list(AGENTS.values()))
        return
    known = AGENTS.get(agent.lower())
    if known is None:
        raise ServerError(f"there is no agent called {agent}; there are {', '.join(AGENTS)}")
    journal = Journal(default_home() / "launch")
    if undo:
        _undo(known, journal)
        return
    program = _find(known)
    if program is None and not only_print:
        raise ServerError(
            f"{known.title} isn't installed: there is no `{known.program}`. "
            f"Get it with: {known.install}"
        )
    target = _target(url, api_key, model, load=not only_print)
    setup = known.set_up(target, Path.home())
    if only_print:
        _print_setup(known, setup, target, arguments or [])
        return
    assert program is not None
    _check_context(known, target)
    if setup.settings is not None:
        _write(known, setup, journal, yes=yes)
    typer.echo(f"{known.title} asks {target.model} at {target.url}.", err=True)
    sys.stdout.flush()
    command = [program, *setup.arguments, *(arguments or [])]
    try:
        os.execve(program, command, {**os.environ, **setup.environment})
    except OSError as error:  # its interpreter has gone, or the arguments are too long
        raise ServerError(f"can't start {program}: {error.strerror}") from error


def _show(agents: Sequence[Agent]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("AGENT", "", "INSTALLED"):
        table.add_column(heading, overflow="fold")
    for agent in agents:
        table.add_row(agent.name, agent.title, _find(agent) or f"no: {agent.install}")
    Console(highlight=False, markup=False).print(table)


def _find(agent: Agent) -> str | None:
    found = shutil.which(agent.program)
    places = os.pathsep.join(str(Path.home() / place) for place in agent.places)
    return found or (shutil.which(agent.program, path=places) if places else None)


def _target(url: str, api_key: str | None, name: str | None, *, load: bool) -> Target:
    """The model that is meant, as the server knows it.

    Args:
        url: Where the server is.
        api_key: Its key.
        name: The model's name; None for the only one.
        load: Load it where its context isn't known before that.
    """
    from caudal.launch.setup import Target

    base = base_url(url)
    try:
        if name is None:
            name = _only_model(ask_server(url, api_key, "GET", "/v1/models", has="data"))
        path = f"/v1/models/{quote(name, safe='')}"
        card = ask_server(url, api_key, "GET", path, has="id")
        if card.get("max_model_len") is None and load:
            typer.echo(f"Loading {name} …", err=True)
            ask_server(url, api_key, "POST", "/v1/models/load", {"model": name}, has="success")
            card = ask_server(url, api_key, "GET", path, has="id")
    except NoServerError as error:
        if name is not None and not load:
            return Target(url=base, model=name, key=api_key)
        raise ServerError(f"{error}. Start one with: caudal serve MODEL") from error
    context = card.get("max_model_len")
    if "generate" not in (card.get("capabilities") or ["generate"]):
        raise ServerError(f"{name} writes no text, so no agent can ask it")
    return Target(url=base, model=name, key=api_key, context=context)


def _only_model(answer: dict[str, Any]) -> str:
    """The model that is meant where none is named."""
    names = [
        str(card["id"])
        for card in answer["data"]
        if "generate" in (card.get("capabilities") or ["generate"]) and card.get("parent") is None
    ]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ServerError("the server has no model that writes text")
    if not sys.stdin.isatty():
        raise ServerError(f"the server has several models; name one by --model: {', '.join(names)}")
    for number, name in enumerate(names, 1):
        typer.echo(f"{number:3}  {name}", err=True)
    while True:
        chosen: int = typer.prompt("Which model", type=int, err=True)
        if 1 <= chosen <= len(names):
            return names[chosen - 1]


def _check_context(agent: Agent, target: Target) -> None:
    if target.context is not None and target.context <= agent.least_context:
        typer.echo(
            f"Note: {agent.title} sends some {agent.least_context:,} tokens before anything is "
            f"said, and {target.model} takes {target.context:,}. Give it more by "
            "`caudal serve --max-model-len`, or take a model that has a longer context.",
            err=True,
        )


def _write(agent: Agent, setup: Setup, journal: Journal, *, yes: bool) -> None:
    import difflib

    assert setup.settings is not None
    before, after = journal.preview(agent.name, setup.settings)
    if before == after:
        return
    path = setup.settings.path
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), str(path), "with Caudal", lineterm=""
    )
    typer.echo("\n".join(lines), err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise ServerError(f"this would be written to {path}; say --yes to have it written")
        typer.confirm(f"Write this to {path}?", abort=True, err=True)
    journal.write(agent.name, setup.settings)
    typer.echo(f"Written; to undo it: caudal launch {agent.name} --undo", err=True)


def _undo(agent: Agent, journal: Journal) -> None:
    undone = journal.undo(agent.name)
    if undone is None:
        typer.echo(f"Nothing was written for {agent.title}.")
        return
    typer.echo(f"{undone.path} is {'gone' if undone.removed else 'as it was'} again.")
    for kept in undone.kept:
        typer.echo(f"But {kept} has been changed since, and stays.")


def _print_setup(agent: Agent, setup: Setup, target: Target, arguments: Sequence[str]) -> None:
    """What a shell understands, with the key's variable in place of the key."""
    from caudal.launch.setup import KEY_VARIABLE

    def quoted(text: str) -> str:
        return f'"${KEY_VARIABLE}"' if text == target.key else shlex.quote(text)

    for name, value in setup.environment.items():
        if name != KEY_VARIABLE or target.key is None:
            typer.echo(f"export {name}={quoted(value)}")
    if setup.settings is not None:
        import json

        typer.echo(f"# In {setup.settings.path}:")
        for keys, value in setup.settings.entries.items():
            whole: Any = value
            for key in reversed(keys):
                whole = {key: whole}
            for line in json.dumps(whole, indent=2, ensure_ascii=False).splitlines():
                typer.echo(f"# {line}")
    typer.echo(" ".join(map(quoted, (agent.program, *setup.arguments, *arguments))))
