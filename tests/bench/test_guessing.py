"""Servers are asked for answers with guesses and without."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import guessing
from benchmarks.guessing import Drafts, measure_answers
from benchmarks.peers.base import PeerError

PROMPTS = [[1, 2], [3, 4]]
COUNTERS = {
    "caudal": (
        "caudal_speculative_proposed_tokens_total",
        "caudal_speculative_accepted_tokens_total",
    ),
    "vllm": (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    ),
}
"""What each program calls what it guessed, and what of it was right."""


@dataclass
class Server:
    """Answers at a length, counts guesses as one of the programs does."""

    counts: str = ""
    missing: int = 0
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        tokens = body["max_tokens"]
        answer: dict[str, Any] = {"usage": {"completion_tokens": tokens - self.missing}}
        if self.counts == "beside the answer":
            answer["timings"] = {"draft_n": tokens, "draft_n_accepted": tokens // 2}
        return answer

    def page(self) -> str:
        told = sum(body["max_tokens"] for body in self.asked)
        proposed, accepted = COUNTERS[self.counts]
        return (
            f"# TYPE {proposed} counter\n"
            f'{proposed}{{engine="0",model_name="m"}} {told}.0\n'
            f'{accepted}{{engine="0",model_name="m"}} {told // 4}.0\n'
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 99.0\n'
        )


@contextlib.contextmanager
def serving(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(server.status, json.dumps(server.answer(body)))

        def do_GET(self) -> None:
            if server.counts in COUNTERS:
                self._send(200, server.page())
            else:
                self._send(404, "{}")

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answers take 5 seconds, those of one token 1, the long ones 3."""
    times = iter([0.0, 5.0, 10.0, 11.0, 20.0, 23.0])
    monkeypatch.setattr(guessing, "time", SimpleNamespace(perf_counter=lambda: next(times)))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("counts", "drafts"),
    [
        ("", None),
        ("caudal", Drafts(256, 64)),
        ("vllm", Drafts(256, 64)),
        ("beside the answer", Drafts(256, 128)),
    ],
)
def test_a_rate_is_of_the_tokens_after_the_first(counts: str, drafts: Drafts | None):
    server = Server(counts)
    with serving(server) as url:
        assert measure_answers(url, "m", PROMPTS, 0.0) == (2 * 127 / 2, drafts)
    assert [body["max_tokens"] for body in server.asked] == [1, 1, 1, 1, 128, 128]
    assert sorted(body["prompt"] for body in server.asked[-2:]) == PROMPTS
    assert all(body["ignore_eos"] and body["temperature"] == 0.0 for body in server.asked)


def test_answers_of_another_length_are_found_out():
    with serving(Server(missing=1)) as url, pytest.raises(PeerError, match="generated 0 of 1"):
        measure_answers(url, "m", PROMPTS, 1.0)


def test_a_request_that_fails_says_why():
    with serving(Server(status=503)) as url, pytest.raises(PeerError, match="status 503"):
        measure_answers(url, "m", PROMPTS, 1.0)
    with pytest.raises(PeerError, match="a request failed: ConnectError"):
        measure_answers("http://127.0.0.1:1", "m", PROMPTS, 1.0)
