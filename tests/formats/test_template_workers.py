"""What hostile templates can do: fail by themselves. Others and their own processes go on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caudal.errors import ParameterError, TemplateProcessError
from caudal.formats.template_workers import WALL_SECONDS, TemplateFailure, TemplateWorkers
from support.processes import children, wait_until_gone

SHARED = "{% set a = [1] %}{% set b = [1] %}" + "{% set a = [a, a] %}{% set b = [b, b] %}" * 45
GROW = "{% set n = namespace(x=['x']) %}{% for i in range(99) %}{% set n.x = REPEAT %}{% endfor %}"
MACRO = "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 'x' }}{% endmacro %}{{ f(60) }}"

CPU_SECONDS = 0.25
TIME = f"took longer than ({CPU_SECONDS:g}|{WALL_SECONDS:g}) s"
"""Of computing or, where the machine does much else, of waiting for it."""

LIMIT = f"{TIME}|needs more memory than 512 MiB|steps|recursion|is nested too deeply"
"""Which comes first depends on the machine."""

ATTACKS = {
    "comparing shared lists": (SHARED + "{{ a == b }}", TIME),
    "ordering shared lists": (SHARED + "{{ a < b }}", TIME),
    "searching shared lists": (SHARED + "{{ b in [a] }}", TIME),
    "writing shared lists": (SHARED + "{{ a }}", LIMIT),
    "shared lists as JSON": (SHARED + "{{ a | tojson }}", LIMIT),
    "shared lists, printed": (SHARED + "{{ a | pprint }}", LIMIT),
    "shared lists, joined": (SHARED + "{{ a | sum(start=[]) | join }}", LIMIT),
    "a layout of many": ("{{ ('%s' * 1000) | format(*(['x' * 2000000] * 1000)) }}", LIMIT),
    "a layout of many, in braces": (
        "{{ ('{0}' * 1000).format('x' * 2000000) }}",
        LIMIT,
    ),
    "a large power": ("{{ 2 ** 16000000 }}", "Exceeds the limit"),
    "large powers": (
        "{% set n = namespace(x=3) %}"
        "{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x % 7 }}",
        LIMIT,
    ),
    "a list grown in a loop": (
        "{% set n = namespace(a=[]) %}{% for i in range(99999) %}{% set n.a = n.a + [i] %}"
        "{% endfor %}",
        LIMIT,
    ),
    "a list of lists grown": (
        "{% set n = namespace(a=[]) %}{% for i in range(99) %}"
        "{% set n.a = [n.a, ['x'] * 9000000] %}{% endfor %}",
        LIMIT,
    ),
    "replacing": (
        "{% set n = namespace(x='x') %}{% for i in range(99) %}"
        "{% set n.x = n.x.replace('x', 'xx') %}{% endfor %}",
        LIMIT,
    ),
    "the filter replace": (
        "{% set n = namespace(x='x') %}{% for i in range(99) %}"
        "{% set n.x = n.x | replace('x', 'xx') %}{% endfor %}",
        LIMIT,
    ),
    "joining": ("{{ (['x' * 9000000] * 1000) | join | length }}", LIMIT),
    "joining by much": ("{{ (['x'] * 9000) | join('x' * 9000000) | length }}", LIMIT),
    "indenting": (
        "{{ ('\n' * 9000) | indent(9000000, blank=true) | length }}", LIMIT
    ),
    "wide JSON": ("{{ [[[1] * 999] * 999] | tojson(indent=9000000) }}", LIMIT),
    "ranges of ranges": (
        "{{ range(99999) | map('string') | map('list') | list | length }}"
        "{% for i in range(9999) %}{{ range(99999) | list | length }}{% endfor %}",
        LIMIT,
    ),
    "sorting": ("{{ (range(99999) | list * 300) | sort | length }}", LIMIT),
    "batches": ("{{ [1] | batch(10 ** 9, 1) | list | length }}", LIMIT),
    "slices": ("{{ [1] | slice(10 ** 9) | list | length }}", LIMIT),
    "filler words": ("{{ lipsum(n=10 ** 7) }}", ". "),
    "links": ("{{ ('a@' * 9000000) | urlize | length }}", LIMIT),
    "wrapping": ("{{ ('x ' * 9000000) | wordwrap(1) | length }}", LIMIT),
    "macros": (MACRO, LIMIT),
    "nested loops": ("{% for a in range(99) %}" * 15 + "{% endfor %}" * 15, LIMIT),
    "many nested loops": (
        "{% for a in range(99) %}" * 30 + "{% endfor %}" * 30, LIMIT
    ),
    "many nested conditions": ("{% if x %}" * 120 + "{% endif %}" * 120, LIMIT),
    "parentheses": ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", LIMIT),
    "brackets": ("{{ " + "[" * 50_000 + "]" * 50_000 + " }}", LIMIT),
    "signs": ("{{ " + "-" * 50_000 + "1 }}", LIMIT),
    "subscripts": ("{{ x" + "[0]" * 50_000 + " }}", LIMIT),
    "a sum of many": ("{{ 1" + "+ 1" * 50_000 + " }}", LIMIT),
    "attributes": ("{{ x" + ".y" * 50_000 + " }}", LIMIT),
    "a namespace in itself": (
        "{% set n = namespace() %}{% set n.a = [n] %}{{ n }}{{ n.a == n.a }}{{ n.a | tojson }}",
        "not JSON serializable",
    ),
    "deep lists": (
        "{% set n = namespace(a=[], b=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}"
        "{% set n.b = [n.b] %}{% endfor %}{{ n.a == n.b }}",
        LIMIT,
    ),
    "deep lists as JSON": (
        "{% set n = namespace(a=[]) %}{% for i in range(99999) %}{% set n.a = [n.a] %}{% endfor %}"
        "{{ n.a | tojson }}",
        LIMIT,
    ),
    "an endless complaint": ("{{ raise_exception('x' * 30000000) }}", "^x{2000} …$"),
    "a complaint that can't be written": (SHARED + "{{ raise_exception(a) }}", LIMIT),
}  # fmt: skip


@pytest.fixture(scope="module")
def workers() -> Iterator[TemplateWorkers]:
    with contextlib.closing(TemplateWorkers(cpu_seconds=CPU_SECONDS)) as made:
        made.start()
        yield made


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_fail_by_themselves(workers: TemplateWorkers, attack: str) -> None:
    source, words = ATTACKS[attack]
    start = time.monotonic()
    with pytest.raises(TemplateFailure, match=words) as failed:
        workers.render(source, {"x": 1})
    assert len(str(failed.value)) < 2100
    assert time.monotonic() - start < 30
    assert workers.render("{{ x }}", {"x": "<é\ud800>"}) == "<é\ud800>"


def test_the_time_includes_compiling(workers: TemplateWorkers) -> None:
    with pytest.raises(TemplateFailure, match="took longer"):
        workers.inspect("{{ x }}" * 500_000)
    with pytest.raises(TemplateFailure, match=r"is wrong in line 2: .*endfor"):
        workers.inspect("x\n{% endfor %}")


@contextlib.contextmanager
def own_workers(processes: int) -> Iterator[tuple[TemplateWorkers, Callable[[], list[int]]]]:
    """Workers, and what says which processes they have."""
    before = children(os.getpid())

    def started() -> list[int]:
        return [child for child in children(os.getpid()) if child not in before]

    with contextlib.closing(TemplateWorkers(processes)) as workers:
        yield workers, started


def test_one_that_is_killed_does_not_delay_the_next() -> None:
    slow = SHARED + "{{ a == b }}"
    with contextlib.closing(TemplateWorkers(2, cpu_seconds=CPU_SECONDS)) as workers:
        workers.start()
        for _ in range(2):
            workers.render("ready", {})
        failures: list[Exception] = []

        def run_slow() -> None:
            try:
                workers.render(slow, {})
            except TemplateFailure as failure:
                failures.append(failure)

        thread = threading.Thread(target=run_slow)
        thread.start()
        count = 0
        while thread.is_alive():
            assert workers.render("{{ x }}", {"x": count}) == str(count)
            count += 1
        assert count > 20
        assert re.search(TIME, str(failures[0]))


def test_a_process_that_someone_kills_is_replaced() -> None:
    with own_workers(1) as (workers, started):
        for _ in range(3):
            assert workers.render("{{ x }}", {"x": 1}) == "1"
            [child] = started()
            os.kill(child, signal.SIGKILL)
    wait_until_gone([child])


def test_a_process_that_grew_large_is_replaced_by_a_small_one() -> None:
    with own_workers(1) as (workers, started):
        workers.start()
        [before] = started()
        for number in range(8):  # each is compiled anew, and what was compiled is kept
            text = workers.render(f"{number}{{% if x %}}{'🦙' * 2_500_000}{{% endif %}}", {})
            assert text == str(number)
        wait_until_gone([before])
        assert len(started()) == 1


def test_nothing_is_left_when_they_are_closed() -> None:
    with own_workers(2) as (workers, started):
        workers.start()
        assert workers.render("x", {}) == "x"
        processes = started()
        assert len(processes) == 2
        workers.close()
        wait_until_gone(processes)
        workers.close()
        with pytest.raises(TemplateProcessError):
            workers.render("x", {})


def test_nothing_is_left_when_they_are_forgotten() -> None:
    with own_workers(1) as (_, started):
        forgotten = TemplateWorkers(1)
        assert forgotten.render("x", {}) == "x"
        processes = started()
        assert len(processes) == 1
        del forgotten
        wait_until_gone(processes)


def test_closing_frees_who_waits() -> None:
    raised: list[Exception] = []
    with own_workers(1) as (workers, started):
        workers.render("x", {})

        def run() -> None:
            try:
                workers.render(SHARED + "{{ a == b }}", {})
            except Exception as error:
                raised.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        workers.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert [type(error) for error in raised] == [TemplateProcessError] * 3
        assert started() == []


PROGRAM = """
import sys
from caudal.formats.template_workers import TemplateWorkers
workers = TemplateWorkers(2)
workers.start()
print(workers.render("x", {}) + workers.render("x", {}), flush=True)
if "busy" in sys.argv:
    workers.render(sys.argv[2], {})
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["it ends", "killed", "busy and killed", "Ctrl-C"])
def test_they_end_with_their_parent(way: str) -> None:
    arguments = ["busy", SHARED + "{{ a == b }}"] if "busy" in way else []
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "xx\n"
        started = children(process.pid)
        assert len(started) == 2
        if way == "it ends":
            _, errors = process.communicate("", timeout=20)
            assert errors == ""
            assert process.returncode == 0
        elif way == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=20)
            assert errors.count("Traceback") == 1  # the parent's
            assert errors.rstrip().endswith("KeyboardInterrupt")
        else:
            process.kill()
        wait_until_gone(started)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with contextlib.closing(TemplateWorkers(1)) as workers:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(TemplateProcessError, match="did not start"):
            workers.render("x", {})
        monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
        with pytest.raises(TemplateProcessError, match="can't be started"):
            workers.render("x", {})
        monkeypatch.undo()
        assert workers.render("x", {}) == "x"


def test_templates_see_no_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAUDAL_API_KEY", "sesame")
    with own_workers(1) as (workers, started):
        workers.render("x", {})
        [child] = started()
        assert b"sesame" not in Path(f"/proc/{child}/environ").read_bytes()


@pytest.mark.parametrize("value", [{1, 2}, 10**5000, b"x"], ids=["set", "number", "bytes"])
def test_only_json_gets_there(workers: TemplateWorkers, value: Any) -> None:
    with pytest.raises(ParameterError, match="must be JSON values"):
        workers.render("{{ x }}", {"x": value})
