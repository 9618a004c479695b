"""The countdown to the end of a process that was told to stop."""

from __future__ import annotations

import subprocess
import sys

LIFE = """
import time
from caudal.server.last_resort import LastResort

countdown = LastResort(3.0, 0.1)
time.sleep(3.2)  # serving
countdown.hurry()
time.sleep(0.5)
print("draining", flush=True)
countdown.hurry()
time.sleep(60)
print("too late", flush=True)
"""


def test_time_counts_from_the_signal_and_not_from_the_start() -> None:
    process = subprocess.run(
        [sys.executable, "-c", LIFE], capture_output=True, text=True, timeout=50, check=True
    )
    assert process.stdout == "draining\n"
    assert "not everything could be stopped in time" in process.stderr
