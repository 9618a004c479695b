"""Configuration files of `caudal serve`: read whole, and everything that is wrong said at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from caudal.configuration.effective import FileSettings, GivenModel, Origin
from caudal.configuration.problems import Problems
from caudal.configuration.setting import setting_of
from caudal.configuration.settings import TABLES, settings_fields
from caudal.configuration.tables import PER_MODEL, ConfigurationTables, Secret
from caudal.errors import ConfigurationError, ModelNotFoundError
from caudal.reading.toml_file import TomlFile
from caudal.reading.toml_lines import Location
from caudal.routes.configuration import aliases_in, route_in
from caudal.routes.rules import Alias, Definition
from caudal.store.names import FileReference, parse_model_name
from caudal.tenants.keys import Key, Keys


def read_file(path: Path) -> FileSettings:
    """What a configuration file says.

    Args:
        path: Where it is; paths in it that aren't absolute begin from its folder.

    Raises:
        ConfigurationError: It can't be read, or says what can't be; tells of all that it finds.
    """
    return _Reading(path).read()


class _Reading:
    def __init__(self, path: Path) -> None:
        self._file = TomlFile(path)
        self._folder = path.parent
        self._problems = Problems()
        self._tables: Any = self._file.read(ConfigurationTables)

    def read(self) -> FileSettings:
        """All of it."""
        values, origins = self._settings()
        models = self._models()
        routes = [*self._aliases(), *self._routes()]
        keys = Keys(self._keys(), self._tables.key_defaults.said())
        self._problems.raise_all()
        return FileSettings(
            path=self._file.path,
            values=values,
            origins=origins,
            models=models,
            routes=routes,
            keys=keys,
        )

    def _origin(self, *location: str | int) -> Origin:
        return Origin("file", self._file.place(location))

    def _error(self, location: Location, reason: str) -> ConfigurationError:
        return ConfigurationError(
            self._file.place(location), f"{self._file.name(location)}: {reason}"
        )

    def _settings(self) -> tuple[dict[str, Any], dict[str, Origin]]:
        values: dict[str, Any] = {}
        origins: dict[str, Origin] = {}
        for table in TABLES:
            said = getattr(self._tables, table.table)
            if said is not None:
                found = self._said(said, list(type(said).model_fields), (table.table,))
                values |= found
                origins |= {name: self._origin(table.table, name) for name in found}
        return values, origins

    def _said(self, table: Any, names: Sequence[str], location: Location) -> dict[str, Any]:
        """The settings of which a table says something."""
        found: dict[str, Any] = {}
        for name in names:
            value = getattr(table, name)
            if value is None:
                continue
            with self._problems.of(partial(self._error, (*location, name))):
                found[name] = self._value(name, value)
        return found

    def _value(self, name: str, value: Any) -> Any:
        """What is said, as settings have it."""
        if isinstance(value, Secret):
            return value.read(self._folder)
        if isinstance(value, list):
            return tuple(value)
        a_field = settings_fields()[name]
        if setting_of(a_field).is_path and value != "-":
            path = self._folder / Path(value).expanduser()
            return path if "Path" in str(a_field.type) else str(path)
        return value

    def _models(self) -> list[GivenModel]:
        models: list[GivenModel] = []
        taken: dict[str, str] = {}
        for number, table in enumerate(self._tables.models):
            place = self._file.place(("models", number))
            values = self._said(table, PER_MODEL, ("models", number))
            model = GivenModel(
                name=self._model_name(table.model),
                names=tuple(dict.fromkeys(table.names or ())),
                lora={name: self._path(path) for name, path in table.lora.items()},
                keep_alive=table.keep_alive,
                pinned=table.pinned,
                preload=table.preload,
                values=values,
                origins={name: self._origin("models", number, name) for name in values},
                place=place,
            )
            for name in (*(model.names or (model.name,)), *model.lora):
                if name in taken:
                    reason = f"there is a model or an adapter {name!r} already ({taken[name]})"
                    self._problems.add(ConfigurationError(place, reason))
                taken.setdefault(name, place)
            models.append(model)
        return models

    def _model_name(self, name: str) -> str:
        try:
            is_path = isinstance(parse_model_name(name), FileReference)
        except ModelNotFoundError:
            return name
        return self._path(name) if is_path else name

    def _path(self, text: str) -> str:
        path = self._folder / Path(text).expanduser()
        return text if self._folder == Path() else str(path)

    def _aliases(self) -> list[Definition]:
        return [
            Alias(
                name=alias,
                target=table.names[0] if table.names else self._model_name(table.model),
                place=partial(self._file.place, ("models", number, "aliases")),
            )
            for number, table in enumerate(self._tables.models)
            for alias in table.aliases
        ]

    def _routes(self) -> list[Definition]:
        routes: list[Definition] = list(aliases_in(self._file, self._tables))
        for name, table in self._tables.routes.items():
            with self._problems:
                routes.append(route_in(self._file, name, table))
        return routes

    def _keys(self) -> list[Key]:
        keys = []
        for name, table in self._tables.keys.items():
            with self._problems.of(partial(self._error, ("keys", name, "key"))):
                place = self._file.place(("keys", name))
                keys.append(table.as_key(name, self._folder, place))
        return keys
