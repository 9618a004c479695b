"""A crowd of all kinds of clients at a server, for some seconds; `make soak` has it for longer."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from soak.run import Soak, run

SECONDS = 8
CLIENTS = 40


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_nothing_is_left_of_a_crowd(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    findings = run(Soak(seconds=SECONDS, clients=CLIENTS, seed=seed, folder=tmp_path))
    print(f"seed {seed}\n{findings.table()}")
    assert not findings.wrong
    assert all(findings.outcomes[f"{each}"] for each in ("asks: right", "drain: finished"))
