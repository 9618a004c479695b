"""Settings, merged from what says them: options, before the environment, before a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from caudal.configuration.environment import from_environment
from caudal.configuration.setting import setting_of
from caudal.configuration.settings import ServeSettings, settings_fields
from caudal.errors import ConfigurationError, SettingError
from caudal.routes.rules import Definition
from caudal.tenants.keys import Keys


@dataclass(frozen=True, slots=True)
class Origin:
    """What says a setting.

    Attributes:
        kind: Which sort of place.
        place: It, for users: an option, a variable, a line of a file.
    """

    kind: Literal["option", "environment", "file"]
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """A model that is to be served, and what is said of it alone.

    Attributes:
        name: A name that the store resolves, or a path.
        names: Names that requests use for it; none for `name`.
        lora: The adapters that it begins with, by name, with their paths.
        keep_alive: Seconds that it stays loaded; None: as others do.
        pinned: Whether it makes way for nobody; None: where it is the only one.
        preload: Whether it is loaded at the start, if there is room.
        values: Settings that it has of its own, by their names.
        origins: Where these are said.
        place: Where it is said.
    """

    name: str
    names: tuple[str, ...] = ()
    lora: Mapping[str, str] = field(default_factory=dict)
    keep_alive: float | None = None
    pinned: bool | None = None
    preload: bool = True
    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    place: str = "MODEL"

    @property
    def own_name(self) -> str:
        """The name that is shown."""
        return self.names[0] if self.names else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """What a configuration file says.

    Attributes:
        path: Where it is.
        values: Settings, by their names.
        origins: Where these are said.
        models: The models that are to be served; none for all of the store.
        routes: Aliases and routes.
        keys: Keys, and what holds of all.
    """

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    models: Sequence[GivenModel] = ()
    routes: Sequence[Definition] = ()
    keys: Keys = field(default_factory=Keys)


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Settings, and where each comes from.

    Attributes:
        values: They.
        origins: By name; what is missing here has its default.
        file: The configuration file, where there is one.
    """

    values: ServeSettings = field(default_factory=ServeSettings)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    file: FileSettings | None = None

    def place(self, name: str) -> str:
        """Where a setting was said, or can be."""
        origin = self.origins.get(name)
        return option_of(name) if origin is None else origin.place

    def error(self, name: str, reason: str) -> ConfigurationError:
        """What is wrong with a setting, to be raised."""
        origin = self.origins.get(name)
        if origin is not None and origin.kind == "file":
            return ConfigurationError(origin.place, f"{key_of(name)}: {reason}")
        return SettingError(self.place(name), reason)

    def of_model(self, model: GivenModel) -> EffectiveSettings:
        """Those that hold for one model: what it has of its own goes before what the file says of
        all, and behind options and the environment.
        """
        own = {
            name: value
            for name, value in model.values.items()
            if (origin := self.origins.get(name)) is None or origin.kind == "file"
        }
        if not own:
            return self
        origins = {**self.origins, **{name: model.origins[name] for name in own}}
        return EffectiveSettings(replace(self.values, **own), origins, self.file)


def key_of(name: str) -> str:
    """A setting as it is written in configuration files."""
    return name.replace("_", "-")


def option_of(name: str) -> str:
    """A setting as it is written on the command line."""
    return "MODEL" if name == "model" else "--" + key_of(name)


def effective_settings(
    options: Mapping[str, Any], file: FileSettings | None = None
) -> EffectiveSettings:
    """Merge options, the environment and a file.

    Args:
        options: What the command line says, by the names of settings; nothing that it doesn't say.
        file: What a configuration file says.

    Raises:
        SettingError: A variable makes no sense.
    """
    values: dict[str, Any] = {} if file is None else dict(file.values)
    origins: dict[str, Origin] = {} if file is None else dict(file.origins)
    for name in settings_fields():
        if name in options:
            value, origin = options[name], Origin("option", option_of(name))
        elif (found := _from_environment(name)) is not None:
            value, origin = found[1], Origin("environment", found[0])
        else:
            continue
        values[name] = tuple(value) if isinstance(value, list) else value
        origins[name] = origin
    return EffectiveSettings(ServeSettings(**values), origins, file)


def _from_environment(name: str) -> tuple[str, Any] | None:
    """The variable that says a setting, and what it says; None where none does."""
    about = setting_of(settings_fields()[name])
    if about.exact:
        said = [each for each in about.variables if each in os.environ]
        return (said[0], os.environ[said[0]]) if said else None
    if not about.variables:
        return None
    read = about.read_variable or (about.notation.read if about.notation else None)
    assert read is not None, f"nothing reads the variables of {name}"
    found = from_environment(read, about.variables)
    return None if found is None or found[1] is None else found
