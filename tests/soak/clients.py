"""Clients of every kind. Each does what it does, over and over, until it is told the time is up."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from soak.findings import Findings
from soak.keys import Keys
from soak.questions import Answers, Question, StreamedTexts, texts
from support.raw_client import exchange

LOST = 120.0
"""Seconds after which a request without an answer is lost."""

REVOKED_SECONDS = 5.0
"""In which a stream ends whose key is revoked; keys are looked at once a second."""

LONG_ANSWER = 900

NONSENSE: Sequence[bytes] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"model": 1}',
    b'{"prompt": {"a": [1]}, "messages": 7, "input": {"b": 2}, "content": 3}',
    b"[" * 5000,
)
"""What is refused by every route."""

ODD: Sequence[bytes] = (
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "temperature": 1e400}',
    b'{"prompt": "x", "max_tokens": 99999999999999999999}',
    b'{"prompt": [[1, 2], "x", null]}',
    b'{"prompt": [999999999]}',
    b'{"prompt": "x", "logit_bias": {"999999": 1}}',
    b'{"prompt": "x", "n": 100000}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "' + b"x" * 200_000 + b'"}',
)
"""What some routes refuse, and others have an answer to."""


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What all clients know.

    Attributes:
        url: The server's address.
        model: The model's name.
        keys: The clients' keys.
        answers: What is asked, and how it is answered.
        findings: Where they say what they saw.
        deadline: When they stop to ask, on the monotonic clock.
    """

    url: str
    model: str
    keys: Keys
    answers: Answers
    findings: Findings
    deadline: float

    def client(self, key: str) -> httpx.AsyncClient:
        """One with a key."""
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=LOST)

    def runs(self) -> bool:
        """Whether there is time for more."""
        return time.monotonic() < self.deadline

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return await asyncio.open_connection(parts.hostname, parts.port)


Client = Callable[[Crowd, random.Random], Awaitable[None]]


async def asks(crowd: Crowd, generator: random.Random) -> None:
    """Asks, whole or as a stream, and compares; goes away from some answers."""
    async with crowd.client(crowd.keys.polite) as http:
        while crowd.runs():
            question = generator.choice(list(crowd.answers))
            leaves = generator.random() < 0.15
            try:
                if generator.random() < 0.5:
                    await _streams(crowd, http, question, generator if leaves else None)
                else:
                    await _waits(crowd, http, question, generator if leaves else None)
            except httpx.HTTPError as error:
                crowd.findings.blame("asks", f"lost: {error!r}")
            await asyncio.sleep(generator.random() * 0.2)


async def _waits(
    crowd: Crowd, http: httpx.AsyncClient, question: Question, leaves: random.Random | None
) -> None:
    asking = http.post("/v1/completions", json=question.body(crowd.model, stream=False))
    if leaves is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asking, leaves.random() * 0.5)
        crowd.findings.count("asks", "left")
        return
    reply = await asking
    if reply.status_code != 200:
        crowd.findings.refused("asks", reply.status_code, reply.headers, reply.json().get("error"))
        return
    _compare(crowd, question, texts(reply.json()))


async def _streams(
    crowd: Crowd, http: httpx.AsyncClient, question: Question, leaves: random.Random | None
) -> None:
    got = StreamedTexts(question.n)
    lines = leaves.randrange(6) if leaves is not None else -1
    body = question.body(crowd.model, stream=True)
    async with http.stream("POST", "/v1/completions", json=body) as reply:
        if reply.status_code != 200:
            await reply.aread()
            error = reply.json().get("error")
            crowd.findings.refused("asks", reply.status_code, reply.headers, error)
            return
        async for line in reply.aiter_lines():
            if lines == 0:
                crowd.findings.count("asks", "left")
                return
            lines -= 1
            got.add(line)
    if got.error is not None:
        crowd.findings.blame("asks", f"a stream ended with {got.error}")
    elif not got.whole:
        crowd.findings.blame("asks", "a stream ended without its end")
    else:
        _compare(crowd, question, got.texts)


def _compare(crowd: Crowd, question: Question, answer: list[str]) -> None:
    expected = crowd.answers[question]
    if answer == expected:
        crowd.findings.count("asks", "right")
    else:
        crowd.findings.blame("asks", f"wrong answer: {answer} instead of {expected}")


async def reads_slowly(crowd: Crowd, generator: random.Random) -> None:
    """Asks for a long answer and hardly reads it."""
    body = f'{{"model": "{crowd.model}", "prompt": "slow", "max_tokens": {LONG_ANSWER}, '
    body += '"ignore_eos": true, "stream": true}'
    while crowd.runs():
        with contextlib.suppress(OSError):
            reader, writer = await crowd.connect()
            try:
                writer.write(_post("/v1/completions", crowd.keys.polite, body.encode()))
                await writer.drain()
                until = time.monotonic() + generator.uniform(1, 10)
                while crowd.runs() and time.monotonic() < until:
                    if not await reader.read(64):
                        break
                    await asyncio.sleep(0.3)
                crowd.findings.count("reads slowly", "left")
            finally:
                writer.close()


async def sends_nonsense(crowd: Crowd, generator: random.Random) -> None:
    """Sends bodies that make no sense: each is refused as the client's fault."""
    paths = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/embeddings")
    async with crowd.client(crowd.keys.polite) as http:
        while crowd.runs():
            body = generator.choice((*NONSENSE, *ODD))
            path = generator.choice((*paths, "/v1/responses", "/api/chat", "/tokenize"))
            headers = {"Content-Type": "application/json"}
            try:
                reply = await http.post(path, content=body, headers=headers)
            except httpx.HTTPError as error:
                crowd.findings.blame("nonsense", f"lost: {error!r}")
                continue
            if 400 <= reply.status_code < 500 or (reply.status_code == 200 and body in ODD):
                crowd.findings.count("nonsense", f"{reply.status_code}")
            elif reply.status_code == 503 and "retry-after" in reply.headers:
                crowd.findings.count("nonsense", "503")
            else:
                said = f"{path} {body[:60]!r}: {reply.status_code} {reply.text[:200]}"
                crowd.findings.blame("nonsense", said)
            await asyncio.sleep(generator.random() * 0.1)


async def breaks_the_protocol(crowd: Crowd, generator: random.Random) -> None:
    """Sends headers without end, or slowly, half a body, or what isn't HTTP at all."""
    key = crowd.keys.polite
    begun = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    while crowd.runs():
        harm = generator.choice(("huge", "many", "slow", "half", "noise", "pipelined"))
        with contextlib.suppress(OSError):
            reader, writer = await crowd.connect()
            try:
                match harm:
                    case "huge":
                        writer.write(begun + b"X-Huge: " + b"x" * 200_000 + b"\r\n\r\n")
                    case "many":
                        writer.write(begun + b"X-Many: x\r\n" * 5000 + b"\r\n")
                    case "slow":
                        for byte in begun:
                            writer.write(bytes([byte]))
                            await asyncio.sleep(0.1)
                            if not crowd.runs() or writer.is_closing():
                                break
                    case "half":
                        whole = _post("/v1/completions", key, b'{"prompt": "' + b"x" * 1000)
                        writer.write(
                            whole.replace(b"Content-Length: 1012", b"Content-Length: 9999")
                        )
                        await asyncio.sleep(generator.uniform(0, 2))
                    case "noise":
                        writer.write(generator.randbytes(2000))
                    case _:
                        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(65536), 1)
                crowd.findings.count("breaks the protocol", harm)
            finally:
                writer.close()
        await asyncio.sleep(generator.random() * 0.3)


async def has_no_key(crowd: Crowd, generator: random.Random) -> None:
    """Tries keys that there aren't."""
    async with httpx.AsyncClient(base_url=crowd.url, timeout=LOST) as http:
        while crowd.runs():
            given = generator.choice(({}, {"Authorization": "Bearer nobody"}, {"x-api-key": "x"}))
            path = generator.choice(("/v1/models", "/metrics", "/api/tags", "/v1/completions"))
            try:
                reply = await http.get(path, headers=given)
            except httpx.HTTPError as error:
                crowd.findings.blame("no key", f"lost: {error!r}")
                continue
            if reply.status_code == 401:
                crowd.findings.count("no key", "401")
            else:
                crowd.findings.blame("no key", f"{path}: {reply.status_code}")
            await asyncio.sleep(generator.random())


async def is_revoked(crowd: Crowd, generator: random.Random) -> None:
    """Loses its key in the middle of an answer, which ends then with an error that says so."""
    while crowd.runs():
        name, key = await asyncio.to_thread(crowd.keys.add, generator)
        body = {"model": crowd.model, "prompt": "long", "max_tokens": LONG_ANSWER, "n": 3}
        body |= {"ignore_eos": True, "stream": True}
        got, revoked = StreamedTexts(3), 0.0
        try:
            async with (
                crowd.client(key) as http,
                http.stream("POST", "/v1/completions", json=body) as reply,
            ):
                if reply.status_code != 200:
                    await reply.aread()
                    error = reply.json().get("error")
                    crowd.findings.refused("revoked", reply.status_code, reply.headers, error)
                    await asyncio.to_thread(crowd.keys.revoke, name)
                    continue
                async for line in reply.aiter_lines():
                    got.add(line)
                    if not revoked and line.startswith("data: "):
                        await asyncio.to_thread(crowd.keys.revoke, name)
                        revoked = time.monotonic()
        except httpx.HTTPError as error:
            crowd.findings.blame("revoked", f"lost: {error!r}")
            continue
        took = time.monotonic() - revoked
        if got.error is None:
            # A quick machine has said all of it before anyone looks at the keys.
            crowd.findings.count("revoked", "the answer was quicker")
        elif took > REVOKED_SECONDS:
            crowd.findings.blame("revoked", f"went on for {took:.1f} s")
        else:
            crowd.findings.count("revoked", f"ended: {got.error.get('code')}")
        async with crowd.client(key) as http:
            while (reply := await http.get("/v1/models")).status_code != 401:
                if time.monotonic() - revoked > REVOKED_SECONDS:
                    crowd.findings.blame("revoked", f"afterwards {reply.status_code}")
                    break
                await asyncio.sleep(0.1)
        await asyncio.sleep(generator.uniform(0.5, 2))


async def has_a_quota(crowd: Crowd, generator: random.Random) -> None:
    """Asks more often than its key may, several at once."""
    async with crowd.client(crowd.keys.limited) as http:
        while crowd.runs():
            body = {"model": crowd.model, "prompt": "q", "max_tokens": 1}
            sent = time.monotonic()
            try:
                reply = await http.post("/v1/completions", json=body)
            except httpx.HTTPError as error:
                crowd.findings.blame("quota", f"lost: {error!r}")
                continue
            if reply.status_code == 200:
                crowd.keys.admitted.append((sent, time.monotonic()))
                crowd.findings.count("quota", "200")
            else:
                error = reply.json().get("error")
                crowd.findings.refused("quota", reply.status_code, reply.headers, error)
            await asyncio.sleep(generator.random() * 0.5)


async def probes(crowd: Crowd, generator: random.Random) -> None:
    """Looks whether the server is well, as Kubernetes does: by a new connection each time."""
    while crowd.runs():
        path = generator.choice(("/health", "/ready"))
        # In a thread, or it would be measured what else this process's loop has to do.
        seconds, reply = await asyncio.to_thread(_probe, crowd.url, path)
        crowd.findings.probes.append(seconds)
        if not reply.startswith(b"HTTP/1.1 200 "):
            crowd.findings.blame("probes", f"{path}: {reply[:100]!r}")
        await asyncio.sleep(0.1)


def _probe(url: str, path: str) -> tuple[float, bytes]:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    begin = time.monotonic()
    try:
        reply = exchange(url, request.encode())
    except OSError as error:
        reply = repr(error).encode()
    return time.monotonic() - begin, reply


async def scrapes(crowd: Crowd, generator: random.Random) -> None:
    """Reads the figures."""
    async with crowd.client(crowd.keys.admin) as http:
        while crowd.runs():
            try:
                reply = await http.get("/metrics")
            except httpx.HTTPError as error:
                crowd.findings.blame("scrapes", f"lost: {error!r}")
                continue
            if reply.status_code != 200:
                crowd.findings.blame("scrapes", f"{reply.status_code}: {reply.text[:200]}")
            await asyncio.sleep(1)


def _post(path: str, key: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


SHARES: Sequence[tuple[Client, float]] = (
    (asks, 0.66),
    (reads_slowly, 0.08),
    (sends_nonsense, 0.06),
    (breaks_the_protocol, 0.08),
    (has_no_key, 0.04),
    (has_a_quota, 0.04),
    (is_revoked, 0.02),
)
"""Which part of the clients is of which kind."""


def crowd_of(count: int) -> list[Client]:
    """Clients of every kind, one of each at least, and those who look after the server."""
    clients: list[Client] = [probes, scrapes]
    for client, share in SHARES:
        clients += [client] * max(1, round(count * share))
    return clients
