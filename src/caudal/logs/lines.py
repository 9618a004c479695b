"""Lines of the log on their way from one process to another, which writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from caudal.logs.formats import (
    FIELDS,
    MODEL,
    REQUEST,
    TRACEBACK,
    fields_of,
    request_of,
    traceback_of,
)
from caudal.logs.withheld import Discretion

_MARK = "\x1e{"
"""How such lines begin; whatever else a process writes doesn't."""

MAX_MESSAGE = 4000
"""Most characters of a message from another process."""

MAX_TRACEBACK = 20_000


class LineFormat(logging.Formatter):
    """A line for the process that reads ours.

    Args:
        discretion: What may be shown.
    """

    def __init__(self, discretion: Discretion) -> None:
        super().__init__()
        self._discretion = discretion

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said = {
            "t": record.created,
            "v": record.levelno,
            "n": record.name,
            "m": self._discretion.message(record.getMessage(), record.name)[:MAX_MESSAGE],
            "r": request_of(record),
            "e": traceback_of(record, self._discretion),
            "f": fields_of(record),
        }
        return f"\x1e{json.dumps(said, default=str)}"


def told(text: str, model: str) -> logging.LogRecord | None:
    """What a line from another process says; None where it is none of these.

    Args:
        text: The line.
        model: Whose process it comes from.
    """
    if not text.startswith(_MARK):
        return None
    try:
        said = json.loads(text[1:])
        message, level, when = str(said["m"]), int(said["v"]), float(said["t"])
    except (ValueError, KeyError, TypeError):
        return None
    own: Mapping[str, Any] | None = said.get("f")
    trace = said.get("e")
    return logging.makeLogRecord(
        {
            "name": str(said.get("n")),
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": message[:MAX_MESSAGE],
            "created": when,
            "msecs": when % 1 * 1000,
            MODEL: model,
            REQUEST: said.get("r"),
            TRACEBACK: None if trace is None else str(trace)[-MAX_TRACEBACK:],
            FIELDS: own,
        }
    )
