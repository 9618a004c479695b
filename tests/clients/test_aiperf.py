"""NVIDIA's AIPerf."""

from __future__ import annotations

import json
import tempfile

import pytest

from support.clients.checks import check_accepted
from support.clients.home import Home
from support.clients.server import ServeScript
from support.clients.tokenizer_folder import write_byte_tokenizer


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "embeddings"])
def test_measures(home: Home, serve_script: ServeScript, endpoint: str):
    server = serve_script(lambda _: "word " * 30)
    tokenizer = write_byte_tokenizer(home.home / "tokenizer")
    command = [
        *(home.programs.python("aiperf"), "profile", "--ui", "none"),
        *("--model", "smollm2", "--url", server.url, "--api-key", server.key),
        *("--endpoint-type", endpoint, "--concurrency", "2", "--request-count", "6"),
        *("--tokenizer", tokenizer, "--synthetic-input-tokens-mean", "20"),
        *(() if endpoint == "embeddings" else ("--streaming", "--output-tokens-mean", "10")),
    ]
    # Its processes meet at sockets there, whose paths may be only so long.
    short = {"TMPDIR": tempfile.gettempdir()}
    finished = home.run(command, short, timeout=240)
    assert finished.code == 0, str(finished)
    [report] = home.project.glob("artifacts/*/profile_export_aiperf.json")
    measured = json.loads(report.read_text())
    assert measured["request_count"]["avg"] == 6
    assert measured["error_summary"] == []
    check_accepted(server.record)
