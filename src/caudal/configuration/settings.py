"""All settings of `caudal serve`.

A field of a table is an option of the command line by the same name, with its help, and a key of
that table in configuration files. Who adds one does nothing else for that: see `setting`.
"""

from __future__ import annotations

import functools
from dataclasses import Field, dataclass, fields
from typing import Any

from caudal.configuration.model_settings import (
    AnswersTable,
    FleetTable,
    LoadingTable,
    SchedulingTable,
)
from caudal.configuration.server_settings import (
    BatchesTable,
    LimitsTable,
    LogsTable,
    ServerTable,
)
from caudal.configuration.setting import setting_of


@dataclass(frozen=True, kw_only=True)
class ServeSettings(
    SchedulingTable,
    LoadingTable,
    AnswersTable,
    FleetTable,
    BatchesTable,
    LimitsTable,
    LogsTable,
    ServerTable,
):
    """See the module. None is the default that a setting's text describes."""


TABLES = (
    ServerTable,
    LimitsTable,
    LogsTable,
    BatchesTable,
    FleetTable,
    AnswersTable,
    LoadingTable,
    SchedulingTable,
)
"""What settings are grouped by, in the order in which they are shown."""


@functools.cache
def settings_fields() -> dict[str, Field[Any]]:
    """The fields of all settings, by their names, in the order in which they are shown."""
    return {field.name: field for field in fields(ServeSettings)}


def is_per_model(name: str) -> bool:
    """Whether each model may have another value of a setting."""
    own = setting_of(settings_fields()[name]).per_model
    return getattr(table_of(name), "per_model", False) if own is None else own


def is_live(name: str) -> bool:
    """Whether a setting may change while the server runs."""
    return setting_of(settings_fields()[name]).live or is_per_model(name)


def table_of(name: str) -> type[Any]:
    """The class that has a setting: its table, whose docstring is its title."""
    return next(table for table in TABLES if name in table.__annotations__)
