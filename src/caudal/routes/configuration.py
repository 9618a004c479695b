"""Aliases and routes, as users write them: in a file, or on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from caudal.errors import ConfigurationError
from caudal.reading.toml_file import TomlFile, TomlTable
from caudal.routes.rules import (
    JUDGED_TOKENS,
    Alias,
    Candidate,
    Cascade,
    Choice,
    Definition,
    Routes,
)

MAX_NAME = 256


def _name(text: str) -> str:
    if not text.strip() or text != text.strip() or len(text) > MAX_NAME or not text.isprintable():
        raise ValueError(f"must be a name of 1 to {MAX_NAME} printable characters")
    return text


def _header(text: str) -> str:
    if not text.isascii() or not all(letter.isalnum() or letter in "-_" for letter in text):
        raise ValueError("must be the name of a header")
    return text.lower()


Name = Annotated[str, AfterValidator(_name)]
_Header = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_header)]


class _CandidateTable(TomlTable):
    model: Name
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    headers: dict[_Header, str | Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict
    )

    def candidate(self) -> Candidate:
        return Candidate(
            model=self.model,
            max_prompt_tokens=self.max_prompt_tokens,
            headers={
                name: (values,) if isinstance(values, str) else tuple(values)
                for name, values in self.headers.items()
            },
        )


class RouteTable(TomlTable):
    """What a file says of a route."""

    models: Annotated[list[_CandidateTable], Field(min_length=1)] | None = None
    cascade: Annotated[list[Name], Field(min_length=2)] | None = None
    min_logprob: Annotated[float, Field(le=0, allow_inf_nan=False)] | None = None
    judged_tokens: Annotated[int, Field(ge=1, le=2**20)] | None = None


class RoutesTables(TomlTable):
    """What a file says of aliases and routes."""

    aliases: dict[Name, Name] = Field(default_factory=dict)
    routes: dict[Name, RouteTable] = Field(default_factory=dict)


def read_routes(
    file: Path | None, aliases: Sequence[str] = (), others: Iterable[Definition] = ()
) -> Routes:
    """Aliases and routes of a file and of the command line.

    Args:
        file: A TOML file.
        aliases: `NAME=MODEL` each.
        others: More of them, where these have none of the same name.

    Raises:
        ConfigurationError: Something in it makes no sense.
    """
    given: list[Definition] = list(map(_given_alias, aliases))
    if file is not None:
        read = TomlFile(file)
        tables = read.read(RoutesTables)
        given += aliases_in(read, tables)
        given += [route_in(read, name, table) for name, table in tables.routes.items()]
    names = {each.name for each in given}
    return Routes([*given, *(each for each in others if each.name not in names)])


def _given_alias(text: str) -> Alias:
    name, _, target = text.partition("=")
    try:
        return Alias(name=_name(name), target=_name(target), place=lambda: "--alias")
    except ValueError:
        raise ConfigurationError("--alias", f"must be NAME=MODEL, not {text[:80]!r}") from None


def aliases_in(file: TomlFile, tables: RoutesTables) -> Iterator[Alias]:
    """The aliases that a file says."""
    for name, target in tables.aliases.items():
        yield Alias(name=name, target=target, place=partial(file.place, ("aliases", name)))


def route_in(file: TomlFile, name: str, table: RouteTable) -> Definition:
    """A route that a file says.

    Raises:
        ConfigurationError: It makes no sense.
    """
    place = partial(file.place, ("routes", name))
    if (table.models is None) == (table.cascade is None):
        raise ConfigurationError(place(), f"the route {name!r} needs either models or a cascade")
    if table.models is not None:
        for key in ("min_logprob", "judged_tokens"):
            if getattr(table, key) is not None:
                where = file.place(("routes", name, key))
                raise ConfigurationError(where, f"{key} is for a route with a cascade")
        candidates = [each.candidate() for each in table.models]
        return Choice(name=name, candidates=candidates, place=place)
    assert table.cascade is not None
    if table.min_logprob is None:
        raise ConfigurationError(place(), f"the route {name!r} needs a min_logprob, e.g. -0.7")
    return Cascade(
        name=name,
        stages=table.cascade,
        min_logprob=table.min_logprob,
        judged_tokens=table.judged_tokens or JUDGED_TOKENS,
        place=place,
    )
