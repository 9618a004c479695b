"""What an agent has to be told so that it asks our server, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY_VARIABLE = "CAUDAL_API_KEY"
"""Where agents find the server's key, if they can be told a variable: so it is in no file."""

NO_KEY = "none"
"""What is sent as a key where the server needs none; most clients refuse to go without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model of a running server.

    Attributes:
        url: Where the server is, without /v1.
        model: The model's name there.
        key: The server's key, where it has one.
        context: Most tokens of prompt and answer together; None where that isn't known.
    """

    url: str
    model: str
    key: str | None = None
    context: int | None = None

    @property
    def openai_url(self) -> str:
        """Where OpenAI's API is."""
        return f"{self.url}/v1"

    @property
    def key_or_none(self) -> str:
        """A key to send in any case."""
        return self.key or NO_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """Entries of an agent's own JSON file.

    Attributes:
        path: The file; it need not exist.
        entries: Values by where they are: the keys that lead there from the outermost object.
    """

    path: Path
    entries: Mapping[tuple[str, ...], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that one agent is told.

    Attributes:
        environment: Variables that it is started with.
        arguments: What its command line begins with.
        settings: What has to be in its own file, where neither of these suffices.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    settings: SettingsFile | None = None
