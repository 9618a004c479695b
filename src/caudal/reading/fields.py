"""The rule for fields of JSON objects that clients send.

A field that an API documents works, or is refused by name where ignoring it would change what the
user gets. A field that only hints, or that asks for nothing (null, the default, an empty list), is
taken. A field that nobody knows is taken too, unless it looks like a misspelling of a known one.
What was taken without effect is never silent: `ignored_fields` tells it apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, lru_cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

MAX_UNKNOWN_FIELDS = 64
"""Most names in a request that nobody knows: each costs a search for what may be meant."""

_NOTHING: Sequence[Any] = ("", [], {})
"""What asks for nothing in a field that isn't known to do anything, beside null."""

_LONGEST_NAME = 64
_ALIKE = 0.86
"""Share of letters two names have in common, in order, where one is a misspelling of the other:
`temprature` and `logprob` are, `max_new_tokens` is not."""

_NAMES_ELSEWHERE = frozenset(
    (
        "ec_transfer_params",  # vLLM
        "generation_prompt",  # llama.cpp
        "mode",  # text-generation-webui
        "models",  # OpenRouter
        "reasoning_format",  # Groq, llama.cpp
        "return_tokens",  # llama.cpp
        "search_options",  # Alibaba
        "seed",
        "session",
        "top_logprobs_num",  # SGLang
        "workspace",
    )
)
"""Fields of other APIs whose names only happen to be much like known ones of some objects here."""


@dataclass(slots=True)
class FieldReading:
    """How the fields of one request are read; the validation context of `RequestObject`.

    Attributes:
        strict: Refuse every field that would have no effect.
        found_ignored: Whether there are such fields, so that nobody needs to look where not.
        unknown: Names that nobody knows, so far.
    """

    strict: bool = False
    found_ignored: bool = False
    unknown: set[str] = field(default_factory=set)


class RequestObject(BaseModel):
    """A JSON object with known fields and no conversions between types.

    Attributes:
        refused: Documented fields that are not offered and would change what the user gets: each
            with the values that ask for nothing, beside null. Subclasses add to it.
        hints: Documented fields that have no effect here, and whose effect nobody would miss;
            with the values that ask for nothing, where there are such beside null. Subclasses add
            to it.
        closed: Any field that nobody knows may change what the user gets, so all are refused.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {}
    hints: ClassVar[AbstractSet[str] | Mapping[str, Sequence[Any]]] = frozenset()
    closed: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _sort_fields(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        others = data.keys() - _names_of(cls)
        if not others:
            return data
        reading = info.context if isinstance(info.context, FieldReading) else FieldReading()
        refused, hints = _refused_by(cls), _hints_of(cls)
        unknown = others - refused.keys() - hints.keys()
        reading.unknown |= unknown
        if len(reading.unknown) > MAX_UNKNOWN_FIELDS:
            raise ValueError(
                f"the request has more than {MAX_UNKNOWN_FIELDS} fields that are unknown here"
            )
        kept = dict(data)
        for name, value in data.items():
            if name not in others:
                continue
            if value is None or value in refused.get(name, hints.get(name, _NOTHING)):
                del kept[name]
            elif name in refused:
                raise UnsupportedFieldError(name)
            elif reading.strict and name in hints:
                raise UnsupportedFieldError(name, "would have no effect on")
            elif name in unknown and (meant := cls._meant_by(name)) is not None:
                raise UnknownFieldError(name, meant)
            elif name in unknown and (reading.strict or cls.closed):
                raise UnknownFieldError(name, None)
            else:
                reading.found_ignored = True
        return kept

    @classmethod
    def _meant_by(cls, name: str) -> str | None:
        """The known field of which a name is a misspelling."""
        if len(name) > _LONGEST_NAME or name in _NAMES_ELSEWHERE:
            return None
        return closest(name, _names_of(cls).union(_refused_by(cls), _hints_of(cls)))


class UnsupportedFieldError(ValueError):
    """A known field asks for something that Caudal does not offer.

    Args:
        field: Its name.
        verdict: What is said between the name and "this server".
    """

    def __init__(self, field: str, verdict: str = "is not supported by") -> None:
        self.field = field
        self.verdict = verdict
        super().__init__(f"{field} {verdict} this server.")


class UnknownFieldError(ValueError):
    """A field that nobody knows, where it is probably a mistake or mistakes were asked for.

    Args:
        field: Its name.
        meant: The known field that it looks like.
    """

    def __init__(self, field: str, meant: str | None) -> None:
        self.field = field
        self.meant = meant
        super().__init__(f"Unknown field: {field}.")


def ignored_fields(model: BaseModel) -> list[str]:
    """The fields that were taken and have no effect, e.g. `messages[].id`; each once.

    They are taken out of the model, which from then on is all that the request asks for.
    """
    return list(dict.fromkeys(_take_ignored(model, "")))


def _take_ignored(model: BaseModel, where: str) -> Iterator[str]:
    extra = model.__pydantic_extra__
    if extra:
        for name in extra:
            yield f"{where}{name}"
        extra.clear()
    for name, value in model.__dict__.items():
        items = value if isinstance(value, list) else (value,)
        place = f"{where}{name}[]." if isinstance(value, list) else f"{where}{name}."
        for item in items:
            if isinstance(item, BaseModel):
                yield from _take_ignored(item, place)


@cache
def _names_of(model: type[BaseModel]) -> frozenset[str]:
    """The names under which a model's fields are sent."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@cache
def _refused_by(model: type[RequestObject]) -> Mapping[str, Sequence[Any]]:
    """A model's refused fields, those of its bases included."""
    named = [vars(base).get("refused", {}) for base in reversed(model.__mro__)]
    return {name: nothing for fields in named for name, nothing in fields.items()}


@cache
def _hints_of(model: type[RequestObject]) -> Mapping[str, Sequence[Any]]:
    """A model's hints, those of its bases included, each with the values that ask for nothing."""
    found: dict[str, Sequence[Any]] = {}
    for base in reversed(model.__mro__):
        hints = vars(base).get("hints", ())
        found |= hints if isinstance(hints, Mapping) else dict.fromkeys(hints, _NOTHING)
    return found


@lru_cache(maxsize=1024)
def closest(name: str, known: frozenset[str]) -> str | None:
    """The known name of which another is a misspelling, if there is one."""
    plain = _plain(name)
    matcher = SequenceMatcher(b=plain, autojunk=False)
    best, closest = _ALIKE, None
    for each in sorted(known):
        matcher.set_seq1(_plain(each))
        if matcher.real_quick_ratio() < best or matcher.quick_ratio() < best:
            continue
        ratio = matcher.ratio()
        if ratio >= best:
            best, closest = ratio, each
    return closest


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
