"""Holds a scripted model up until a test has seen what it wanted to see."""

from __future__ import annotations

import threading


class Gate:
    """Lets a model's iterations pass only while it is open: `ScriptedExecutor(fail=gate)`."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.open = self._open.set

    def __call__(self, _: object) -> None:
        assert self._open.wait(30)
