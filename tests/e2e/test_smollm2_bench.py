"""What `caudal bench` measures on a real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from caudal import LLM, SamplingParams, StructuredOutputsParams
from caudal.backends.native.executor import NativeExecutor
from caudal.bench.engine import BenchmarkError
from caudal.bench.grammar import PROMPT, SCHEMA
from caudal.bench.python_cost import PythonCost, measure_python
from caudal.cli.app import app
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions


def test_jump_ahead_makes_json_with_long_keys_faster(smollm2_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["bench", "engine", str(smollm2_path), "--grammar", "--runs", "3"]
    )
    assert done.exit_code == 0, done.output
    ratio = re.search(r"^ratio +(\S+) x$", done.output, re.MULTILINE)
    forced = re.search(r"(\d+) of (\d+) tokens forced", done.output)
    assert ratio and forced and "us a token" in done.output
    # The machine may be busy; alone, the ratio is above 3.
    assert float(ratio[1]) > 1
    assert int(forced[1]) > int(forced[2]) / 2


def test_the_measured_answer_is_a_whole_one(smollm2_path: Path) -> None:
    wanted = StructuredOutputsParams(json=SCHEMA)
    with LLM(str(smollm2_path), max_model_len=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=256, structured_outputs=wanted)
        [result] = llm.generate(PROMPT, params, use_tqdm=False)
    jsonschema.validate(json.loads(result.outputs[0].text), SCHEMA)


def python_cost(path: Path, max_model_len: int) -> PythonCost:
    model = load_model(str(path), LoadOptions(max_model_len=max_model_len, speculative=None))
    assert isinstance(model.executor, NativeExecutor)
    return measure_python(model, model.executor, streams=2)


def test_what_python_takes_of_an_iteration(smollm2_path: Path) -> None:
    cost = python_cost(smollm2_path, max_model_len=512)
    assert cost.streams == 2
    assert 0 < cost.engine < cost.iteration
    assert 0 < cost.event_loop < cost.iteration
    # The machine may be busy; alone, each is a few hundredths.
    assert cost.engine + cost.event_loop < cost.iteration / 2


def test_a_load_that_fails_is_not_measured(smollm2_path: Path) -> None:
    with pytest.raises(BenchmarkError):
        python_cost(smollm2_path, max_model_len=64)


def test_it_measures_grammars_or_a_peer_not_both(tmp_path: Path) -> None:
    peer = tmp_path / "llama-bench"
    peer.touch()
    done = CliRunner().invoke(
        app, ["bench", "engine", "smollm2", "--grammar", "--llama-bench", str(peer)]
    )
    assert done.exit_code == 2
    assert "exclude each other" in done.output
