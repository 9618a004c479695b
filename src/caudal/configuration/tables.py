"""The tables that a configuration file may have; what is in most of them is said elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from caudal.configuration.setting import DURATION, Notation, Setting, setting_of
from caudal.configuration.settings import TABLES, ServeSettings, is_per_model, settings_fields
from caudal.reading.toml_file import TomlTable
from caudal.routes.configuration import Name, RoutesTables
from caudal.tenants.key_file import DatedRules, RulesTable, checked_hash, digest_in
from caudal.tenants.keys import Key, checked_name, digest_of_text

MAX_SECRET_BYTES = 2**16


class Secret(TomlTable):
    """A secret that is somewhere else: a variable of the environment, or a file."""

    env: Annotated[str, Field(min_length=1)] | None = None
    file: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError('must be { env = "NAME" } or { file = "PATH" }')
        return self

    def read(self, folder: Path) -> str:
        """It.

        Args:
            folder: What a relative path begins from.

        Raises:
            ValueError: It isn't there.
        """
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise ValueError(f"the environment has no variable {self.env}")
            return value
        assert self.file is not None
        path = folder / Path(self.file).expanduser()
        try:
            with path.open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
            if len(content) > MAX_SECRET_BYTES:
                raise ValueError(f"{path} is larger than {MAX_SECRET_BYTES >> 10} KiB")
            return content.decode().rstrip("\r\n")
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text") from error


def _written(notation: Notation) -> BeforeValidator:
    """Reads what has a notation, which may be a number too."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"must be text like {notation.example}, or a number")
        return notation.read(str(value))

    return BeforeValidator(read)


KINDS = get_type_hints(ServeSettings)


def _kind(name: str, about: Setting) -> Any:
    """What a setting's value may be in a file."""
    kind = KINDS[name]
    if about.secret:
        return str | Secret | None
    if about.notation is not None:
        return Annotated[kind, _written(about.notation)]
    if get_origin(kind) is tuple:
        return list[str] | None
    if kind == Path | None:
        return Annotated[str, Field(min_length=1)] | None
    if about.least is not None or about.most is not None:
        return Annotated[kind, Field(ge=about.least, le=about.most, allow_inf_nan=False)] | None
    return kind | None


def _settings(names: list[str]) -> dict[str, Any]:
    fields = settings_fields()
    return {name: (_kind(name, setting_of(fields[name])), None) for name in names}


def in_file(names: Iterable[str]) -> list[str]:
    fields = settings_fields()
    return [name for name in names if name in fields and setting_of(fields[name]).in_file]


class GivenKeyTable(DatedRules):
    """A key: its hash, or where it is."""

    hash: Annotated[str, AfterValidator(checked_hash)] | None = None
    key: Secret | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_plain_key(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("key"), str):
            raise ValueError(
                "a key isn't written as it is: `caudal keys add` gives its hash, and "
                'key = { env = "NAME" } or { file = "PATH" } says where it is'
            )
        return data

    @model_validator(mode="after")
    def _one_form(self) -> GivenKeyTable:
        if (self.hash is None) == (self.key is None):
            raise ValueError("needs either a hash or a key")
        return self

    def as_key(self, name: str, folder: Path, place: str) -> Key:
        """It, as others are given.

        Raises:
            ValueError: It isn't where it is said to be, or is none.
        """
        if self.hash is not None:
            return self.key_of(name, digest_in(self.hash), place)
        assert self.key is not None
        return self.key_of(name, digest_of_text(self.key.read(folder)), place)


class _OfModel(TomlTable):
    """What is said of one model, beside settings that it may have of its own."""

    model: Annotated[str, Field(min_length=1)]
    names: Annotated[list[Name], Field(min_length=1)] | None = None
    aliases: list[Name] = Field(default_factory=list)
    lora: dict[Name, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    keep_alive: Annotated[float | None, _written(DURATION)] = None
    pinned: bool | None = None
    preload: bool = True


PER_MODEL = in_file(filter(is_per_model, settings_fields()))
"""Settings that a model may have of its own."""

ModelTable: type[_OfModel] = create_model(
    "ModelTable", __base__=_OfModel, __doc__=_OfModel.__doc__, **_settings(PER_MODEL)
)


class _Tables(RoutesTables):
    """A configuration file."""

    models: list[ModelTable] = Field(default_factory=list)  # type: ignore[valid-type]
    keys: dict[Annotated[str, AfterValidator(checked_name)], GivenKeyTable] = Field(
        default_factory=dict
    )
    key_defaults: RulesTable = RulesTable()


def _table(table: type[Any]) -> Any:
    """One of those that settings are in."""
    fields = _settings(in_file(table.__annotations__))
    return create_model(table.__name__, __base__=TomlTable, **fields)


_OF_SETTINGS: dict[str, Any] = {table.table: (_table(table) | None, None) for table in TABLES}

ConfigurationTables: type[_Tables] = create_model(
    "ConfigurationTables", __base__=_Tables, **_OF_SETTINGS
)
"""A configuration file, with a table for each of those that settings are in."""
