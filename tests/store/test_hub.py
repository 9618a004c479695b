"""Models of the Hugging Face Hub, with its real library and a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from caudal.errors import ModelNotFoundError
from caudal.store import Store
from caudal.store.hub.selection import choose_files
from support.local_hub import COMMIT, TOKEN, LocalHub
from support.wheels import model_bytes

PULL = """
import json, sys
from pathlib import Path
from caudal.errors import CaudalError
from caudal.store import Store
store = Store(Path(sys.argv[1]))
for name in sys.argv[2:]:
    stages = []
    try:
        model = store.pull(name, lambda event: stages.append((event.item, event.completed)))
        answer = {"name": model.name, "names": model.names, "sha256": model.sha256,
                  "licence": model.licence, "stages": stages}
    except CaudalError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
"""
Q4, Q8 = model_bytes(300_000, seed=1), model_bytes(400_000, seed=2)
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer.json": b'{"model": {}}',
}


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    local = LocalHub(
        {
            "me/Tiny-GGUF": {
                "README.md": b"#",
                "Tiny-Q4_K_M.gguf": Q4,
                "Tiny-Q8_0.gguf": Q8,
                "mmproj-Q4_K_M.gguf": b"GGUF",
                "template": b"{{ .Prompt }}",
                "params": b'{"stop": ["</s>"]}',
            },
            "me/Tiny": {"README.md": b"#", "pytorch_model.bin": b"x", **FOLDER},
        }
    )
    yield local
    local.close()


def pull(hub: LocalHub, store: Store, *names: str, **settings: str) -> list[dict[str, Any]]:
    """Pull in a process of its own, as the library reads its settings once."""
    home = store.home.with_name("hf")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "*", **settings}
    result = subprocess.run(
        [sys.executable, "-c", PULL, store.home, *names],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_files_folders_and_what_is_not_there(hub: LocalHub, store: Store) -> None:
    hub.private.add("me/Private")
    usual, other, same, folder, wrong, none, private = pull(
        hub,
        store,
        "hf:me/Tiny-GGUF",
        "hf:me/Tiny-GGUF:q8_0",
        "hf.co/me/Tiny-GGUF:Q8_0",
        "hf:me/Tiny",
        "hf:me/Tiny-GGUF:Q5_K_M",
        "hf:me/None",
        "hf:me/Private",
    )
    assert (usual["name"], usual["sha256"]) == ("hf:me/Tiny-GGUF", [sha256(Q4)])
    assert usual["licence"] == "mit"
    assert ["Tiny-Q4_K_M.gguf", len(Q4)] in usual["stages"]
    assert (other["sha256"], same["sha256"]) == ([sha256(Q8)], [sha256(Q8)])
    assert hub.fetched().count("Tiny-Q8_0.gguf") == 1
    assert folder["names"][0] == "model.safetensors"
    assert set(folder["names"]) == set(FOLDER)
    assert "has no Q5_K_M; it has Tiny-Q4_K_M.gguf, Tiny-Q8_0.gguf" in wrong["error"]
    assert "has no me/None" in none["error"]
    assert "HF_TOKEN" in private["error"]
    kept = store.resolve("hf:me/Tiny-GGUF")
    assert kept.path.read_bytes() == Q4
    assert kept.package.template == "{{ .Prompt }}"
    assert kept.package.parameters == {"stop": ["</s>"]}
    assert kept.path.stat().st_nlink == 1
    assert not list((store.home / "downloads").iterdir())


def test_the_librarys_cache_is_read_and_not_copied(hub: LocalHub, store: Store) -> None:
    cache = store.home.with_name("hf") / "hub/models--me--Tiny-GGUF"
    snapshot = cache / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(COMMIT)
    blob = cache / "blobs" / sha256(Q8)
    blob.write_bytes(Q8)
    (snapshot / "Tiny-Q8_0.gguf").symlink_to(f"../../blobs/{blob.name}")
    offline, missing = pull(hub, store, "hf:me/Tiny-GGUF", "hf:me/Tiny", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in missing["error"]
    assert (offline["sha256"], hub.requests) == ([sha256(Q8)], [])
    assert store.resolve("hf:me/Tiny-GGUF").path.samefile(blob)
    [online] = pull(hub, store, "hf:me/Tiny-GGUF:Q8_0")
    assert online["sha256"] == [sha256(Q8)]
    assert "Tiny-Q8_0.gguf" not in hub.fetched()
    nowhere = "http://127.0.0.1:9"
    there, gone = pull(hub, store, "hf:me/Tiny-GGUF", "hf:me/Tiny", HF_ENDPOINT=nowhere)
    assert there["sha256"] == [sha256(Q8)]
    assert "hf:me/Tiny can't be fetched" in gone["error"]
    assert "the Hugging Face Hub can't be reached" in gone["error"]


def test_tokens_and_lies(hub: LocalHub, store: Store) -> None:
    hub.private.add("me/Tiny-GGUF")
    hub.corrupt = True
    [lied] = pull(hub, store, "hf:me/Tiny-GGUF", HF_TOKEN=TOKEN)
    assert re.search("isn't what (the Hub says that )?it is", lied["error"])
    assert store.list() == []
    hub.corrupt = False
    [allowed] = pull(hub, store, "hf:me/Tiny-GGUF", HF_TOKEN=TOKEN)
    assert allowed.get("sha256") == [sha256(Q4)], allowed
    assert store.resolve("hf:me/Tiny-GGUF").package.template == "{{ .Prompt }}"


NAMES = (
    "README.md",
    "M-IQ4_NL.gguf",
    "M-Q4_K_M.gguf",
    "M-UD-Q4_K_XL.gguf",
    "BF16/M-BF16-00001-of-00002.gguf",
    "BF16/M-BF16-00002-of-00002.gguf",
    "imatrix_Q8_0.gguf",
)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (None, ["M-Q4_K_M.gguf"]),
        ("latest", ["M-Q4_K_M.gguf"]),
        ("q4_k_xl", ["M-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("bf16", list(NAMES[4:6])),
        ("BF16/m-bf16-00002-of-00002.gguf", list(NAMES[4:6])),
        ("imatrix_Q8_0.gguf", ["imatrix_Q8_0.gguf"]),
    ],
)
def test_a_quantisation_chooses_files(selection: str | None, chosen: list[str]) -> None:
    assert list(choose_files(NAMES, selection, "hf:me/m")) == chosen


def test_what_cannot_be_chosen() -> None:
    for selection in ("Q8_0", "Q4_K", "none.gguf"):
        with pytest.raises(ModelNotFoundError, match=f"has no {selection}; it has"):
            choose_files(NAMES, selection, "hf:me/m")
    with pytest.raises(ModelNotFoundError, match=r"no config\.json, tokenizer\.json"):
        choose_files(("model.safetensors",), None, "hf:me/m")
    with pytest.raises(ModelNotFoundError, match="lacks BF16/M-BF16-00002-of-00002"):
        choose_files(NAMES[:5], "BF16", "hf:me/m")
    assert list(choose_files(NAMES[1:2], None, "hf:me/m")) == ["M-IQ4_NL.gguf"]
