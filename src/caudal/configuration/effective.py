"""Settings, merged from what says them: an option goes before the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from caudal.configuration.environment import from_environment
from caudal.configuration.setting import setting_of
from caudal.configuration.settings import ServeSettings, settings_fields
from caudal.errors import SettingError


@dataclass(frozen=True, slots=True)
class Origin:
    """What says a setting.

    Attributes:
        kind: Which sort of place.
        place: It, for users: an option, a variable.
    """

    kind: Literal["option", "environment"]
    place: str


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Settings, and where each comes from.

    Attributes:
        values: They.
        origins: By name; what is missing here has its default.
    """

    values: ServeSettings = field(default_factory=ServeSettings)
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def place(self, name: str) -> str:
        """Where a setting was said, or can be."""
        origin = self.origins.get(name)
        return option_of(name) if origin is None else origin.place

    def error(self, name: str, reason: str) -> SettingError:
        """What is wrong with a setting, to be raised."""
        return SettingError(self.place(name), reason)


def option_of(name: str) -> str:
    """A setting as it is written on the command line."""
    return "MODEL" if name == "model" else "--" + name.replace("_", "-")


def effective_settings(options: Mapping[str, Any]) -> EffectiveSettings:
    """Merge options and the environment.

    Args:
        options: What the command line says, by the names of settings; nothing that it doesn't say.

    Raises:
        SettingError: A variable makes no sense.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name in settings_fields():
        if name in options:
            value, origin = options[name], Origin("option", option_of(name))
        elif (found := _from_environment(name)) is not None:
            value, origin = found[1], Origin("environment", found[0])
        else:
            continue
        values[name] = tuple(value) if isinstance(value, list) else value
        origins[name] = origin
    return EffectiveSettings(ServeSettings(**values), origins)


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
