"""`caudal config`: what a file would do, what is wrong with it, and an example with everything."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from caudal.cli.app import app
from caudal.configuration.effective import effective_settings
from caudal.configuration.file import read_file
from caudal.configuration.settings import ServeSettings, settings_fields

DOCS = Path(__file__).parents[2] / "docs/configuration.md"


def config(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["config", *arguments], env={"COLUMNS": "200", **environment})
    return result.exit_code, result.stdout + result.stderr


def test_the_example_is_valid_and_has_everything_with_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, text = config("example")
    assert code == 0
    file = tmp_path / "caudal.toml"
    file.write_text(text)
    assert effective_settings({}, read_file(file)).values == ServeSettings()
    monkeypatch.setenv("NAME", "x")
    monkeypatch.setenv("BOBS_KEY", "y")
    file.write_text(re.sub(r"^#(?=[a-z\[])", "", text, flags=re.MULTILINE))
    said = read_file(file)
    fields = settings_fields()
    others = {"model", "served_model_name", "alias", "lora"}  # which have tables of their own
    assert said.values.keys() | others == fields.keys()
    unknown = {name: None for name in fields if fields[name].default is None}
    settings = effective_settings({}, said)
    assert replace(settings.values, **unknown) == ServeSettings()
    assert [each.own_name for each in said.models] == ["chat", "minilm"]
    assert [each.name for each in said.keys.keys] == ["alice", "bob"]


def test_a_check_says_what_would_be_served_and_where_settings_come_from(tmp_path: Path):
    file = tmp_path / "caudal.toml"
    file.write_text(
        """\
[server]
port = 1234
api-key = { env = "OUR_KEY" }
[scheduling]
max-queue = 5
[fleet]
memory = "24GB"
[[models]]
model = "smollm2"
names = ["chat", "small"]
max-model-len = 512
[aliases]
gpt = "chat"
"""
    )
    code, text = config(
        "check",
        str(file),
        "--host",
        "0.0.0.0",
        "--drain-timeout",
        "30.0",
        OUR_KEY="sesame",
        CAUDAL_MAX_QUEUE="7",
        CAUDAL_HOME=str(tmp_path),
    )
    assert code == 0, text
    assert "sesame" not in text
    for words in (
        r"address  http://0\.0\.0\.0:1234",
        "chat     the model smollm2, also small, to be fetched",
        "gpt      leads to chat",
        "keys     admin",
        r'host +"0\.0\.0\.0" +--host',
        rf"port +1234 +{file}, line 2",
        rf"api-key +\(a secret\) +{file}, line 3",
        "max-queue +7 +CAUDAL_MAX_QUEUE",
        rf"chat: max-model-len +512 +{file}, line 11",
        rf'memory +"24GiB" +{file}, line 7',
        r"drain-timeout +30 +--drain-timeout",
    ):
        assert re.search(words, text), (words, text)
    assert "kv-type" not in text
    assert re.search(
        'kv-type +"f16" +default', config("check", "--all", CAUDAL_HOME=str(tmp_path))[1]
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nport = 'x'\n[limts]", ["line 2: server.port", "line 3: there is no key limts"]),
        ("[aliases]\na = 'nowhere'", ["line 2: 'a' leads to 'nowhere', which does not exist"]),
        ("[[models]]\nmodel = 'smollm2'\n[aliases]\nsmollm2 = 'x'", ["line 4: there is a model"]),
        (
            "[server]\nssl-certfile = 'caudal.toml'\nssl-keyfile = 'nowhere'",
            ["line 3", "nowhere can't be read: No such file"],
        ),
    ],
)
def test_a_check_fails_where_the_file_cannot_be_used(tmp_path: Path, text: str, words: list[str]):
    file = tmp_path / "caudal.toml"
    file.write_text(text)
    code, said = config("check", str(file), CAUDAL_HOME=str(tmp_path))
    assert code == 1
    assert all(each in said for each in words), said
    assert CliRunner().invoke(app, ["serve", "--config", str(file)]).exit_code == 1


def test_what_the_docs_show_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAUDAL_BOBS_KEY", "x")
    (tmp_path / "admin.key").write_text("x")
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        file = tmp_path / "caudal.toml"
        file.write_text(block.replace("/run/secrets", str(tmp_path)))
        read_file(file)
