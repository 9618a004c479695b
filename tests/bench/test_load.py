from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from caudal.bench.serving.answers import Answer
from caudal.bench.serving.arrivals import Arrivals
from caudal.bench.serving.display import ProgressLine, print_report
from caudal.bench.serving.http_client import StreamClient
from caudal.bench.serving.measuring import measure
from caudal.bench.serving.report import Report, Summary
from caudal.bench.serving.runner import Progress
from caudal.bench.serving.settings import LoadSettings
from caudal.bench.serving.slo import Slo
from caudal.bench.serving.sweep import rates_to_measure
from caudal.bench.serving.target import NobodyThereError, Target, find_target, settle
from caudal.cli.app import app
from caudal.errors import ParameterError
from support.fake_model import END, ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server
from support.scripted_peer import scripted_peer

GOOD = b'data: {"choices":[{}]}\n\ndata: {"usage":{"completion_tokens":9}}\n\ndata: [DONE]\n\n'

SMALL = LoadSettings(
    requests=6, prompt_tokens="4", output_tokens="9", vocab_size=END, concurrency=3
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server whose model ends an answer after five tokens, unless told to ignore that."""
    with running_server(serve_fake(ScriptedExecutor(script=b"hello"))) as running:
        yield running


def load(url: str, model: str | None = "fake", **changes: Any) -> Report:
    settings = msgspec.structs.replace(SMALL, **changes)
    return asyncio.run(measure(url, model, settings))


def summary(report: Report) -> Summary:
    [phase] = report.phases
    return phase.summary


def test_every_request_generates_what_was_asked_for(server: RunningServer):
    report = load(server.url)
    figures = summary(report)
    assert (figures.requests, figures.failed, figures.errors) == (6, 0, {})
    assert figures.output_rate == pytest.approx(6 * 9 / figures.seconds)
    assert figures.total_rate == pytest.approx(6 * (4 + 9) / figures.seconds)
    assert 0 < figures.ttft["p50"] <= figures.ttft["p99"] <= figures.seconds
    assert figures.itl["max"] <= figures.e2e["max"]
    for answer in report.phases[0].answers:
        assert answer.prompt_tokens == 4
        assert answer.cached_tokens is not None
    assert report.target.program == "caudal"
    assert report.settings.prompts == "ids"
    queue = report.phases[0].queue
    assert queue is not None
    assert 0 <= queue["mean"] <= figures.e2e["max"]


def test_poisson_arrivals_are_kept(server: RunningServer):
    report = load(server.url, rate=200, concurrency=None)
    assert summary(report).failed == 0
    due = sorted(answer.due for answer in report.phases[0].answers)
    times = Arrivals(rate=200).times(Random("0/times of measured"))
    assert due == pytest.approx(list(islice(times, 6)))
    assert all(answer.sent >= answer.due for answer in report.phases[0].answers)


def test_latency_counts_from_when_a_request_was_due_and_not_from_its_turn():
    with scripted_peer(GOOD, seconds=0.03) as (peer, url):
        answers = load(url, rate=1000, concurrency=1).phases[0].answers
    assert peer.most_at_once == 1
    assert answers[-1].ttft is not None
    assert answers[-1].ttft > 6 * 0.03 - 0.02
    with scripted_peer(GOOD, seconds=0.03) as (_, url):
        closed = load(url, concurrency=1).phases[0].answers
    assert closed[-1].due > 5 * 0.03


def test_an_unknown_model_fails_every_request_with_the_servers_words(server: RunningServer):
    figures = summary(load(server.url, "other", requests=2))
    assert (figures.failed, figures.total_rate, figures.ttft) == (2, 0, {})
    [(kind, failures)] = figures.errors.items()
    assert (kind, failures.count) == ("status 404", 2)
    assert "other" in failures.example


def test_nobody_there():
    with pytest.raises(NobodyThereError, match=r"nobody answers at http://127\.0\.0\.1:1"):
        load("http://127.0.0.1:1")


def test_a_server_with_keys():
    model = serve_fake(ScriptedExecutor(script=b"hello"))
    with running_server(model, api_key="secret") as server:
        with pytest.raises(NobodyThereError, match="--api-key"):
            load(server.url)
        report = asyncio.run(measure(server.url, None, SMALL, api_key="secret"))
    assert summary(report).failed == 0


def test_the_line_that_shows_how_far_it_is():
    progress = Progress()
    line = ProgressLine(progress)
    assert "asking the server" in str(line.__rich__())
    progress.begin("warm", None)
    progress.expected = 8
    progress.sent, progress.ended, progress.output_tokens = 5, 3, 30
    progress.errors["status 503"] += 1
    shown = str(line.__rich__())
    assert "warm: 3 of 8" in shown
    assert "2 running" in shown
    assert "failed: 1x status 503" in shown
    assert "output tok/s" in shown
    progress.begin("rate 4", 15.0)
    assert "0, 0 of 15 s" in str(line.__rich__())


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (
            b'data: {"choices":[{}]}\n\ndata: {"usage":{"completion_tokens":8}}\n\n',
            "wrong length",
            "8 of 9",
        ),
        (b'data: {"choices":[{}]}\n\n', "wrong length", "generated 1 of 9"),
        (b"data: [DONE]\n\n", "wrong length", "generated 0 of 9"),
        (b'data: {"error":{"message":"no room"}}\n\n', "error in the stream", "no room"),
        (b"data: {broken\n\n", "protocol", "malformed"),
        (b'data: {"choices":5}\n\n', "protocol", "choices"),
        (b'data: {"x":' + b"[" * 9999 + b"\n\n", "protocol", "nested too deeply"),
        (b'data: {"usage":{"completion_tokens":-9}}\n\n', "protocol", "completion_tokens"),
        (
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":-3}]}}]}\n\n',
            "wrong length",
            "generated 1 of 9",
        ),
        (b"<html>Welcome</html>", "protocol", "Welcome"),
        (b": ping\n\n", "protocol", "no events"),
    ],
)
def test_streams_that_end_wrongly(script: bytes, kind: str, words: str):
    with scripted_peer(script) as (_, url):
        figures = summary(load(url))
    assert figures.failed == 6
    [(found, failures)] = figures.errors.items()
    assert found == kind
    assert words in failures.example


@pytest.mark.parametrize(
    "models",
    [
        {"data": 5},
        {
            "data": [
                {"id": 5, "owned_by": "caudal", "aliases": 7, "meta": {"n_vocab": 10**30}},
                {"id": "fake", "aliases": 7, "meta": {"n_vocab": 10**30}},
            ],
            "version": [1],
        },
    ],
)
def test_what_a_server_says_of_itself_may_be_anything(models: dict[str, Any]):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(1 + bool(models.get("version"))):
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps(models).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def found() -> tuple[Target, LoadSettings]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = StreamClient(url)
        try:
            target = await find_target(client, url, "fake")
            return target, await settle(client, target, LoadSettings())
        finally:
            client.close()
            server.close()

    target, settings = asyncio.run(found())
    assert (target.model, target.version, target.names) == ("fake", None, {"fake"})
    assert settings.vocab_size == 32_000


def test_a_server_that_hangs_is_given_up():
    with scripted_peer(GOOD, seconds=0.5) as (_, url):
        figures = summary(load(url, requests=1, timeout=0.05))
    assert list(figures.errors) == ["timeout"]


def test_as_many_requests_as_allowed_are_under_way_and_no_more():
    with scripted_peer(GOOD, together=2) as (peer, url):  # hangs with fewer
        report = load(url, concurrency=2, requests=8)
    assert summary(report).failed == 0
    assert peer.most_at_once == 2
    assert len(peer.bodies) == 8
    for body in peer.bodies:
        assert body["temperature"] == 0
        assert body["ignore_eos"] is True
        assert body["max_tokens"] == 9


def test_servers_that_may_not_know_them_get_no_fields_of_others():
    with scripted_peer(GOOD, owner="somebody") as (peer, url):
        report = load(
            url, None, requests=2, output_tokens="12", extra_body={"top_k": 3, "max_tokens": 10}
        )
    assert report.target.model == "fake"  # the first that isn't for embeddings alone
    probes, bodies = peer.bodies[:2], peer.bodies[2:]
    assert len(probes) == 2  # how long words are
    for body in bodies:
        assert set(body) == {
            *("model", "prompt", "max_tokens", "temperature", "stream", "stream_options"),
            "top_k",
        }
        assert isinstance(body["prompt"], str)
        assert body["max_tokens"] == 10


def test_the_same_seed_sends_the_same_bytes():
    def sent(seed: int, **changes: Any) -> list[bytes]:
        with scripted_peer(GOOD) as (peer, url):
            load(url, seed=seed, requests=3, concurrency=1, **changes)
            return peer.raw

    assert sent(1) == sent(1) != sent(2)
    turns = {"workload": "multi-turn", "turns": 2, "output_tokens": "uniform:1:50"}
    assert sent(1, **turns) == sent(1, **turns) != sent(2, **turns)


def test_phases_repeat_the_warm_prompts_and_no_others():
    with scripted_peer(GOOD) as (peer, url):
        report = load(
            url, phases=["cold", "warm", "warm-prefix"], warmup=2, requests=3, concurrency=1
        )
    assert [phase.name for phase in report.phases] == ["cold", "warm", "warm-prefix"]
    prompts = [tuple(body["prompt"]) for body in peer.bodies]
    cold, warm_up, warm, again = prompts[:1], prompts[1:3], prompts[3:6], prompts[6:]
    assert warm == again
    assert len({*cold, *warm_up, *warm}) == 6


def test_a_load_that_the_server_has_seen_is_told_of(server: RunningServer):
    for seen in (False, True):
        shown = Console(file=io.StringIO(), width=200)
        print_report(load(server.url, requests=2, prompt_tokens="40", seed=5), shown)
        assert isinstance(shown.file, io.StringIO)
        assert ("has seen this load before" in shown.file.getvalue()) == seen


def test_time_may_bound_a_load():
    with scripted_peer(GOOD, seconds=0.01) as (_, url):
        report = load(url, duration=0.15, requests=1)
        open_loop = load(url, duration=0.15, rate=40, burstiness=0)
    assert report.phases[0].answers
    assert max(answer.sent for answer in report.phases[0].answers) < 5  # a machine may be slow
    assert len(open_loop.phases[0].answers) == 6  # one every 25 ms


def test_the_queue_time_is_what_the_servers_histogram_grew_by():
    name = "vllm:request_queue_time_seconds"
    with scripted_peer(GOOD) as (peer, url):
        peer.metrics = (
            f'# TYPE {name} histogram\n{name}_bucket{{le="1",model_name="fake"}} 4\n'
            f'{name}_bucket{{le="+Inf",model_name="fake"}} 4\n'
            f'{name}_sum{{model_name="fake"}} 2\n{name}_count{{model_name="fake"}} 4\n'
        )
        assert load(url).phases[0].queue == {}  # nobody waited meanwhile


def test_a_sweep_ends_where_a_promise_breaks():
    with scripted_peer(GOOD) as (peer, url):
        changes = {"duration": 0.05, "concurrency": None, "sweep": [40.0, 80.0]}
        kept = load(url, **changes, slos=["ttft:p95:100s"])
        prompts = [tuple(body["prompt"]) for body in peer.bodies]
        broken = load(url, **changes, slos=["ttft:p95:1us"])
    assert [phase.name for phase in kept.phases] == ["rate 40", "rate 80"]
    assert kept.best_rate == 80
    assert kept.phases[0].summary.good == kept.phases[0].summary.requests
    assert len(set(prompts)) == len(prompts)  # or the cache would answer
    assert [phase.rate for phase in broken.phases] == [40]
    assert broken.best_rate is None
    assert broken.phases[0].summary.goodput == 0


def test_a_sweep_doubles_and_then_halves_the_range():
    def measured(limit: float, first: float | None = None) -> list[float]:
        rates = rates_to_measure([], first, stops=True)
        seen = [next(rates)]
        with contextlib.suppress(StopIteration):
            while True:
                seen.append(rates.send(seen[-1] <= limit))
        return seen

    assert measured(5.2) == [1, 2, 4, 8, 6, 5, 5.5]
    assert measured(0.3)[:3] == [1, 0.5, 0.25]
    assert measured(30, first=16)[:3] == [16, 32, 24]
    assert measured(math.inf)[-1] == 4096
    assert measured(0)[-1] == 1 / 64


def test_requests_that_fail_break_promises():
    fine = Answer(due=0.0, sent=0.0, first=0.1, ended=0.2, output_tokens=2, gaps=[50_000])
    gone = Answer(due=0.0, sent=0.0, ended=0.01, error="status 503")
    slo = Slo.parse("ttft:p95:500ms")
    assert slo.holds([fine] * 20)
    assert slo.holds([fine] * 19 + [gone])
    assert not slo.holds([fine] * 18 + [gone] * 2)
    assert Slo.parse("itl:max:50ms").kept_by(fine)
    assert not Slo.parse("itl:max:49ms").kept_by(fine)
    assert not slo.kept_by(gone)


@pytest.mark.parametrize("written", ["ttft:p95", "ttft:p101x:1s", "wait:p9:1s", "e2e:p9:1", ""])
def test_what_is_no_promise(written: str):
    with pytest.raises(ParameterError, match="ttft:p95:500ms"):
        Slo.parse(written)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"requests": 0}, "requests"),
        ({"turns": 0}, "turns"),
        ({"prompt_tokens": "0"}, "prompt_tokens"),
        ({"prompt_tokens": "uniform:9:3"}, "prompt_tokens"),
        ({"prompt_tokens": "often"}, "prompt_tokens"),
        ({"output_tokens": "-1"}, "output_tokens"),
        ({"output_tokens": "normal:9"}, "output_tokens"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"prefixes": 1}, "prefixes"),
        ({"prefix_tokens": 1}, "prefixes"),
        ({"prefixes": -1, "prefix_tokens": 4}, "prefixes"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": None}, "concurrency"),
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"burstiness": -1.0}, "burstiness"),
        ({"duration": 0.0}, "duration"),
        ({"sweep": []}, "slo"),
        ({"sweep": [1.0, -1.0]}, "sweep"),
        ({"slos": ["soon"]}, "slo"),
        ({"workload": "json", "api": "completions"}, "api"),
        ({"workload": "dataset", "prompt_tokens": "128"}, "dataset"),
        ({"workload": "dataset"}, "prompt_tokens"),
        ({"workload": "json", "prefixes": 2, "prefix_tokens": 9}, "prefixes"),
        ({"workload": "multi-turn", "tools": 2}, "tools"),
        ({"turns": 2}, "turns"),
        ({"think": 2.0}, "think"),
        ({"burstiness": 4.0}, "burstiness"),
        ({"sweep": [1.0], "rate": 2.0}, "rate"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], param: str):
    with pytest.raises(ParameterError) as caught:
        load("http://127.0.0.1:1", **changes)
    assert caught.value.param == param


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", "serve", *words])


def test_the_command(server: RunningServer, tmp_path: Path):
    options = [
        *("--requests", "4", "--concurrency", "2", "--prompt-tokens", "3", "--warmup", "0"),
        *("--output-tokens", "7", "--vocab-size", "250"),
    ]
    saved, html = tmp_path / "a.json", tmp_path / "a.html"
    key = ["--api-key", "secret"]
    shown = invoke(server.url + "/v1/", "fake", *options, "--json", str(saved), *key)
    assert shown.exit_code == 0, shown.output
    assert "4, 0 failed" in shown.output
    assert "secret" not in saved.read_text()
    printed = invoke(server.url, "fake", *options, "--json", "-")
    report = json.loads(printed.output)
    assert report["schema"] == "caudal-bench-serve/1"
    assert report["phases"][0]["summary"]["requests"] == 4
    failed = invoke(server.url, "nobody", *options, "--html", str(html))
    assert failed.exit_code == 1
    assert "failed 4x" in failed.output
    assert "status 404" in html.read_text()
    again = invoke(server.url, "--replay", str(saved), "--json", "-", "--requests", "2")
    replayed = json.loads(again.output)["settings"]
    assert replayed == {**report["settings"], "requests": 2}


@pytest.mark.parametrize(
    "options",
    [
        ["--phases", "hot"],
        ["--sweep", "fast"],
        ["--extra-body", "[]"],
        ["--extra-body", "{"],
        ["--requests", "1", "--conversations", "1"],
        ["--requests", "1", "--duration", "1"],
        ["--json", "nowhere/report.json"],
        ["--html", "."],
        ["--price-per-hour", "-1"],
    ],
)
def test_options_that_make_no_sense(options: list[str]):
    assert invoke("http://127.0.0.1:1", "fake", *options).exit_code == 2


def test_an_interrupted_load_reports_what_came_so_far(tmp_path: Path):
    saved = tmp_path / "a.json"

    def interrupt() -> None:
        while len(peer.bodies) < 3:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    with scripted_peer(GOOD, seconds=0.05) as (peer, url):
        thread = threading.Thread(target=interrupt)
        thread.start()
        options = ["--concurrency", "1", "--output-tokens", "9", "--warmup", "0"]
        shown = invoke(url, "fake", *options, "--json", str(saved))
        thread.join()
    assert shown.exit_code == 0, shown.output
    assert "broken off" in shown.output
    report = Report.read(saved)
    assert not report.complete
    figures = summary(report)
    assert figures.unfinished == 1
    assert 2 <= figures.requests < 48
