"""Where logs go, set up once for a process."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Literal

from caudal.logs.formats import JSONFormat, TextFormat
from caudal.logs.lines import LineFormat
from caudal.logs.withheld import Discretion

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def set_up_logs(
    form: LogFormat = "text", level: LogLevel = "info", *, show_prompts: bool = False
) -> None:
    """Have this process write its log to standard error.

    Libraries stay at warnings whatever the level is: what they say when they are asked for more
    has headers in it, and with them keys.

    Args:
        form: Text, or JSON on a line each.
        level: The least that is written.
        show_prompts: Whether exceptions may quote requests.
    """
    discretion = Discretion(show_all=show_prompts)
    _write(JSONFormat(discretion) if form == "json" else TextFormat(discretion))
    logging.getLogger("caudal").setLevel(level.upper())


def set_up_worker_logs(level: int, *, show_prompts: bool) -> None:
    """Have this process write its log for the one that started it, which passes it on.

    Args:
        level: The least that is written.
        show_prompts: See `set_up_logs`.
    """
    _write(LineFormat(Discretion(show_all=show_prompts)))
    logging.getLogger("caudal").setLevel(level)


def _write(form: logging.Formatter) -> None:
    if logging.root.handlers:  # whoever runs us has set up their own
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form)
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)
    threading.excepthook = _on_thread_exception


def _on_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or args.exc_type is SystemExit:
        return
    name = "a thread" if args.thread is None else f"the thread {args.thread.name}"
    logging.getLogger("caudal.threads").error("%s has failed", name, exc_info=args.exc_value)
