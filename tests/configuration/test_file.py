"""Configuration files: read whole, everything that is wrong said at once, each with its line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from caudal.configuration.effective import EffectiveSettings, effective_settings
from caudal.configuration.file import read_file
from caudal.configuration.pieces import pieces_of
from caudal.errors import ConfigurationError
from caudal.fleet.durations import FOREVER

HASH = "sha256:" + hashlib.sha256(b"sesame").hexdigest()


def read(folder: Path, text: str, **options: object) -> EffectiveSettings:
    file = folder / "caudal.toml"
    file.write_text(text)
    return effective_settings(options, read_file(file))


def test_a_file_says_settings_models_keys_and_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("THE_KEY", "sesame")
    monkeypatch.setenv("CAUDAL_MAX_QUEUE", "9")
    (tmp_path / "secret").write_text("open\n")
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    settings = read(
        tmp_path,
        f"""
[server]
port = 1234
api-key = {{ env = "THE_KEY" }}
[limits]
drain_timeout = 5
[fleet]
memory = "3GiB"
keep-alive = "5m"
[loading]
kv-type = "f32"
kv-memory = 1048576
[scheduling]
max-queue = 5
max-num-seqs = 4
[[models]]
model = "smollm2"
names = ["chat", "small"]
aliases = ["gpt"]
lora = {{ sql = "./sql" }}
keep-alive = -1
pinned = true
max-num-seqs = 8
chat-template = "own.jinja"
[[models]]
model = "./minilm.gguf"
[routes.auto]
models = [{{ model = "gpt", max-prompt-tokens = 50 }}]
[key-defaults]
max-n = 2
[keys.alice]
hash = "{HASH.replace("e", "f")}"
[keys.bob]
key = {{ file = "secret" }}
requests-per-minute = 60
""",
        port=80,
    )
    values = settings.values
    assert (values.port, values.drain_timeout, values.keep_alive) == (80, 5.0, 300)
    assert (values.memory, values.kv_memory, values.max_queue) == (3 * 2**30, 2**20, 9)
    assert settings.place("drain_timeout") == f"{tmp_path}/caudal.toml, line 6"
    assert (settings.place("port"), settings.place("max_queue")) == ("--port", "CAUDAL_MAX_QUEUE")
    made = pieces_of(settings)
    chat, minilm = made.models
    assert (chat.own_name, chat.keep_alive, chat.pinned) == ("chat", FOREVER, True)
    assert chat.lora == {"sql": str(tmp_path / "sql")}
    assert minilm.name == str(tmp_path / "minilm.gguf")
    load = made.options["chat"].load
    assert (load.max_num_seqs, load.kv_type, load.max_queue) == (8, "f32", 9)
    assert load.chat_template == "{{ messages }}"
    assert made.options[minilm.own_name].load.max_num_seqs == 4
    assert {each.name for each in made.routes.definitions} == {"gpt", "auto"}
    ring = made.access.ring()
    assert ring is not None
    admin, bob = ring.lookup(b"sesame"), ring.lookup(b"open")
    assert admin is not None and admin.rules.admin
    assert bob is not None and (bob.rules.requests_per_minute, bob.rules.max_n) == (60, 2)
    own = effective_settings({"max_num_seqs": 2, "model": ["small"]}, settings.file)
    made = pieces_of(own)
    assert [each.name for each in made.models] == ["smollm2"]
    assert made.options["chat"].load.max_num_seqs == 2, "an option goes before a model's own"


def test_all_that_is_wrong_is_said_at_once_with_its_line(tmp_path: Path):
    text = """\
[server]
port = 70000
max-connections = 5
hots = "x"
api-key = { evn = "X" }
[limits]
max_conections = 1
drain-timeout = "5"
request-timeout = 5
[scheduling]
batching = "contionuous"
max-num-seqs = true
[[models]]
model = "smollm2"
keep-alive = "soon"
kv-memory = true
[[models]]
names = ["a"]
[keys.alice]
key = "plain"
[routes.auto]
models = [
    { modle = "x" },
]
[fleeet]
[key-defaults]
rpm = 5
[logging]
"""
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    lines = str(caught.value).replace(f"{tmp_path}/caudal.toml, ", "").splitlines()
    expected = [
        "line 2: server.port: input should be less than or equal to 65535",
        "line 3: there is no key server.max-connections; it belongs in [limits]",
        "line 4: there is no key server.hots; did you mean host?",
        "line 5: there is no key server.api-key.evn; did you mean env?",
        "line 7: there is no key limits.max_conections; did you mean max_connections?",
        "line 8: limits.drain-timeout: input should be a valid number",
        "line 9: there is no key limits.request-timeout; it belongs in [scheduling]",
        "line 11: scheduling.batching: input should be 'continuous', 'dynamic' or 'static'",
        "line 12: scheduling.max-num-seqs: input should be a valid integer",
        "line 15: models[0].keep-alive: must be a duration such as 5m",
        "line 16: models[0].kv-memory: must be text like 2GiB, or a number",
        "line 17: models[1].model is missing",
        "line 19: keys.alice: a key isn't written as it is",
        "line 22: routes.auto.models[0].model is missing",
        "line 22: there is no key routes.auto.models[0].modle; did you mean model?",
        "line 25: there is no key fleeet; did you mean fleet?",
        "line 27: there is no key key-defaults.rpm; did you mean requests-per-minute?",
        "line 28: there is no key logging; did you mean logs?",
    ]
    assert len(lines) == len(expected)
    for line, words in zip(lines, expected, strict=True):
        assert line.startswith(words)


def test_so_are_contradictions(tmp_path: Path):
    text = f"""\
[server]
allowed-host = ["http://x", "ok"]
allow-origin = ["nope"]
[answers]
tool-parser = "magic"
[loading]
chat-template = "missing.jinja"
[scheduling]
max-num-seqs = 100
max-num-batched-tokens = 50
[[models]]
model = "one"
preferred-batch-size = 3
[[models]]
model = "two"
[keys.a]
hash = "{HASH}"
[keys.b]
hash = "{HASH}"
"""
    with pytest.raises(ConfigurationError) as caught:
        pieces_of(read(tmp_path, text, root_path="llm"))
    said = str(caught.value)
    for words in (
        "line 2: allowed-host: 'http://x' is no host name",
        "--root-path: must be a path that begins with /",
        "line 3: allow-origin: 'nope' is no origin",
        "line 18: it is the same key as that of 'a'",
        "line 5: tool-parser: must be one of auto",
        "line 7: chat-template: cannot read",
        "line 10: max-num-batched-tokens: max_num_batched_tokens (50) must exceed",
        "line 13: preferred-batch-size: preferred_batch_size goes with batching dynamic only.",
    ):
        assert said.count(words) == 1, (words, said)
    assert len(said.splitlines()) == 8
    text = """\
[[models]]
model = "one"
names = ["x"]
[[models]]
model = "x"
[routes.r]
cascade = ["a", "b"]
[routes.q]
min-logprob = -1
[server]
api-key = { env = "THERE_IS_NO_SUCH_VARIABLE" }
"""
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    for words in (
        "line 4: there is a model or an adapter 'x' already",
        "line 6: the route 'r' needs a min_logprob",
        "line 8: the route 'q' needs either",
        "line 11: server.api-key: the environment has no variable THERE_IS_NO_SUCH_VARIABLE",
    ):
        assert words in str(caught.value)


def test_what_holds_for_all_keys_makes_no_key_necessary(tmp_path: Path):
    settings = read(tmp_path, "[key-defaults]\nmax-n = 2\n")
    assert pieces_of(settings).access.ring() is None
    (tmp_path / "keys.toml").write_text(f"[keys.alice]\nhash = '{HASH}'")
    settings = read(tmp_path, "[server]\napi-keys = 'keys.toml'\n[key-defaults]\nmax-n = 2\n")
    ring = pieces_of(settings).access.ring()
    assert ring is not None
    alice = ring.lookup(b"sesame")
    assert alice is not None
    assert alice.rules.max_n == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nport = 1\nport = 2\n", "line 3: Cannot overwrite a value"),
        ("[server]\nmax-n = 1\nmax_n = 2", "line 2: there is no key server.max-n"),
        ("[limits]\ndrain-timeout = 1\ndrain_timeout = 2", "line 1: limits: drain-timeout and dra"),
        ("server = 1", "line 1: server must be a table"),
        ("[server]\napi-key = {}", 'line 2: server.api-key: must be { env = "NAME" } or'),
        ("[server]\nport = 1.0", "line 2: server.port: input should be a valid integer"),
        ("models = 1", "line 1: models: input should be a valid list"),
        ("[[models]]\nmodel = ''", "line 2: models[0].model: string should have at least 1"),
        (f"[keys.'a b']\nhash='{HASH}'", 'keys."a b": must have 1 to 64 letters'),
    ],
)
def test_what_is_wrong(tmp_path: Path, text: str, words: str):
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
