"""What whoever has a store changed and the process that does it say to each other.

Each message is packed by `caudal.engine.wire`, behind its length. This imports little: processes
that change stores are started for each change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from caudal.engine.wire import ErrorData

LENGTH_BYTES = 4
"""Of a message's length, the highest first."""


class StoreJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done.

    Attributes:
        kind: Which of them.
        home: The store's directory.
        name: The model's name.
        insecure: Whether a registry may be spoken to without encryption.
        recipe: What to make it of: the arguments of `Recipe`, as plain data.
    """

    kind: Literal["pull", "push", "create"]
    home: str
    name: str
    insecure: bool = False
    recipe: Mapping[str, Any] = {}


class JobReport(msgspec.Struct, tag=0, array_like=True):
    """How far it is, as Ollama's API says that."""

    report: dict[str, Any]


class JobFailed(msgspec.Struct, tag=1, array_like=True):
    """Why it failed."""

    error: ErrorData


class Done(msgspec.Struct, tag=2, array_like=True):
    """It is done."""


JobSays = JobReport | JobFailed | Done
