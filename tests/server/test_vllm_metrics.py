"""Figures of several models in one text, and under vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from caudal.engine.drafting.speculation import Speculation
from caudal.server.vllm_metrics import vllm_exposition
from caudal.service.exposition import Expositions, exposition
from support.fake_facts import fake_facts
from support.fake_launcher import NamedService
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import running_server

ODD = 'mine{model="x"}\n# HELP'
"""A name that means to be more than a name."""


def of_model(running: int, ends: dict[str, int], adapters: dict[str, int]) -> Sequence[Metric]:
    finished = CounterMetricFamily("caudal_requests_finished", "Ends.", labels=["reason"])
    for reason, count in ends.items():
        finished.add_metric([reason], count, created=1.0)
    used = GaugeMetricFamily("caudal_adapter_requests", "Requests.", labels=["adapter"])
    for adapter, requests in adapters.items():
        used.add_metric([adapter], requests)
    return [GaugeMetricFamily("caudal_requests_running", "Running.", running), finished, used]


class Adapted(NamedService):
    adapters: Any = ("sql", "poet")
    info: Any = SimpleNamespace(
        limits=SimpleNamespace(block_size=16, num_blocks=512, prefix_cache=True),
        facts=SimpleNamespace(loaded=fake_facts()),
    )


def test_models_figures_under_both_names():
    figures = Expositions()
    ends = {"stop": 5, "cancelled": 2, "timeout": 1}
    for name, running in ((ODD, 3), ("b", 4)):
        families = of_model(running, ends, {"sql": 1, "poet": 0})
        figures.add(exposition(families, {"model": name}))
    figures.add(b"")
    text = figures.encoded().decode()
    assert text.count("# TYPE caudal_requests_running gauge") == 1
    assert "_created" not in text
    theirs = vllm_exposition(figures, []).decode()
    samples = {
        (
            sample.name,
            *(sample.labels.get(each, "") for each in ("model_name", "finished_reason")),
        ): sample.value
        for family in text_string_to_metric_families(text + theirs)
        for sample in family.samples
    }
    running = "vllm:num_requests_running"
    assert (samples[running, ODD, ""], samples[running, "b", ""]) == (3, 4)
    assert samples["vllm:request_success_total", ODD, "abort"] == 3
    assert samples["vllm:request_success_total", "b", "stop"] == 5


def test_adapters_that_requests_use():
    figures = Expositions()
    families = of_model(1, {}, {"sql": 2, "poet": 0})
    figures.add(exposition(families, {"model": "a"}))
    service = Adapted("a", frozenset(("generate",)))
    [family] = [
        each
        for each in text_string_to_metric_families(vllm_exposition(figures, [service]).decode())
        if each.name == "vllm:lora_requests_info"
    ]
    [sample] = family.samples
    assert sample.labels == {
        "max_lora": "2",
        "waiting_lora_adapters": "",
        "running_lora_adapters": "sql",
    }


def test_what_became_of_guesses_is_told_by_position():
    guessing = Speculation(adaptive=False, num_speculative_tokens=4)
    model = serve_fake(ScriptedExecutor(script=b"Hello there"), speculative=guessing)
    with running_server(model, vllm_metrics=True) as server:
        for content in ("Hello there", "Hello where"):
            body = {
                "messages": [{"role": "user", "content": "Hi"}],
                "prediction": {"type": "content", "content": content},
                "cache_salt": content,  # nothing but the prediction is followed
            }
            assert server.http.post("/v1/chat/completions", json=body).status_code == 200
        text = server.http.get("/metrics").text
    counts: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name.removeprefix("vllm:spec_decode_num_")
        if name != family.name:
            counts[name] = [sample.value for sample in family.samples]
            places = [sample.labels.get("position") for sample in family.samples]
            assert places == (["0", "1", "2", "3"] if "per_pos" in name else [None])
    assert counts.keys() == {"drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"}
    at = counts["accepted_tokens_per_pos"]
    assert sum(at) == counts["accepted_tokens"][0] < counts["draft_tokens"][0]
    assert at == sorted(at, reverse=True)
    assert at[0] <= counts["drafts"][0]
