"""The program in which chat templates are compiled and run: strangers' code, in a process of its
own that can be killed. `TemplateWorkers` starts it.

What bounds a template here is the kernel's, so that nothing it computes, in Python or below it, can
get in the way: a timer of computing time whose signal ends the process, a limit on its memory, and
a pipe whose other end only the parent holds, so that the process ends with its parent, however
that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import jinja2

from caudal.formats.go_template.detection import is_go_template
from caudal.formats.go_template.errors import GoTemplateError
from caudal.formats.go_template.ollama import OllamaTemplate
from caudal.formats.template_environment import TemplateEnvironment
from caudal.formats.template_facts import TemplateFacts
from caudal.formats.template_protocol import (
    MEMORY,
    Kind,
    receive_question,
    send_answer,
)
from caudal.formats.template_source import TemplateSource
from caudal.lifeline import end_with_parent, give_way, let_end

CACHED_TEMPLATES = 16

MAX_WORDS = 2000
"""Characters of an error that a template raises; the rest is cut."""


class _Template(Protocol):
    """A compiled template of either kind."""

    @property
    def facts(self) -> TemplateFacts: ...

    def render(self, variables: Mapping[str, Any]) -> str: ...


class _Renderer:
    """Answers questions, one after the other."""

    def __init__(self) -> None:
        self._environment = TemplateEnvironment()
        self._compiled = lru_cache(CACHED_TEMPLATES)(self._compile)

    def answer(self, source: bytes, variables: bytearray) -> tuple[Kind, str]:
        try:
            template = self._compiled(source)
        except jinja2.TemplateSyntaxError as error:
            return Kind.FAILED, f"is wrong in line {error.lineno}: {_words(error)}"
        except GoTemplateError as error:
            return Kind.FAILED, f"is wrong in {_words(error)}"
        except (RecursionError, SyntaxError):
            return Kind.FAILED, "is nested too deeply"
        except MemoryError:
            raise
        except Exception as error:  # Jinja's compiler computes constants
            return Kind.FAILED, f"can't be compiled: {_words(error)}"
        if not variables:
            return Kind.FACTS, template.facts.to_json()
        try:
            text = template.render(json.loads(variables))
        except MemoryError:
            raise
        except GoTemplateError as error:
            return Kind.FAILED, f"failed in {_words(error)}"
        except Exception as error:  # a template's code can raise anything
            if type(error) is jinja2.TemplateError:  # which is what raise_exception raises
                return Kind.REFUSED, _words(error)
            return Kind.FAILED, f"failed: {_words(error)}"
        return Kind.TEXT, text

    def _compile(self, source: bytes) -> _Template:
        text = source.decode("utf-8", "surrogatepass")
        if is_go_template(text):
            return OllamaTemplate.compile(text)
        return TemplateSource.compile(self._environment, text)


def _words(error: Exception) -> str:
    try:
        words = str(error)
    except Exception:  # a template chooses what an error is made of
        words = ""
    if len(words) > MAX_WORDS:
        words = f"{words[:MAX_WORDS]} …"
    return words or type(error).__name__


def _limit_resources() -> None:
    let_end(signal.SIGPROF)  # the timer's
    for limit, value in (
        (resource.RLIMIT_DATA, MEMORY),
        (resource.RLIMIT_AS, 2 * MEMORY),  # files that are mapped count here
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit of memory
            resource.setrlimit(limit, (value, value))
    give_way(1000)


class _Memory:
    """How much memory this process has now, where the system says so."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY)
        self._page = resource.getpagesize()

    def resident(self) -> int:
        """Bytes."""
        if self._file is None:
            return 0
        return int(os.pread(self._file, 100, 0).split()[1]) * self._page


def main() -> None:
    """Answer what comes over a socket, until it is closed.

    Arguments are its descriptor, the niceness, and the computing time for a question, in seconds.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.nice(int(sys.argv[2]))
    cpu_seconds = float(sys.argv[3])
    end_with_parent(sys.stdin.fileno())
    _limit_resources()
    renderer, memory = _Renderer(), _Memory()
    send_answer(channel, Kind.READY, "")
    while True:
        try:
            source, variables = receive_question(channel)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            kind, text = renderer.answer(source, variables)
            # What one template left behind must not be missing for the next.
            is_last = memory.resident() > MEMORY // 4
            send_answer(channel, kind, text, is_last=is_last)
        except MemoryError:
            is_last = True
            words = f"needs more memory than {MEMORY >> 20} MiB"
            send_answer(channel, Kind.FAILED, words, is_last=True)
        if is_last:
            return
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
