"""Has chat templates compiled and run in other processes, which are killed when they take too much.

Templates are strangers' programs: one takes for ever or all memory if it likes. `template_process`
is what runs there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caudal.errors import ParameterError, TemplateProcessError
from caudal.formats.template_facts import TemplateFacts
from caudal.formats.template_protocol import (
    MAX_FRAME,
    MEMORY,
    Kind,
    receive_answer,
    send_question,
)

PROCESSES = 2
"""One works, and one is there when it has to be killed; two work where there is much to do."""

CPU_SECONDS = 2.0
"""Computing time for one answer: ordinary ones take a few milliseconds."""

WALL_SECONDS = 10.0
"""Most that anyone waits for an answer, however busy the machine is."""

START_SECONDS = 60.0

_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "TZ", "LANG", "LC_ALL")
"""All that a template's process gets to see of the environment: there may be keys in the rest."""


class TemplateFailure(Exception):  # noqa: N818 - it is a template that failed
    """A template can't be compiled or rendered, and it is the template's fault.

    Args:
        words: What happened.
        refused: They are the template's own words, and it meant to raise them. Otherwise they are
            the end of a sentence that begins with the template's name.
    """

    def __init__(self, words: str, *, refused: bool = False) -> None:
        self.words = words
        self.refused = refused
        super().__init__(words)


@dataclass(frozen=True, slots=True)
class TemplateProcesses:
    """How processes that run templates are doing.

    Attributes:
        running: How many there are.
        killed: How many had to be ended since the start, or have ended before they were told to.
    """

    running: int = 0
    killed: int = 0

    def __add__(self, other: TemplateProcesses) -> TemplateProcesses:
        return TemplateProcesses(self.running + other.running, self.killed + other.killed)


class TemplateWorkers:
    """A few processes that run templates. Thread-safe.

    They are started when they are needed, or all at once by `start`, and end with `close`, with
    this object, and with this process.

    Args:
        processes: Most that run at once.
        niceness: How much the processor is to prefer everything else, 0 to 19.
        cpu_seconds: Computing time that a template may take, to be compiled and rendered.
    """

    def __init__(
        self, processes: int = PROCESSES, *, niceness: int = 0, cpu_seconds: float = CPU_SECONDS
    ) -> None:
        self._most = processes
        self._niceness = niceness
        self._cpu_seconds = cpu_seconds
        self._keep = False
        self._closed = False
        self._changed = threading.Condition()
        self._idle: list[_Process] = []
        self._starting = 0
        self._killed = 0
        self._all: set[_Process] = set()
        self._end = weakref.finalize(self, _end_all, self._all)

    @property
    def processes(self) -> TemplateProcesses:
        """How they are doing."""
        return TemplateProcesses(len(self._all), self._killed)

    def start(self) -> None:
        """Start all processes, without waiting for them; one that ends is replaced from now on.

        Raises:
            TemplateProcessError: They can't be started.
        """
        self._keep = True
        while self._reserve():
            self._release(self._launch())

    def close(self) -> None:
        """End all processes; who waits gets a `TemplateProcessError`. Safe to call twice."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._changed.notify_all()
        for process in busy:
            process.kill()  # who waits for its answer does the rest
        for process in idle:
            self._discard(process)

    def inspect(self, source: str) -> TemplateFacts:
        """Compile a template.

        Raises:
            TemplateFailure: It is wrong, or takes too much.
            TemplateProcessError: There is no process to do it in.
        """
        return TemplateFacts.from_json(self._ask(source, b""))

    def render(self, source: str, variables: Mapping[str, Any]) -> str:
        """Render a template.

        Args:
            source: The template.
            variables: What JSON can hold.

        Raises:
            TemplateFailure: It refuses the variables, is wrong, or takes too much.
            TemplateProcessError: There is no process to do it in.
            ParameterError: A value can't be written as JSON.
        """
        try:
            text = json.dumps(variables, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise ParameterError("messages", f"messages must be JSON values: {error}.") from error
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > MAX_FRAME:
            raise TemplateFailure(f"would need more memory than {MEMORY >> 20} MiB")
        return self._ask(source, encoded)

    def _ask(self, source: str, variables: bytes) -> str:
        encoded = source.encode("utf-8", "surrogatepass")
        try:
            kind, text = self._ask_once(encoded, variables)
        except EOFError:
            # Perhaps it was killed by someone else, while it waited or just now.
            try:
                kind, text = self._ask_once(encoded, variables)
            except EOFError:
                raise TemplateFailure("crashed the process that it ran in") from None
        if kind in (Kind.FACTS, Kind.TEXT):
            return text
        raise TemplateFailure(text, refused=kind is Kind.REFUSED)

    def _ask_once(self, source: bytes, variables: bytes) -> tuple[Kind, str]:
        """Raises EOFError where the process ended of itself."""
        process = self._take()
        try:
            process.wait_until_ready()
            kind, text, is_last = process.ask(source, variables)
        except TimeoutError:
            self._discard(process, ended=True)
            raise TemplateFailure(f"took longer than {WALL_SECONDS:g} s") from None
        except EOFError:
            status = self._discard(process, ended=not self._closed)
            if self._closed:
                raise TemplateProcessError("Chat templates are not run any more.") from None
            if status == -signal.SIGPROF:
                raise TemplateFailure(f"took longer than {self._cpu_seconds:g} s") from None
            raise
        except BaseException:  # Ctrl-C, say: its answer would be taken for the next one's
            self._discard(process)
            raise
        if is_last:
            self._discard(process)
        else:
            self._release(process)
        return kind, text

    def _take(self) -> _Process:
        with self._changed:
            while True:
                if self._closed:
                    raise TemplateProcessError("Chat templates are not run any more.")
                while self._idle:
                    process = self._idle.pop()
                    if not process.has_ended:
                        return process
                    self._discard(process, ended=True)
                if self._reserve():
                    break
                self._changed.wait()
        return self._launch()

    def _reserve(self) -> bool:
        """Whether there is room for one more; if so, it has to be launched."""
        with self._changed:
            if self._closed or len(self._all) + self._starting >= self._most:
                return False
            self._starting += 1
            return True

    def _launch(self) -> _Process:
        try:
            process = _Process(self._niceness, self._cpu_seconds)
        except OSError as error:
            with self._changed:
                self._starting -= 1
                self._changed.notify()
            raise TemplateProcessError(
                f"The process that chat templates run in can't be started: {error}."
            ) from error
        with self._changed:
            self._starting -= 1
            self._all.add(process)
        return process

    def _release(self, process: _Process) -> None:
        with self._changed:
            if not self._closed and not process.has_ended:
                self._idle.append(process)
                self._changed.notify()
                return
        self._discard(process)

    def _discard(self, process: _Process, *, ended: bool = False) -> int:
        """End a process and start another in its place; returns its exit status.

        Args:
            process: Which one.
            ended: It had to be killed for its template's sake, or has ended by itself.
        """
        status = process.end()
        with self._changed:
            self._killed += ended
            self._all.discard(process)
            self._changed.notify()
        if self._keep and self._reserve():
            with contextlib.suppress(TemplateProcessError):  # tried again when it is needed
                self._release(self._launch())
        return status


class _Process:
    """One process that runs templates.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, niceness: int, cpu_seconds: float) -> None:
        self._ready = False
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                # In a session of its own, Ctrl-C in a terminal doesn't reach it.
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "caudal.formats.template_process"),
                        *(str(theirs.fileno()), str(niceness), str(cpu_seconds)),
                    ],
                    stdin=subprocess.PIPE,  # nothing is written: it ends when this end is closed
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=_environment(),
                    start_new_session=True,
                )
            except BaseException:
                self._channel.close()
                raise

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_until_ready(self) -> None:
        """Wait until it has started.

        Raises:
            TemplateProcessError: It doesn't.
        """
        if self._ready:
            return
        self._channel.settimeout(START_SECONDS)
        try:
            receive_answer(self._channel)
        except (EOFError, OSError) as error:
            raise TemplateProcessError(
                "The process that chat templates run in did not start."
            ) from error
        self._channel.settimeout(WALL_SECONDS)
        self._ready = True

    def ask(self, source: bytes, variables: bytes) -> tuple[Kind, str, bool]:
        """Raises EOFError if the process has ended, TimeoutError if it doesn't answer in time."""
        try:
            send_question(self._channel, source, variables)
            return receive_answer(self._channel)
        except ConnectionError:
            raise EOFError from None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Kill it, unless it has ended; returns its exit status."""
        # What has closed its end is about to leave with a status that says why.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._answers() else 5)
        self._process.kill()
        status = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._channel.close()
        return status

    def _answers(self) -> bool:
        """Whether it has its end of the socket open."""
        try:
            self._channel.setblocking(False)
            return self._channel.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


def _end_all(processes: set[_Process]) -> None:
    for process in list(processes):
        process.kill()
    for process in list(processes):
        process.end()
    processes.clear()


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Where this process finds its modules, and nothing from the current folder.
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return {**passed_on, "PYTHONPATH": path}
