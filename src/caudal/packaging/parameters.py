"""Parameters that travel with a model: their names and types, as Ollama has them.

Names and types are those of `Options` and `Runner` in Ollama's `api/types.go`, and, of those that
it has dropped, what they were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from caudal.errors import ParameterError


class Kind(Enum):
    """What a parameter's value is, in words that "must be" can stand before."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    SWITCH = "true or false"
    TEXTS = "text"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that a Modelfile may set.

    Attributes:
        kind: What its value is.
        works: Whether Caudal acts on it; the others are kept for whoever does.
    """

    kind: Kind
    works: bool = True


PARAMETERS: Mapping[str, Parameter] = {
    "num_ctx": Parameter(Kind.INTEGER),
    "num_predict": Parameter(Kind.INTEGER),
    "temperature": Parameter(Kind.NUMBER),
    "top_k": Parameter(Kind.INTEGER),
    "top_p": Parameter(Kind.NUMBER),
    "min_p": Parameter(Kind.NUMBER),
    "typical_p": Parameter(Kind.NUMBER),
    "repeat_penalty": Parameter(Kind.NUMBER),
    "repeat_last_n": Parameter(Kind.INTEGER, works=False),
    "presence_penalty": Parameter(Kind.NUMBER),
    "frequency_penalty": Parameter(Kind.NUMBER),
    "seed": Parameter(Kind.INTEGER),
    "stop": Parameter(Kind.TEXTS),
    "num_keep": Parameter(Kind.INTEGER, works=False),
    "num_batch": Parameter(Kind.INTEGER, works=False),
    "num_gpu": Parameter(Kind.INTEGER, works=False),
    "main_gpu": Parameter(Kind.INTEGER, works=False),
    "use_mmap": Parameter(Kind.SWITCH, works=False),
    "num_thread": Parameter(Kind.INTEGER, works=False),
    "draft_num_predict": Parameter(Kind.INTEGER, works=False),
    # What Ollama itself has given up.
    "mirostat": Parameter(Kind.INTEGER, works=False),
    "mirostat_eta": Parameter(Kind.NUMBER, works=False),
    "mirostat_tau": Parameter(Kind.NUMBER, works=False),
    "penalize_newline": Parameter(Kind.SWITCH, works=False),
    "low_vram": Parameter(Kind.SWITCH, works=False),
    "f16_kv": Parameter(Kind.SWITCH, works=False),
    "logits_all": Parameter(Kind.SWITCH, works=False),
    "vocab_only": Parameter(Kind.SWITCH, works=False),
    "use_mlock": Parameter(Kind.SWITCH, works=False),
}

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_LONGEST_NUMBER = 60
_SWITCHES = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_LARGEST_INTEGER = 2**63 - 1
_LARGEST_NUMBER = 3.4028235e38
"""Of a 32-bit float, as which Ollama keeps numbers."""


def _find(name: str) -> Parameter:
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise ParameterError(
            name, f"unknown parameter '{name[:80]}'; the names are {', '.join(sorted(PARAMETERS))}"
        )
    return parameter


def read_parameters(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Give parameters their types.

    Args:
        pairs: Names and values as they stand in a Modelfile, in order; of a name that comes again
            the last counts, but `stop` collects.

    Raises:
        ParameterError: There is no such parameter, or its value isn't what it must be.
    """
    parameters: dict[str, Any] = {}
    for name, text in pairs:
        if _find(name).kind is Kind.TEXTS:
            parameters.setdefault(name, []).append(text)
        else:
            parameters[name] = check_parameter(name, _scalar(_find(name).kind, text))
    return parameters


def check_parameter(name: str, value: object) -> Any:
    """A parameter's value as it is kept.

    Args:
        name: Its name.
        value: What JSON says.

    Raises:
        ParameterError: There is no such parameter, or its value isn't what it must be.
    """
    kind = _find(name).kind
    if kind is Kind.TEXTS:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts):
            return list(texts)
    elif kind is Kind.SWITCH:
        if isinstance(value, bool):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if kind is Kind.NUMBER and abs(value) <= _LARGEST_NUMBER:
            return value
        if kind is Kind.INTEGER and abs(value) <= _LARGEST_INTEGER and value == int(value):
            return int(value)
    raise ParameterError(name, f"{name} must be {kind.value}, not {_shown(value)}")


def without_effect(parameters: Iterable[str]) -> list[str]:
    """Those of the parameters that Caudal doesn't act on."""
    return [name for name in parameters if name in PARAMETERS and not PARAMETERS[name].works]


def parameter_lines(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values in a Modelfile's words, one for each text of a list."""
    return [(name, _text(value)) for name, value in _each(parameters)]


def parameter_table(parameters: Mapping[str, Any]) -> str:
    """Parameters as Ollama's `show` has them: names in 30 columns, texts in quotes."""
    return "\n".join(
        f"{name:<30} {json.dumps(value, ensure_ascii=False)}"
        if isinstance(value, str)
        else f"{name:<30} {_text(value)}"
        for name, value in _each(parameters)
    )


def _each(parameters: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in parameters.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            yield name, each


def _scalar(kind: Kind, text: str) -> object:
    if kind is Kind.SWITCH:
        return _SWITCHES.get(text, text)
    if kind is Kind.INTEGER and _INTEGER.fullmatch(text):
        return int(text)
    if kind is Kind.NUMBER and len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text):
        return float(text)
    return text


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return json.dumps(value)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:80] + "…"
