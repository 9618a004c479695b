"""What passes between the process that wants a chat template rendered and the one that renders it.

A question is a template's source and, to have it rendered, its variables as JSON; without them the
answer is what its syntax shows. Both come in frames, over a socket between the two.
"""

from __future__ import annotations

import enum
import socket
import struct

MEMORY = 512 << 20
"""Bytes of memory that the process may have: one that waits has some 40 MiB."""

MAX_FRAME = 128 << 20
"""Bytes of variables, and of an answer: what a process with so much memory can work with."""

_QUESTION = struct.Struct("!II")
_ANSWER = struct.Struct("!B?I")


class Kind(enum.IntEnum):
    """What an answer is."""

    READY = 0
    """None yet: the process has started."""

    FACTS = 1
    """`TemplateFacts` as JSON."""

    TEXT = 2
    """What the template wrote."""

    REFUSED = 3
    """What the template said when it called `raise_exception`."""

    FAILED = 4
    """What is wrong with the template, as the end of a sentence that begins with its name."""


def send_question(channel: socket.socket, source: bytes, variables: bytes) -> None:
    """Ask for a rendering, or, where `variables` is empty, for facts."""
    channel.sendall(b"".join((_QUESTION.pack(len(source), len(variables)), source, variables)))


def receive_question(channel: socket.socket) -> tuple[bytes, bytearray]:
    """The next source and variables.

    Raises:
        EOFError: There is none: the other side has gone.
    """
    first, second = _QUESTION.unpack(_receive(channel, _QUESTION.size))
    return bytes(_receive(channel, first)), _receive(channel, second)


def send_answer(channel: socket.socket, kind: Kind, text: str, *, is_last: bool = False) -> None:
    """Answer a question. After the last answer the process ends."""
    encoded = text.encode("utf-8", "surrogatepass")
    channel.sendall(_ANSWER.pack(kind, is_last, len(encoded)))
    channel.sendall(encoded)


def receive_answer(channel: socket.socket) -> tuple[Kind, str, bool]:
    """The next answer, and whether it is the last.

    Raises:
        EOFError: The other side has gone, or sends more than it may.
        TimeoutError: It took longer than the socket's time-out.
    """
    kind, is_last, length = _ANSWER.unpack(_receive(channel, _ANSWER.size))
    if length > MAX_FRAME:
        raise EOFError
    return Kind(kind), _receive(channel, length).decode("utf-8", "surrogatepass"), is_last


def _receive(channel: socket.socket, length: int) -> bytearray:
    received = bytearray(length)
    view = memoryview(received)
    while view:
        count = channel.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]
    return received
