"""Debian's Prometheus: what it says of our figures, and what the dashboard and alerts show."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from caudal.backends.executor import Batch
from caudal.errors import ModelLoadError
from caudal.server.auth import Access
from caudal.server.certificates import CertificateFiles, Certificates
from support.certificates import Authority
from support.debian_prometheus import Prometheus, prometheus, promtool
from support.fake_launcher import FakeLauncher, FakeModel, FakeRunning
from support.fake_model import ScriptedExecutor, serve_fake
from support.made_up_models import says, serving
from support.running_server import AnyServer

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "caudal.json"
KEY = "sesame"


def test_promtool_has_nothing_to_say_of_our_names():
    with serving(a=says("a")) as (server, _):
        server.http.post("/v1/completions", json={"model": "a", "prompt": "x"})
        text = server.http.get("/metrics").text
    checked = promtool("check", "metrics", text=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_of_vllms_names_promtool_says_what_they_are():
    with serving(app={"vllm_metrics": True}, a=says("a")) as (server, _):
        server.http.post("/v1/completions", json={"model": "a", "prompt": "x"})
        text = server.http.get("/metrics").text
    checked = promtool("check", "metrics", text=text)
    said = checked.stdout + checked.stderr
    names = set(re.findall(r"^# TYPE (vllm:\S+)", text, re.MULTILINE)) - {"vllm:lora_requests_info"}
    expected = {f"{name} metric names should not contain ':'" for name in names}
    suffix = 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'
    assert set(said.splitlines()) == expected | {suffix}


def test_rules_are_right_and_alert_when_they_should():
    for arguments in (
        ("check", "rules", RULES),
        ("test", "rules", RULES.with_name("rules_test.yml")),
    ):
        checked = promtool(*map(str, arguments))
        assert checked.returncode == 0, checked.stdout + checked.stderr


def fails(batch: Batch) -> None:
    raise RuntimeError("the tensor caught fire")


def made(executor: ScriptedExecutor, **limits: Any) -> FakeModel:
    model = FakeModel(read_seconds=0, open_seconds=0.05, stop_seconds=0)
    model.make_service = lambda name: serve_fake(executor, (name,), **limits)
    return model


@contextlib.contextmanager
def troubled_server(authority: Authority) -> Iterator[tuple[AnyServer, FakeLauncher]]:
    """One that has a model for each thing that can happen to one."""
    pair = authority.pair("server")
    certificates = Certificates(CertificateFiles(certificate=pair.certificate, key=pair.key))
    with serving(
        200,
        {
            "access": Access(api_key=KEY),
            "certificates": certificates,
            "verify": authority.trusting(),
        },
        good=made(ScriptedExecutor(script=b"hello and goodbye")),
        late=made(ScriptedExecutor(seconds=0.1), request_timeout=0.05),
        failing=made(ScriptedExecutor(fail=fails)),
        busy=made(ScriptedExecutor(script=b"x" * 20, seconds=0.02), max_num_seqs=1),
        broken=says("x", open_error=ModelLoadError("broken", "half of it is missing")),
        crashing=says("x"),
    ) as (server, launcher):
        server.http.headers["authorization"] = f"Bearer {KEY}"
        yield server, launcher


def scraping(
    folder: Path, server: AnyServer, authority: Authority, key: str
) -> AbstractContextManager[Prometheus]:
    target = server.url.removeprefix("https://")
    return prometheus(folder, target=target, authority=authority.file, key=key, rules=RULES)


def ask(server: AnyServer, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": "x" * 64, "importance": 1} | more
    return server.http.post("/v1/completions", json=body)


@contextlib.contextmanager
def traffic(server: AnyServer) -> Iterator[None]:
    """Requests of all kinds, until the end."""
    over = threading.Event()

    def run(*models: str) -> None:
        while not over.wait(0.02):
            for model in models:
                ask(server, model, stream=model == "good")

    kinds = [("good", "late", "failing"), *[("busy",)] * 3]
    threads = [threading.Thread(target=run, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def dashboard_queries() -> set[str]:
    """What the panels and variables of the dashboard ask, with everything chosen."""
    board = json.loads(DASHBOARD.read_text())
    queries = {target["expr"] for panel in board["panels"] for target in panel.get("targets", ())}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            [asked] = re.findall(r"label_values\((.*), \w+\)", variable["query"]["query"])
            queries.add(asked)
    values = {"$__rate_interval": "5s", '"$job"': '"caudal"'}
    values |= {f'"${name}"': '".*"' for name in ("instance", "model", "tenant")}
    for name, value in values.items():
        queries = {query.replace(name, value) for query in queries}
    assert not [query for query in queries if "$" in query]
    return queries


def rules_of(server: Prometheus) -> list[dict[str, Any]]:
    [group] = server.rules()
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def wait_until_all(seconds: float, what: str, wanted: set[str], is_there: Any) -> None:
    deadline = time.monotonic() + seconds
    while wanted := {each for each in wanted if not is_there(each)}:
        assert time.monotonic() < deadline, f"{what}: " + "\n".join(sorted(wanted))
        time.sleep(0.2)


def test_it_scrapes_a_server_and_every_query_has_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FakeRunning, "process_id", os.getpid())
    authority = Authority(tmp_path)
    with (
        troubled_server(authority) as (server, launcher),
        scraping(tmp_path, server, authority, KEY) as asked,
    ):
        wait_until_all(20, "no data", {"up == 1"}, asked.has)
        [scraped] = asked.targets()
        assert (scraped["health"], scraped["lastError"]) == ("up", "")
        with traffic(server):
            assert ask(server, "crashing").status_code == 200
            assert ask(server, "broken").status_code == 500
            running = launcher.loaded["crashing"]
            running.loop.call_soon_threadsafe(running.crash, "was killed by signal 9")
            server.http.post("/models/unload", json={"model": "failing"})
            wait_until_all(30, "no data", dashboard_queries(), asked.has)
            rules = rules_of(asked)
            assert {rule["health"] for rule in rules} == {"ok"}
            sides = {re.split(r" [<>] [\d.]+$", rule["query"])[0] for rule in rules}
            assert len(sides) == len(rules)
            wait_until_all(10, "no data", sides, asked.has)

            def fires(alert: str) -> bool:
                states = {rule["name"]: rule["state"] for rule in rules_of(asked)}
                return states[alert] in ("pending", "firing")

            happened = {"CaudalWorkerCrashed", "CaudalModelFailsToLoad", "CaudalErrors"}
            wait_until_all(20, "no alert", happened, fires)


def test_without_the_key_it_is_told_that_it_needs_one(tmp_path: Path):
    authority = Authority(tmp_path)
    with (
        troubled_server(authority) as (server, _),
        scraping(tmp_path, server, authority, "guess") as asked,
    ):
        wait_until_all(20, "no scrape", {"up == 0"}, asked.has)
        [scraped] = asked.targets()
        assert "401" in scraped["lastError"]
