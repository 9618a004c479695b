"""What a traceback may say of an exception: not its message, which may be a part of a prompt.

`KeyError('…')`, a parser's complaint, a validation error: they all repeat what they stumbled over.
So where a line is about a request, or comes from a library that knows nothing of them, the places
and the kinds of exceptions are written, and the messages only of those that can't quote a request.
"""

from __future__ import annotations

import traceback
from types import TracebackType

_HARMLESS = (OSError, MemoryError, RecursionError, ImportError)
"""What the system and Python say."""

_UNAWARE = (
    "asyncio",
    "uvicorn",
    "fastapi",
    "starlette",
    "py.warnings",
    "caudal.batches",
    "caudal.threads",
    "caudal.worker.calls",
)
"""Loggers that tell of requests without knowing it, and those below them."""

WITHHELD = "(its message is not shown: it may quote a request; --log-prompts shows it)"

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class Discretion:
    """How much is written.

    Args:
        show_all: Whether prompts may be.
    """

    def __init__(self, *, show_all: bool = False) -> None:
        self.show_all = show_all

    def traceback(self, error: BaseException, logger: str, request: str | None) -> str:
        """A traceback, as far as it may be shown."""
        if self.show_all or (request is None and not _is_unaware(logger)):
            return "".join(traceback.format_exception(error)).rstrip()
        return "".join(_without_messages(error)).rstrip()

    def message(self, text: str, logger: str) -> str:
        """A line's message, as far as it may be shown."""
        if self.show_all or not logger.startswith("asyncio"):
            return text
        return text.partition("\n")[0]  # what follows has exceptions and arguments in it


def _is_unaware(logger: str) -> bool:
    return f"{logger}.".startswith(tuple(f"{name}." for name in _UNAWARE))


def _without_messages(error: BaseException) -> list[str]:
    lines: list[str] = []
    seen: set[int] = set()
    chain: list[tuple[BaseException, str]] = []
    current: BaseException | None = error
    joint = ""
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        chain.append((current, joint))
        if current.__cause__ is not None:
            current, joint = current.__cause__, "\nThe direct cause of this:\n\n"
        elif current.__suppress_context__:
            current = None
        else:
            current, joint = current.__context__, "\nWhile this was handled:\n\n"
    for each, how in reversed(chain):
        lines += _alone(each)
        if how:
            lines.append(how)
    return lines


def _alone(error: BaseException) -> list[str]:
    lines = ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    if isinstance(error, _HARMLESS):
        return [*lines, f"{name}: {error}\n"]
    lines.append(f"{name} {WITHHELD}\n")
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            lines += ["One of them:\n", *_without_messages(part)]
    return lines
