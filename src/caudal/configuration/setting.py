"""What is known of one setting, beside its name, its type and its default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field
from typing import Any, get_args

from caudal.backends.native.options import KVType, kv_type_named
from caudal.errors import ParameterError

_KEY = "caudal"
"""Under which a field's metadata has it."""


@dataclass(frozen=True, slots=True)
class Notation:
    """How users write a value that has a notation of its own, such as `2GiB`.

    Attributes:
        name: What stands for it in the help.
        example: A value as it may be written.
        read: Makes a value of the text; raises `ValueError`, which says what it must be.
    """

    name: str
    example: str
    read: Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """See the module.

    Attributes:
        text: What it does, for the help and for who reads configuration files.
        default: What holds where nobody says anything, in words; None where the value says it.
        notation: How it is written; None for how its type is.
        metavar: What stands for its value in the help; None for its type's name.
        is_path: It is a path; one in a configuration file begins from that file's folder.
        least: The smallest value.
        most: The largest.
        variables: What says it in the environment, the one that goes before the others first.
        read_variable: Makes a value of what they say; raises `ValueError`. By default its notation.
        exact: What they say is a value as it is, also where it is empty.
        flag: How it is written on the command line, where that doesn't follow from its name.
        in_file: Whether a configuration file says it by this name, in its table.
        per_model: Whether each model may have another; None: as its table's are.
        live: It may change while the server runs; what each model may have may anyway.
        secret: Nobody is to see it.
    """

    text: str
    default: str | None = None
    notation: Notation | None = None
    metavar: str | None = None
    is_path: bool = False
    least: float | None = None
    most: float | None = None
    variables: Sequence[str] = ()
    read_variable: Callable[[str], Any] | None = None
    exact: bool = False
    flag: str | None = None
    in_file: bool = True
    per_model: bool | None = None
    live: bool = False
    secret: bool = False


def setting(default: Any, text: str, said: str | None = None, **more: Any) -> Any:
    """A field of settings.

    Args:
        default: What holds where nobody says anything.
        text: See `Setting`.
        said: See `Setting.default`.
        more: What else there is to a `Setting`.
    """
    return field(default=default, metadata={_KEY: Setting(text=text, default=said, **more)})


def setting_of(a_field: Field[Any]) -> Setting:
    """What is known of a field."""
    known: Setting = a_field.metadata[_KEY]
    return known


def read_size(text: str) -> int:
    """Bytes of a size such as `2GiB`; raises `ValueError`."""
    from caudal.loading.options import parse_size

    try:
        return parse_size(text)
    except ParameterError as error:
        raise ValueError(str(error).removesuffix(".")) from error


def read_duration(text: str) -> float:
    """Seconds of a duration such as `5m`; raises `ValueError`."""
    from caudal.fleet.durations import keep_alive_seconds

    return keep_alive_seconds(text)


SIZE = Notation("SIZE", "2GiB", read_size)
KV_TYPE = Notation(f"<{'|'.join(get_args(KVType))}>", "q8", kv_type_named)
DURATION = Notation("DURATION", "5m", read_duration)
