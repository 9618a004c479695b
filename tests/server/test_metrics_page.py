"""docs/metrics.md says of every figure what it is, and of none that there isn't."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from caudal.errors import ModelLoadError
from caudal.server.audit_log import AuditLog
from caudal.server.batch_state import BatchHome
from caudal.server.certificates import CertificateFiles, Certificates
from caudal.server.vllm_metrics import vllm_exposition
from caudal.service.exposition import Expositions, exposition
from support.certificates import Authority
from support.fake_launcher import FakeRunning
from support.made_up_models import says, serving

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
PAGE = (REPOSITORY / "docs" / "metrics.md").read_text()
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith(("| `caudal_", "| `process_", "| `vllm:"))
]


def test_the_page_has_what_a_server_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Every name with its type and labels, in both directions, vLLM's names too."""
    monkeypatch.setattr(FakeRunning, "process_id", os.getpid())
    broken = says("b", open_error=ModelLoadError("b", "is broken"))
    options = {"vllm_metrics": True, "batch_home": BatchHome(tmp_path)}
    with serving(app=options, a=says("a"), b=broken) as (server, _):
        for name, status in (("a", 200), ("b", 500)):
            body = {"model": name, "prompt": "x"}
            assert server.http.post("/v1/completions", json=body).status_code == status
        text = server.http.get("/metrics").text
    audit_log = AuditLog(str(tmp_path / "audit.jsonl"))
    pair = Authority(tmp_path).pair("server")
    certificates = Certificates(CertificateFiles(certificate=pair.certificate, key=pair.key))
    text += exposition([*audit_log.collect(), *certificates.collect()]).decode()
    audit_log.close()
    shown = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    assert shown == {name.strip("`"): kind for name, kind, *_ in ROWS}
    units = {"seconds": "_seconds", "bytes": "_bytes", "ratio": "_ratio"}
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(family.name, set()).update(sample.labels.keys() - {"le"})
    for cell, kind, *rest in ROWS:
        name = cell.strip("`")
        base = name.removesuffix("_total")
        if name.startswith("vllm:"):
            continue
        unit, said, meaning = rest
        assert name.endswith("_total") == (kind == "counter")
        assert unit not in units or base.endswith(units[unit]), name
        assert meaning, name
        if base in labels:
            assert labels[base] == set(re.findall(r"`(\w+)`", said)), name


def test_vllms_names_are_of_the_figures_that_the_page_names():
    named = {
        theirs.strip("`"): ours.strip("`")
        for theirs, kind, ours, *_ in ROWS
        if theirs.startswith("`vllm:") and kind != "histogram" and re.fullmatch(r"`\w+`", ours)
    }
    assert len(named) > 10
    values = {ours: float(value) for value, ours in enumerate(sorted(set(named.values())), 1)}
    families = [
        (CounterMetricFamily if ours.endswith("_total") else GaugeMetricFamily)(
            ours.removesuffix("_total"), "", value
        )
        for ours, value in values.items()
    ]
    figures = Expositions()
    figures.add(exposition(families, {"model": "a"}))
    text = vllm_exposition(figures, []).decode()
    shown = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {theirs: shown[theirs] for theirs in named} == {
        theirs: values[ours] for theirs, ours in named.items()
    }


def test_dashboard_and_alerts_ask_for_figures_that_there_are():
    """`make test-prometheus` asks; this is for who renames one and hasn't got Prometheus."""
    named = {cell.strip("`") for cell, *_ in ROWS}
    named |= {name + part for name in named for part in ("_bucket", "_sum", "_count")}
    board = (DEPLOY / "grafana" / "caudal.json").read_text()
    asked = board + (DEPLOY / "prometheus" / "rules.yml").read_text()
    found = set(re.findall(r"\b(?:caudal|process)_[a-z0-9_]+", asked))
    assert len(found) > 40
    assert found <= named
    panels = json.loads(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_a_model_that_tells_nothing_hides_nothing_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("caudal.server.metrics.MODEL_SECONDS", 0.05)
    with serving(a=says("a"), b=says("b")) as (server, launcher):
        for name in "ab":
            server.http.post("/models/load", json={"model": name})

        async def never() -> bytes:
            await asyncio.sleep(60)
            return b""

        monkeypatch.setattr(launcher.loaded["b"].service, "metrics", never)
        assert server.metric('caudal_requests_running{model="a"}') == 0
        with pytest.raises(KeyError):
            server.metric('caudal_requests_running{model="b"}')
        assert server.metric('caudal_model_loaded{model="b"}') == 1
