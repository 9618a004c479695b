"""systemd: what it is told of a server, and the unit that runs one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from caudal.server.limits import ServerLimits
from caudal.server.service_manager import notify
from support.fake_server_process import server

UNIT = Path(__file__).parents[2] / "deploy/systemd/caudal.service"


def test_the_service_manager_is_told_of_the_start_of_reloads_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(str(tmp_path / "notify"))
        ours.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def said() -> str:
            return re.sub("=[0-9]{3,}", "=TIME", ours.recv(1000).decode())

        with server("reloads") as (process, _):
            assert said() == "READY=1"
            process.send_signal(signal.SIGHUP)
            assert said() == "RELOADING=1\nMONOTONIC_USEC=TIME"
            assert said() == "READY=1"
            process.send_signal(signal.SIGTERM)
            assert said() == "STOPPING=1"


def test_a_service_manager_that_does_not_listen_is_no_failure(monkeypatch: pytest.MonkeyPatch):
    name = f"@caudal-{os.getpid()}"
    for place in ("/nowhere/at/all", "relative", name, ""):
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind("\0" + name[1:])
        ours.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1", "STATUS=x")
        assert ours.recv(100) == b"READY=1\nSTATUS=x"


def test_the_unit_waits_longer_than_the_server_drains():
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    limits = ServerLimits()
    assert seconds is not None
    assert int(seconds[1]) > limits.notice_seconds + limits.drain_seconds + 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path):
    text = UNIT.read_text()
    assert text.count("ExecStart=/opt/caudal/bin/caudal serve --config") == 1
    unit = tmp_path / UNIT.name  # where the command exists
    unit.write_text(text.replace("ExecStart=/opt/caudal/bin/caudal", f"ExecStart={sys.executable}"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
