"""Answers held to JSON schemas, each of them checked against its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Annotated, Any, Literal

import msgspec

from caudal.bench.serving.conversation import Conversation, Turn
from caudal.bench.serving.settings import LoadSettings, Wording
from caudal.bench.serving.streams import Stream
from caudal.bench.serving.words import text

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]

_Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]

_Tags = Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=4)]


class _Person(msgspec.Struct, forbid_unknown_fields=True):
    name: _Name
    age: Annotated[int, msgspec.Meta(ge=0, le=120)]
    city: _Name
    languages: _Tags


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    article: _Name
    count: _Count
    unit: Literal["piece", "litre", "kilogram"]


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    customer: _Name
    express: bool
    lines: Annotated[list[_Line], msgspec.Meta(min_length=1, max_length=4)]


class _Ticket(msgspec.Struct, forbid_unknown_fields=True):
    title: _Name
    severity: Literal["low", "medium", "high"]
    assignee: _Name | None
    tags: _Tags


_TYPES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("person", _Person),
    ("order", _Order),
    ("ticket", _Ticket),
)
"""All of them bounded, so that a model of any kind comes to their end."""


def conversations(settings: LoadSettings, random: Random) -> Iterator[Conversation]:
    """Requests for data about something, each in the form of one of some schemas, in turn."""
    outputs, wording = settings.output_lengths, settings.wording or Wording()
    assert outputs is not None
    for number in count():
        name, kind = _TYPES[number % len(_TYPES)]
        tokens = settings.prompt_lengths.draw(random)
        story = text(random, wording.words(tokens))
        yield Conversation(
            [
                Turn(
                    messages=[{"role": "user", "content": f"Make a {name} of this: {story}"}],
                    max_tokens=outputs.draw(random),
                    exact_length=False,
                    fields={"response_format": response_format(name, kind)},
                    check=_checker(kind),
                    prompt_tokens=tokens,
                )
            ]
        )


def response_format(name: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """OpenAI's field for answers of a type."""
    (schema,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole = {**schema, "$defs": definitions}
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "strict": True, "schema": whole},
    }


def _checker(kind: type[msgspec.Struct]) -> Callable[[Stream], str | None]:
    def check(stream: Stream) -> str | None:
        if stream.finish_reason == "length":
            return "the answer was cut off at the tokens that it may have"
        try:
            msgspec.json.decode(stream.text, type=kind)
        except msgspec.MsgspecError as error:
            return f"{error}: {stream.text[:120]!r}"
        return None

    return check
