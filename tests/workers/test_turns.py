"""Turns that processes take by a file in memory; holders that die and stop."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from caudal import _native
from caudal.engine.turns import Turns
from caudal.workers.turns import TIMES, TurnFile, TurnTimes, join_turns

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no turns on this system")

NEVER = 1000.0
PATIENT = TurnTimes(poll=NEVER, grace=TIMES.grace, stuck=NEVER, longest=NEVER)
"""Who waits is woken, or waits for ever."""


@pytest.fixture
def file() -> TurnFile:
    return TurnFile()


def join(file: TurnFile, times: TurnTimes = TIMES, threads: int = 1000) -> Turns:
    turns = join_turns(file.descriptor, threads, times)
    assert turns is not None
    return turns


@contextmanager
def process(file: TurnFile, body: str, *others: int) -> Iterator[subprocess.Popen[str]]:
    """A process with `turns`, which says when it has them."""
    start = (
        "import mmap, sys, time\n"
        "from caudal.workers.turns import TurnTimes, join_turns\n"
        f"turns = join_turns({file.descriptor}, 1000, {PATIENT})\n"
        "print('joined', flush=True)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", start + body],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[file.descriptor, *others],
    )
    try:
        assert said(running) == "joined"
        yield running
    finally:
        running.kill()
        running.communicate()


def said(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def in_thread(body: object) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


HOLDS = "turns.take(); print('took', flush=True); time.sleep(1000)"


def test_who_had_less_of_the_processors_goes_first(file: TurnFile):
    holder, late, early = (join(file, PATIENT) for _ in range(3))
    for turns, seconds in ((early, 0.05), (late, 0.001)):
        turns.take()
        time.sleep(seconds)
        turns.give_back()
        turns.leave()
    order: list[str] = []

    def take(turns: Turns, name: str) -> None:
        turns.take()
        order.append(name)
        turns.give_back()
        turns.leave()

    holder.take()
    first = in_thread(lambda: take(early, "had more"))
    time.sleep(0.05)
    second = in_thread(lambda: take(late, "had less"))
    time.sleep(0.05)
    assert not order
    assert holder.give_back()
    holder.leave()
    first.join(10)
    second.join(10)
    assert order == ["had less", "had more"]


def test_one_that_is_behind_is_awaited_between_its_turns(file: TurnFile):
    """Long turns alternate with as many short ones as take as long."""
    times = replace(PATIENT, grace=NEVER)
    short, long = join(file, times), join(file, times)
    long.take()
    waiting = threading.Event()

    def take_short() -> None:
        waiting.set()
        for _ in range(5):
            short.take()
            taken.append("short")
            time.sleep(0.002)
            short.give_back()
        short.leave()

    taken: list[str] = []
    thread = in_thread(take_short)
    waiting.wait()
    time.sleep(0.3)
    assert long.give_back()
    long.take()  # not before the others have had as much, or pause
    taken.append("long")
    assert taken == ["short"] * 5 + ["long"]
    thread.join(10)


def test_turns_go_on_at_once_where_there_are_processors(file: TurnFile):
    one, two, three = (
        _native.Turns(file.descriptor, threads, 4, 1, 0, 1, 1) for threads in (3, 1, 1)
    )
    one.take()
    two.take()
    thread = in_thread(three.take)
    thread.join(0.05)
    assert thread.is_alive()
    two.give_back()
    thread.join(10)
    assert not thread.is_alive()


def test_nobody_is_forgotten_nor_two_at_once_let_in(file: TurnFile):
    rounds, processes = 3000, 3
    counter = os.memfd_create("counter")
    os.ftruncate(counter, mmap.PAGESIZE)
    body = (
        f"memory = mmap.mmap({counter}, 8)\n"
        "sys.stdin.readline()\n"
        f"for _ in range({rounds}):\n"
        "    turns.take()\n"
        "    value = int.from_bytes(memory[:8], 'little')\n"
        "    memory[:8] = (value + 1).to_bytes(8, 'little')\n"
        "    turns.give_back()\n"
        "turns.leave()\n"
        "print('done', flush=True)\n"
    )
    with (
        process(file, body, counter) as one,
        process(file, body, counter) as two,
        process(file, body, counter) as three,
    ):
        for running in (one, two, three):
            assert running.stdin is not None
            running.stdin.write("go\n")
            running.stdin.flush()
        for running in (one, two, three):
            assert said(running) == "done"
    with mmap.mmap(counter, 8) as memory:
        assert int.from_bytes(memory[:8], "little") == rounds * processes
    os.close(counter)


def test_a_holder_that_is_killed_is_followed(file: TurnFile):
    turns = join(file, replace(PATIENT, poll=0.005))
    with process(file, HOLDS) as holder:
        assert said(holder) == "took"
        thread = in_thread(turns.take)
        thread.join(0.1)
        assert thread.is_alive()
        holder.kill()
        thread.join(10)
        assert not thread.is_alive()


def test_one_that_is_killed_while_it_waits_is_in_nobodys_way(file: TurnFile):
    holder, turns = join(file), join(file, replace(PATIENT, poll=0.005))
    holder.take()
    with process(file, "turns.take()") as waiting:
        time.sleep(0.1)
        waiting.kill()
    thread = in_thread(turns.take)
    thread.join(0.05)
    holder.give_back()
    holder.leave()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "body", [HOLDS, "turns.take(); print('took', flush=True)\nwhile True: pass"]
)
def test_others_go_on_without_a_holder_that_is_stopped(file: TurnFile, body: str):
    turns = join(file, replace(PATIENT, poll=0.005, stuck=0.05))
    with process(file, body) as holder:
        assert said(holder) == "took"
        os.kill(holder.pid, signal.SIGSTOP)
        thread = in_thread(turns.take)
        thread.join(10)
        assert not thread.is_alive()


def test_a_holder_that_goes_on_has_lost_its_turn_and_gets_another(file: TurnFile):
    late, turns = join(file, PATIENT), join(file, replace(PATIENT, poll=0.005, longest=0.05))
    late.take()
    turns.take()  # this process computes, but for too long
    assert not late.give_back()
    thread = in_thread(late.take)
    thread.join(0.05)
    assert thread.is_alive()
    turns.give_back()
    turns.leave()
    thread.join(10)
    assert not thread.is_alive()


def test_places_are_given_back(file: TurnFile):
    joined = [join(file) for _ in range(_native.TURN_PLACES)]
    assert join_turns(file.descriptor, 1) is None
    joined.pop()
    join(file).take()
