"""Each family against transformers, and against llama.cpp."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

import numpy as np
import pytest

from caudal.formats.gguf import GGUFFile
from references import families
from references.checks import Runner, check_invariance, open_reference, write_as_gguf
from references.reference import Recorded, Reference
from references.weights import tokenizer_metadata, write_folder

pytestmark = pytest.mark.references

ALL: dict[str, Reference] = {
    name: reference
    for module in pkgutil.iter_modules(families.__path__)
    for name, reference in importlib.import_module(
        f"references.families.{module.name}"
    ).REFERENCES.items()
}
FAMILY = os.environ.get("FAMILY", "")
RECORD = os.environ.get("RECORD")


@pytest.mark.parametrize("name", [name for name in ALL if FAMILY in name])
def test_agrees(name: str, tmp_path: Path) -> None:
    from references import llama_cpp, transformers_model

    reference = ALL[name]
    asked = transformers_model.ask(reference, tmp_path / "saved")
    with open_reference(tmp_path / "saved") as file:
        ours = check_invariance(file)
        np.testing.assert_allclose(ours, asked.logprobs, atol=reference.tolerance)
        gguf = write_as_gguf(file, tmp_path / "model.gguf", dict(tokenizer_metadata()))
    if RECORD:
        asked.write(name)
    recorded = Recorded.read(name)
    np.testing.assert_allclose(recorded.logprobs, asked.logprobs, atol=1e-5)
    write_folder(recorded, tmp_path / "rebuilt")
    files = [tmp_path / "rebuilt", gguf]
    if reference.llama_cpp:
        files.append(llama_cpp.rewritten(gguf))
    for path in files:
        with open_reference(path) if path.is_dir() else GGUFFile.open(path) as file:
            runner = Runner(file)
            assert runner.scores().tolist() == ours.tolist(), path
            runner.close()
    if reference.llama_cpp:
        places, theirs = llama_cpp.ask(gguf)
        np.testing.assert_allclose(ours[places], theirs, atol=1e-3)
