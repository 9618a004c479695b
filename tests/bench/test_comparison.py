from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from caudal.bench.serving.answers import Answer
from caudal.bench.serving.comparison import compare, differences
from caudal.bench.serving.energy import Energy
from caudal.bench.serving.http_client import StreamClient
from caudal.bench.serving.report import Client, ClientCost, Phase, Report, ReportError, Summary
from caudal.bench.serving.server_metrics import QUEUE_HISTOGRAMS, queue_times, read_queue_times
from caudal.bench.serving.settings import LoadSettings
from caudal.bench.serving.statistics import STATISTICS, distribution
from caudal.bench.serving.target import Target
from caudal.cli.app import app
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import running_server


def answers(seed: int, slower: float = 1.0, count: int = 200) -> list[Answer]:
    """Requests at a steady rate with latencies that are drawn."""
    random = Random(seed)
    made = []
    for number in range(count):
        first = slower * random.lognormvariate(-3, 0.3)
        gaps = [round(1e6 * slower * random.lognormvariate(-4, 0.2)) for _ in range(9)]
        due = number / 10
        made.append(
            Answer(
                due=due,
                sent=due,
                first=due + first,
                ended=due + first + sum(gaps) / 1e6,
                prompt_tokens=20,
                output_tokens=10,
                gaps=gaps,
            )
        )
    return made


def report(made: list[Answer], **settings: Any) -> Report:
    cost = ClientCost(cpu_seconds=1, share=0.1, microseconds_per_event=5)
    return Report(
        created="2026-01-01T00:00:00+00:00",
        complete=True,
        client=Client(version="1", python="3", machine={"processor": "P"}),
        target=Target(url="http://h", model="m", program="caudal", info={"kv_type": "f16"}),
        settings=LoadSettings(**settings),
        phases=[
            Phase(
                name="warm", began="", rate=None, summary=Summary.of(made), client=cost,
                answers=made,
            )
        ],
        price_per_hour=3.6,
    )  # fmt: skip


def test_the_summary_counts_successes_only():
    made = [
        Answer(due=1.0, sent=1.0, first=2.0, ended=4.0, prompt_tokens=10, output_tokens=5,
               gaps=[500_000] * 4),
        Answer(due=1.5, sent=2.0, first=4.5, ended=6.5, prompt_tokens=10, output_tokens=5,
               gaps=[500_000] * 4, cached_tokens=5),
        Answer(due=1.0, sent=1.0, first=1.1, ended=11.0, output_tokens=3, error="timeout"),
        Answer(due=1.0, sent=1.0, ended=1.2, error="status 503", message="full"),
        Answer(due=1.0, sent=1.0, ended=90.0, error="unfinished"),
    ]  # fmt: skip
    figures = Summary.of(made)
    assert (figures.requests, figures.failed, figures.unfinished) == (4, 2, 1)
    assert {kind: each.count for kind, each in figures.errors.items()} == {
        "timeout": 1,
        "status 503": 1,
    }
    assert figures.errors["status 503"].example == "full"
    assert figures.seconds == 10.0
    assert figures.total_rate == 3.0
    assert figures.output_rate == 1.0
    assert figures.ttft["mean"] == 2.0
    assert figures.tpot["mean"] == figures.itl["p99"] == 0.5
    assert figures.hit_rate == 0.5  # of those that say
    assert figures.late["max"] == 0.5


def test_percentiles_are_values_that_occurred():
    assert distribution([]) == {}
    assert distribution([3.0]) == dict.fromkeys(STATISTICS, 3.0)
    hundred = distribution([float(n) for n in range(1, 101)])
    assert list(hundred.values()) == [50.5, 50, 90, 95, 99, 100]


def test_what_chance_explains_is_the_same_and_what_it_does_not_is_not():
    one, other, slow = (
        report(answers(seed, slower)).phases[0]
        for seed, slower in ((11, 1.0), (12, 1.0), (13, 1.5))
    )
    rows = {row.name: row for row in compare([one, other, slow])}
    assert rows["ttft p50"].figures[0] is not None
    assert rows["ttft p50"].figures[0].value == 1000 * one.summary.ttft["p50"]
    assert rows["itl p99"].figures[0] is not None
    assert rows["itl p99"].figures[0].value == 1000 * one.summary.itl["p99"]
    assert rows["output tokens"].figures[0] is not None
    assert rows["output tokens"].figures[0].value == pytest.approx(one.summary.output_rate)
    for name in ("ttft mean", "ttft p50", "itl mean", "itl p95", "e2e mean"):
        same, slower = rows[name].ratios
        assert same is not None
        assert slower is not None
        assert same.verdict == "same", (name, same)
        assert slower.verdict == "worse", (name, slower)
        assert slower.value == pytest.approx(1.5, rel=0.15)
        assert slower.low < slower.value < slower.high
    steady = rows["requests"].ratios[1]
    assert steady is not None
    assert steady.verdict == "same"  # they came at a rate
    assert compare([one, other, slow]) == list(rows.values())  # drawn by a seed


def test_percentiles_of_few_requests_prove_nothing():
    few = [report(answers(seed, slower, 40)).phases[0] for seed, slower in ((1, 1.0), (2, 9.0))]
    verdicts = {row.name: row.ratios[0].verdict for row in compare(few) if row.ratios[0]}
    assert verdicts["ttft p50"] == verdicts["itl p95"] == "worse"
    assert verdicts["ttft p95"] == verdicts["itl p99"] == "too few"


def test_reports_are_read_as_they_were_written(tmp_path: Path):
    path = tmp_path / "a.json"
    written = report(answers(1, count=5), slos=["ttft:p95:1s"])
    path.write_bytes(written.to_json())
    assert Report.read(path) == written
    phase = written.phases[0]
    price = written.price(phase)
    assert price is not None
    assert price[0] == pytest.approx(1000 / phase.summary.output_rate)
    for content, words in (
        (b"{", "no report"),
        (b'{"x": ' + b"[" * 9999, "no report"),
        (b'{"schema": "caudal-bench-serve/9"}', "caudal-bench-serve/9"),
        (b'{"schema": "caudal-bench-serve/1"}', "no report"),
    ):
        path.write_bytes(content)
        with pytest.raises(ReportError, match=words):
            Report.read(path)
    with pytest.raises(ReportError):
        Report.read(tmp_path / "missing.json")


def test_the_command(tmp_path: Path):
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    one = report(answers(1, count=60), seed=1)
    other = msgspec.structs.replace(report(answers(2, 2.0, count=60), seed=2), created="later")
    for path, each in zip(paths, (one, other), strict=True):
        path.write_bytes(each.to_json())
    assert differences([one, other]) == {"load.seed": ["1", "2"]}
    cached = [msgspec.structs.replace(each, cached_tokens=5) for each in answers(2, count=60)]
    again = report(cached, seed=1)
    assert list(differences([one, again])) == ["prefix hits"]
    html = tmp_path / "c.html"
    words = ["bench", "compare", *map(str, paths), "--html", str(html)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "load.seed: 1 | 2" in shown.output
    assert "worse" in shown.output
    page = html.read_text()
    assert page.count('role="img"') == 8
    assert "load.seed" in page
    assert CliRunner().invoke(app, words[:3]).exit_code == 2


@pytest.mark.parametrize("name", QUEUE_HISTOGRAMS)
def test_queue_times_are_those_since(name: str):
    def page(counts: tuple[int, int, int], total: float) -> str:
        lines = [f"# TYPE {name} histogram"]
        for model, factor in (("m", 1), ("other", 100)):
            for bound, count in zip(("0.1", "1.0", "+Inf"), counts, strict=True):
                lines.append(f'{name}_bucket{{model_name="{model}",le="{bound}"}} {factor * count}')
            lines.append(f'{name}_sum{{model_name="{model}"}} {factor * total}')
        return "\n".join(lines) + "\n"

    before = read_queue_times(page((1, 1, 1), 0.05), {"m"})
    after = read_queue_times(page((3, 5, 5), 2.05), {"m"})
    assert before is not None
    assert after is not None
    times = after.since(before)
    assert times["mean"] == pytest.approx(0.5)
    assert times["p50"] == pytest.approx(0.1)
    assert times["p99"] == pytest.approx(0.1 + 0.9 * 0.98)
    assert after.since(after) == {}
    assert read_queue_times("what", {"m"}) is None


def test_caudals_own_queue_times_are_found():
    async def ask(url: str) -> Any:
        client = StreamClient(url)
        try:
            return await queue_times(client, {"fake"})
        finally:
            client.close()

    with running_server(serve_fake(ScriptedExecutor(script=b"hello"))) as server:
        assert asyncio.run(ask(server.url)) is not None


def test_energy_is_what_the_counters_of_packages_grew_by(tmp_path: Path):
    for zone, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core")):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("999999\n")
        (tmp_path / zone / "energy_uj").write_text("900000\n")
    energy = Energy("http://127.0.0.1:1", tmp_path)
    before = energy.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("400000\n")  # it began again at 0
    assert energy.missing is None
    assert energy.joules_since(before) == 0.5
    assert "another machine" in (Energy("http://h:1", tmp_path).missing or "")
    nothing = Energy("http://localhost:1", tmp_path / "missing")
    assert "no counters" in (nothing.missing or "")
    assert nothing.joules_since(nothing.read()) is None


def test_a_report_is_one_json_document():
    document = json.loads(report(answers(1, count=2)).to_json())
    assert document["schema"] == "caudal-bench-serve/1"
    [phase] = document["phases"]
    assert set(phase["answers"][0]) == {
        *("due", "sent", "first", "ended", "prompt_tokens", "output_tokens", "gaps")
    }
