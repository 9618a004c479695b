from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from httptools import HttpParserError

from caudal.bench.serving import http_client
from caudal.bench.serving.http_client import (
    ConnectionClosedError,
    EndlessAnswerError,
    StreamClient,
    StreamedAnswer,
)
from caudal.bench.serving.streams import timed_events
from caudal.errors import ParameterError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHOICE = b'data: {"choices":[{"text":"a"}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def ask(
    pieces: Sequence[bytes], *, close: bool, times: int = 1, read_seconds: float = 30
) -> list[StreamedAnswer]:
    """Ask a server that answers every request with the same pieces, each in a packet of its own."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.read(1000):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            if close:
                writer.close()
                return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = StreamClient(f"http://127.0.0.1:{port}", read_seconds=read_seconds)
    try:
        answers = [await client.post("/", b"{}") for _ in range(times)]
    finally:
        client.close()
        server.close()
    assert connections == (times if close else 1)
    return answers


def test_answers_in_chunks_come_over_one_connection():
    pieces = [CHUNKED, chunk(b": ping\n\n"), chunk(CHOICE[:9]), chunk(CHOICE[9:]), chunk(b"")]
    first, second = asyncio.run(ask(pieces, close=False, times=2))
    assert first.status == 200
    assert first.body == second.body == b": ping\n\n" + CHOICE
    [(came, event)] = timed_events(first.pieces)
    assert b"data:" + event in CHOICE.replace(b" ", b"")
    assert came == first.pieces[-1][0]  # when its end came
    assert second.pieces[-1][0] - came > 0.03


def test_an_answer_of_no_length_ends_with_the_connection():
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    answers = asyncio.run(ask([head, CHOICE, CHOICE], close=True, times=2))
    assert [answer.body for answer in answers] == [CHOICE * 2] * 2


@pytest.mark.parametrize(
    "pieces",
    [[], [CHUNKED], [CHUNKED, chunk(CHOICE)], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123"]],
)
def test_a_connection_that_ends_too_early(pieces: list[bytes]):
    with pytest.raises(ConnectionClosedError):
        asyncio.run(ask(pieces, close=True))


def test_an_idle_connection_that_the_server_closes_is_replaced():
    async def ask_twice() -> tuple[list[bytes], int]:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.read(1000)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % connections)
            await reader.read(1000)  # the next request, which it doesn't answer any more
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = StreamClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            return [(await client.post("/", b"{}")).body for _ in range(2)], connections
        finally:
            client.close()
            server.close()

    assert asyncio.run(ask_twice()) == ([b"1", b"2"], 2)


def test_a_server_that_sends_nothing():
    with pytest.raises(TimeoutError):
        asyncio.run(ask([], close=False, read_seconds=0.02))


def test_answers_without_end(monkeypatch: pytest.MonkeyPatch):
    pings = [CHUNKED, *[chunk(b": ping\n\n")] * 200]
    with monkeypatch.context() as patched, pytest.raises(EndlessAnswerError, match="MiB"):
        patched.setattr(http_client, "MOST_BYTES", 200)
        asyncio.run(ask(pings, close=False))
    monkeypatch.setattr(http_client, "LONGEST", 0.5)
    with pytest.raises(EndlessAnswerError, match=r"no end in 0\.2 s"):
        asyncio.run(ask(pings, close=False, read_seconds=0.4))


def test_another_protocol_is_none_of_ours():
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    with pytest.raises(HttpParserError, match="another protocol"):
        asyncio.run(ask([switch], close=False))


def test_an_answer_is_what_follows_hints():
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"
    [answer] = asyncio.run(ask([hint, CHUNKED, chunk(CHOICE), chunk(b"")], close=False))
    assert (answer.status, answer.body) == (200, CHOICE)


def test_events_end_at_done():
    body = CHOICE + b": ping\r\n\r\ndata: 2\r\n\r\ndata: [DONE]\n\ndata: 3\n\n"
    assert list(timed_events([(1.0, body)])) == [(1.0, CHOICE[6:-2]), (1.0, b"2")]
    assert list(timed_events([(1.0, b"data: 1")])) == []
    bytes_alone = [(float(n), body[n : n + 1]) for n in range(len(body))]
    [first, second] = timed_events(bytes_alone)
    assert first == (len(CHOICE) - 1.0, CHOICE[6:-2])
    assert second[1] == b"2"


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://h:99999",
        "http://h:abc",
        "http://h/a b",
        "http://user:secret@h",
    ],
)
def test_what_is_no_address(url: str):
    with pytest.raises(ParameterError) as caught:
        StreamClient(url)
    assert caught.value.param == "url"


@pytest.mark.parametrize("key", ["a b", "a\r\nHost: other", "clé"])
def test_a_key_that_is_no_header(key: str):
    with pytest.raises(ParameterError, match="An API key has no spaces"):
        StreamClient("http://localhost", key)
