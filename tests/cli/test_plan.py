"""`caudal plan` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from caudal.cli.app import app
from references.reference import Recorded
from references.weights import write_folder
from support.tiny_bert import TinyBert

GIVEN = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--bandwidth", "40GB/s")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAUDAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_figures_on_the_command_line() -> None:
    result = plan(*GIVEN, "--parameters", "8B", "--quant", "Q4_K_M", "--memory", "24GiB")
    assert result.exit_code == 0, result.output
    assert "2 × 32 layers × 8 KV heads × 128 × 2 bytes = 128 KiB a token" in result.output
    assert "8,192 tokens × 128 KiB = 1 GiB" in result.output
    assert "8,000,000,000 × 4.5 bits" in result.output
    assert "It fits in 24 GiB" in result.output
    same = plan(*GIVEN, "--parameters", "8B", "--quant", "Q4_K_M", "--bandwidth", "37.252903GiB/s")
    assert "At most 7.18 tokens a second" in same.output
    # 4.19 GiB of weights and 1 GiB of keys and values, at 40 GB/s.
    assert "At most 7.18 tokens a second, at the end of 8,192 tokens" in result.output
    assert "Prompts are bounded by arithmetic" in result.output
    assert "caudal serve MODEL --kv-memory 1024MiB --max-num-seqs 1 --max-model-len 8192" in (
        result.output
    )


def test_what_would_fit_is_said_where_it_does_not() -> None:
    result = plan(*GIVEN, "--parameters", "8B", "--users", "20", "--memory", "24GiB")
    assert "It doesn't fit in 24 GiB" in result.output
    assert "fewer users: 7 users of 8,192 tokens" in result.output
    assert re.search(r"less context: 3,\d{3} tokens for each of 20 users", result.output)
    # 20 GiB besides leave 2.5 GiB, which 8 billion weights fit in by no more than 2.7 bits each.
    assert "a smaller quantisation: Q2_K, whose weights take 2.44 GiB" in result.output
    assert "more memory: 37.2 GiB" in result.output
    assert "caudal serve" not in result.output


def test_types_that_are_planned_for_and_not_there() -> None:
    result = plan(*GIVEN, "--parameters", "8B", "--kv-type", "q4", "--flops", "1T")
    assert "Caudal has no keys and values in q4: these are figures alone" in result.output
    assert "× 18/32 bytes = 36 KiB a token" in result.output
    assert "caudal serve" not in result.output
    assert "Prompts: at most 62.5 tokens a second" in result.output


def test_bandwidth_is_measured_where_nobody_says_it() -> None:
    few = ("--layers", "2", "--kv-heads", "1", "--head-dim", "64", "--parameters", "1M")
    found = json.loads(plan(*few, "--json").output)
    assert found["machine"]["is_measured"]
    assert 1e6 < found["machine"]["bandwidth"] < 1e13
    assert "measured here just now" in plan(*few).output


def test_a_table_json_and_a_page_say_the_same(tmp_path: Path) -> None:
    folder = write_folder(Recorded.read("gemma3"), tmp_path / "tiny")
    page = tmp_path / "plan.html"
    asked = (str(folder), "--ctx", "400", "--users", "3", "--bandwidth", "1GB/s")
    asked += ("--prefix-memory", "1MiB", "--prefix-store-size", "1GiB")
    result = plan(*asked, "--table", "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "window of" in result.output
    assert re.search(r"context +.*24 GiB +48 GiB +80 GiB", result.output)
    found = json.loads(plan(*asked, "--json").output)
    assert found["fits"] is True
    needs = found["needs"]
    parts = ("weights", "kv_memory", "workspace", "prefixes")
    assert needs["total"] == sum(needs[part] for part in parts)
    for size, place in (("1 MiB", "memory"), ("1 GiB", "disk")):
        said = f"{size} of {place} holds about {found['kept_tokens'][place]:,} tokens"
        assert said in result.output
        assert said in page.read_text()
    kv_memory = -(-needs["kv_memory"] // 2**20)
    assert found["serve"][:2] == ["--kv-memory", f"{kv_memory}MiB"]
    assert " ".join(["caudal serve", str(folder), *found["serve"]]) in result.output
    assert {cell["context"] for cell in found["table"]} == {400, 512}
    html = page.read_text()
    assert html.count("<figure") == 3
    assert "It fits in" in html
    assert "Memory by users and context" in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_nobody_has_longer_conversations_than_the_model_was_trained_for(tmp_path: Path) -> None:
    folder = write_folder(Recorded.read("llama"), tmp_path / "tiny")
    result = plan(str(folder), "--ctx", "513", "--bandwidth", "1GB/s")
    assert result.exit_code == 1
    assert "ctx is 513, but the model was trained for 512 tokens" in result.output


def test_an_encoder_is_asked_for_nothing_that_it_has_not(tmp_path: Path) -> None:
    folder = str(TinyBert().write_folder(tmp_path / "bert"))
    result = plan(folder, "--ctx", "40")
    assert result.exit_code == 0, result.output
    assert "for a batch" in result.output
    for option, value in (("--shared-prefix", "9"), ("--bandwidth", "1GB/s"), ("--flops", "1T")):
        refused = plan(folder, option, value)
        assert refused.exit_code == 2
        assert f"is an encoder, of which {option} says nothing" in " ".join(refused.output.split())


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
        **{"intermediate_size": 128, "max_position_embeddings": 512, "rms_norm_eps": 1e-5},
    }
    files = [tmp_path / str(size) / "config.json" for size in (320, 384, 4096)]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps(config | {"vocab_size": int(file.parent.name)}))
    model, padded, other = map(str, files)
    assert plan(model, "--draft", padded, "--bandwidth", "1GB/s").exit_code == 0
    refused = plan(model, "--draft", other)
    assert refused.exit_code == 2
    assert "it knows 4096 tokens, and the model 320" in refused.output.replace("\n", " ")


def test_prompts_have_no_figure_where_nobody_says_how_many_weights_there_are() -> None:
    assert "nobody says how many weights" in plan(*GIVEN, "--flops", "1T").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a MODEL, or give its figures"),
        (("smollm2", "--layers", "3"), "a MODEL says its figures itself"),
        (("--layers", "3"), "--kv-heads and --head-dim, or with --latent"),
        ((*GIVEN, "--parameters", "many"), "'many' is no number"),
        ((*GIVEN, "--kv-type", "q9"), "'q9' is no type of keys and values"),
        ((*GIVEN, "--kv-type", "q8", "--value-dim", "520"), "heads have 520 channels"),
        ((*GIVEN, "--ctx", "1"), "ctx must be 2 to"),
        ((*GIVEN, "--latent", "576"), "--latent is kept instead of heads"),
        ((*GIVEN, "--bits", "4", "--quant", "Q8_0"), "both say what a weight takes"),
        ((*GIVEN, "--quant", "Q9"), "there is no quantisation"),
        (("smollm2",), "caudal pull smollm2"),
        ((*GIVEN, "--parameters", "9" * 400), "is no number"),
        ((*GIVEN, "--memory", "9" * 400), "is not a size"),
        ((*GIVEN, "--flops", "0"), "must be more than 0"),
        ((*GIVEN, "--bandwidth", "460"), "'460' is no rate; write e.g. 460GB/s"),
        ((*GIVEN, "--html", "nowhere/plan.html"), "there is no directory nowhere"),
        ((*GIVEN, "--html", "."), ". is a directory"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = plan(*arguments)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
