"""What systemd is told of a server that it runs (`Type=notify`): sd_notify(3).

A few lines of text in a datagram, to the socket that NOTIFY_SOCKET names; without one, nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time


def notify(*lines: str) -> None:
    """Tell the service manager something; that it doesn't listen is no failure of ours.

    Args:
        lines: Assignments, such as `READY=1`.
    """
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.setblocking(False)
        sock.sendto("\n".join(lines).encode(), address)


def notify_ready() -> None:
    """Requests are answered; also where everything has been read anew."""
    notify("READY=1")


def notify_reloading() -> None:
    """Files are being read anew."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def notify_stopping() -> None:
    """It drains, and ends."""
    notify("STOPPING=1")
