"""`caudal run` at a terminal, with a real model."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-c", "from caudal.cli import main; main()", "run"]


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(command[0], command)
        self._unread = ""
        self._code: int | None = None

    def read_until(self, text: str, seconds: float = 60) -> str:
        """What the program printed up to and including `text`."""
        deadline = time.monotonic() + seconds
        while text not in self._unread:
            ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
            assert ready, f"{text!r} did not come; this did: {self._unread!r}"
            self._unread += os.read(self._terminal, 4096).decode(errors="replace")
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def exit_code(self, seconds: float = 30) -> int:
        """Waits for the program's end."""
        deadline = time.monotonic() + seconds
        while (code := self._poll()) is None:
            assert time.monotonic() < deadline, "the program did not end"
            time.sleep(0.02)
        return code

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._poll() is None:
            os.kill(self._pid, signal.SIGKILL)
            self.exit_code()
        os.close(self._terminal)

    def _poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def test_ctrl_c_stops_the_answer_and_not_the_program(smollm2_path: Path):
    with Terminal(*COMMAND, str(smollm2_path), "--temperature", "0") as terminal:
        terminal.read_until("> ")
        terminal.type("Count from 1 to 1000, please.\r")
        terminal.read_until("2. ")  # the answer has begun
        terminal.type("\x03")
        interrupted = terminal.read_until("> ")
        assert "1000. " not in interrupted
        terminal.type("Say hello.\r")
        assert "ello" in terminal.read_until("> ").replace("Say hello.", "")
        terminal.type("/bye\r")
        assert terminal.exit_code() == 0


def test_one_question_with_piped_text(smollm2_path: Path):
    result = subprocess.run(
        [*COMMAND, str(smollm2_path), "Who was this?", "--temperature", "0"],
        input="Albert Einstein",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert len(result.stdout.split()) > 5
    assert result.stderr == ""
