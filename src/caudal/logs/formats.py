"""The forms of a line: text for people, JSON for what collects logs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from caudal.logs.request import current_request
from caudal.logs.withheld import Discretion

Fields = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

FIELDS = "caudal_fields"
"""The attribute of a line that has fields of its own, for forms that keep them apart; or that makes
them, where that isn't for nothing."""

MODEL = "caudal_model"
"""The attribute that says which model's process a line comes from."""

REQUEST = "caudal_request"
"""The attribute that says which request it is about, where that isn't who writes it."""

TRACEBACK = "caudal_traceback"
"""The attribute that has a traceback from another process."""


def fields(**given: Any) -> dict[str, Any]:
    """What to give a logger as `extra`, so that a line has fields besides its message."""
    return {FIELDS: given}


def fields_of(line: logging.LogRecord) -> dict[str, Any]:
    """The fields of its own that a line has; those that are None are none."""
    own: Fields = getattr(line, FIELDS, None) or {}
    made = own() if callable(own) else own
    return {name: value for name, value in made.items() if value is not None}


def request_of(line: logging.LogRecord) -> str | None:
    """The id of the request that a line is about."""
    return getattr(line, REQUEST, None) or current_request()


def traceback_of(line: logging.LogRecord, discretion: Discretion) -> str | None:
    """The traceback that belongs to a line."""
    told: str | None = getattr(line, TRACEBACK, None)
    if told is not None:
        return told
    error = line.exc_info[1] if line.exc_info else None
    return None if error is None else discretion.traceback(error, line.name, request_of(line))


class TextFormat(logging.Formatter):
    """`20:01:02 message`, and behind it which request it is about.

    Args:
        discretion: What may be shown.
    """

    def __init__(self, discretion: Discretion) -> None:
        super().__init__()
        self._discretion = discretion

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        message = self._discretion.message(record.getMessage(), record.name)
        model = getattr(record, MODEL, None)
        if model is not None:
            message = f"{model}: {message}"
        if record.levelno >= logging.WARNING:
            message = f"{record.levelname.lower()}: {message}"
        request = request_of(record)
        if request is not None:
            message = f"{message} [{request}]"
        told = traceback_of(record, self._discretion)
        return f"{clock} {message}" if told is None else f"{clock} {message}\n{told}"


class JSONFormat(logging.Formatter):
    """An object on a line: `time` (RFC 3339), `level`, `logger`, `message`, and what else is known:
    `request_id`, `model`, `exception`, and the fields of its own.

    Args:
        discretion: What may be shown.
    """

    def __init__(self, discretion: Discretion) -> None:
        super().__init__()
        self._discretion = discretion

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said: dict[str, Any] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._discretion.message(record.getMessage(), record.name),
        }
        optional = {
            "request_id": request_of(record),
            "model": getattr(record, MODEL, None),
            "exception": traceback_of(record, self._discretion),
        }
        said |= {name: value for name, value in optional.items() if value is not None}
        said |= {name: value for name, value in fields_of(record).items() if name not in said}
        return json_line(said)


def json_line(said: Mapping[str, Any]) -> str:
    """An object on one line; whatever it holds, the line is valid JSON and UTF-8."""
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"), default=str)
    # Half of a surrogate pair, U+2028 and the like: valid for JSON, but not for all who read lines.
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(said, separators=(",", ":"), default=str)
    return text.translate(_ESCAPED)


_ESCAPED = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def rfc3339(seconds: float) -> str:
    """Unix time as RFC 3339 has it, in UTC, to the millisecond."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
