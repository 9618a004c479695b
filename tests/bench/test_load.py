from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from caudal.bench.load import Answer, Arrivals, LoadReport, Workload, distribution, run_load
from caudal.cli.app import app
from caudal.errors import ParameterError
from caudal.server.serving import listen
from support.fake_model import END, ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server

GOOD = b'data: {"choices":[{}]}\n\ndata: {"usage":{"completion_tokens":9}}\n\ndata: [DONE]\n\n'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server whose model ends an answer after five tokens, unless told to ignore that."""
    with running_server(serve_fake(ScriptedExecutor(script=b"hello"))) as running:
        yield running


class Peer:
    """A server that answers every request with the same bytes, in groups of a given size."""

    def __init__(self, script: bytes, together: int) -> None:
        self.bodies: list[dict[str, object]] = []
        self.most_at_once = 0
        self._now = 0
        self._script = script
        self._barrier = asyncio.Barrier(together)

    async def answer(self, request: Request) -> StreamingResponse:
        self.bodies.append(await request.json())

        async def stream() -> AsyncIterator[bytes]:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            await self._barrier.wait()
            self._now -= 1
            yield self._script

        return StreamingResponse(stream(), media_type="text/event-stream")


@contextlib.contextmanager
def scripted_peer(script: bytes, together: int = 1) -> Iterator[tuple[Peer, str]]:
    peer = Peer(script, together)
    routes = [Route("/v1/completions", peer.answer, methods=["POST"])]
    sock = listen("127.0.0.1", 0)
    uvicorn_server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error"))
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield peer, f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        uvicorn_server.should_exit = True
        thread.join()


def load(url: str, arrivals: Arrivals | None = None, **changes: int) -> LoadReport:
    shape = {"requests": 6, "prompt_tokens": 4, "output_tokens": 9, "vocab_size": END}
    workload = Workload(**(shape | changes))
    return asyncio.run(run_load(url, "fake", workload, arrivals or Arrivals(concurrency=3)))


def test_every_request_generates_what_was_asked_for(server: RunningServer):
    report = load(server.url)
    assert (report.requests, report.failed, report.errors) == (6, 0, {})
    assert report.output_rate == pytest.approx(6 * 9 / report.seconds)
    assert report.total_rate == pytest.approx(6 * (4 + 9) / report.seconds)
    assert 0 < report.first_token["p50"] <= report.first_token["p99"] <= report.seconds


def test_poisson_arrivals_are_kept(server: RunningServer):
    arrivals = Arrivals(rate=200, concurrency=6)
    report = load(server.url, arrivals)
    assert report.failed == 0
    assert report.seconds > arrivals.times(6, seed=0)[-1]


def test_an_unknown_model_fails_every_request_with_the_servers_words(server: RunningServer):
    workload = Workload(requests=2, prompt_tokens=1, output_tokens=1, vocab_size=END)
    report = asyncio.run(run_load(server.url, "other", workload, Arrivals(concurrency=1)))
    assert (report.failed, report.total_rate, report.first_token) == (2, 0, {})
    [(error, count)] = report.errors.items()
    assert count == 2
    assert error.startswith("status 404")
    assert "other" in error


def test_nobody_there():
    report = load("http://127.0.0.1:1")
    assert report.failed == 6
    assert all("ConnectionRefusedError" in error for error in report.errors)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (b'data: {"choices":[{}]}\n\ndata: {"usage":{"completion_tokens":8}}\n\n', "8 of 9"),
        (b'data: {"choices":[{}]}\n\n', "generated 0 of 9"),
        (b'data: {"error":{"message":"no room"}}\n\n', "no room"),
        (b"data: {broken\n\n", "JSONDecodeError"),
    ],
)
def test_streams_that_end_wrongly(script: bytes, error: str):
    with scripted_peer(script) as (_, url):
        report = load(url)
    assert report.failed == 6
    [words] = report.errors
    assert error in words


def test_as_many_requests_as_allowed_are_under_way_and_no_more():
    with scripted_peer(GOOD, together=2) as (peer, url):  # hangs with fewer
        report = load(url, Arrivals(concurrency=2), requests=8)
    assert report.failed == 0
    assert peer.most_at_once == 2
    assert len(peer.bodies) == 8
    for body in peer.bodies:
        assert body["temperature"] == 0
        assert body["ignore_eos"] is True
        assert body["max_tokens"] == 9


def test_prefixes_take_turns_and_everything_else_differs():
    workload = Workload(
        requests=5, prompt_tokens=6, output_tokens=1, prefixes=2, prefix_tokens=10, vocab_size=99999
    )
    prompts = workload.prompts()
    assert [len(prompt) for prompt in prompts] == [16] * 5
    assert prompts[0][:10] == prompts[2][:10] == prompts[4][:10]
    assert prompts[1][:10] == prompts[3][:10] != prompts[0][:10]
    assert len({tuple(prompt[10:]) for prompt in prompts}) == 5
    assert prompts == workload.prompts()


def test_a_seed_decides_prompts_and_times():
    def prompts(seed: int) -> list[list[int]]:
        return Workload(
            requests=3, prompt_tokens=4, output_tokens=1, vocab_size=1000, seed=seed
        ).prompts()

    arrivals = Arrivals(rate=10, concurrency=1)
    assert prompts(1) == prompts(1) != prompts(2)
    assert arrivals.times(5, 1) == arrivals.times(5, 1) != arrivals.times(5, 2)
    assert Arrivals(concurrency=1).times(3, 1) == [0.0] * 3
    many = arrivals.times(10_000, 3)
    assert many == sorted(many)
    assert many[-1] / len(many) == pytest.approx(1 / 10, rel=0.05)


def test_the_report_counts_successes_only():
    answers = [
        Answer(asked=1.0, first=2.0, ended=4.0, prompt_tokens=10, output_tokens=5),
        Answer(asked=1.5, first=4.5, ended=6.5, prompt_tokens=10, output_tokens=5),
        Answer(asked=1.0, first=1.1, ended=11.0, prompt_tokens=10, output_tokens=3, error="gone"),
        Answer(asked=1.0, ended=1.2, prompt_tokens=10, error="gone"),
    ]
    report = LoadReport.of(answers)
    assert (report.requests, report.failed, report.errors) == (4, 2, {"gone": 2})
    assert report.seconds == 10.0
    assert report.total_rate == 3.0
    assert report.output_rate == 1.0
    assert report.first_token["mean"] == 2.0
    assert report.per_token["mean"] == 0.5
    assert json.loads(report.to_json())["failed"] == 2


def test_percentiles_are_values_that_occurred():
    assert distribution([]) == {}
    assert distribution([3.0]) == {"mean": 3.0, "p50": 3.0, "p90": 3.0, "p99": 3.0}
    hundred = distribution([float(n) for n in range(1, 101)])
    assert hundred == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"requests": 0}, "requests"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"output_tokens": -1}, "output_tokens"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"prefixes": 1}, "prefixes"),
        ({"prefix_tokens": 1}, "prefixes"),
        ({"prefixes": -1, "prefix_tokens": 4}, "prefixes"),
    ],
)
def test_numbers_that_make_no_sense(changes: dict[str, int], param: str):
    with pytest.raises(ParameterError) as caught:
        load("http://127.0.0.1:1", **changes)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "arrivals",
    [Arrivals(concurrency=0), *(Arrivals(rate=r, concurrency=1) for r in (0, -1, math.nan))],
)
def test_arrivals_that_make_no_sense(arrivals: Arrivals):
    with pytest.raises(ParameterError):
        load("http://127.0.0.1:1", arrivals)


def test_the_command(server: RunningServer):
    options = [
        *("--requests", "4", "--concurrency", "2", "--prompt-tokens", "3"),
        *("--output-tokens", "7", "--vocab-size", "250"),
    ]
    runner = CliRunner()
    shown = runner.invoke(app, ["bench", "serve", server.url + "/", "fake", *options])
    assert shown.exit_code == 0, shown.output
    assert "4, 0 failed" in shown.output
    printed = runner.invoke(app, ["bench", "serve", server.url, "fake", *options, "--json"])
    assert json.loads(printed.output)["requests"] == 4
    failed = runner.invoke(app, ["bench", "serve", server.url, "nobody", *options])
    assert failed.exit_code == 1
    assert "failed 4x" in failed.output
