"""Each encoder against transformers, and against llama.cpp."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from references.checks import open_reference, write_as_gguf
from references.encoders import (
    ENCODERS,
    INPUTS,
    EncoderReference,
    RecordedEncoder,
    dense_weights,
    vectors,
    write_encoder,
    write_modules,
)
from references.weights import tokenizer_metadata

pytestmark = pytest.mark.references

FAMILY = os.environ.get("FAMILY", "")


@pytest.mark.parametrize("name", [name for name in ENCODERS if FAMILY in name])
def test_agrees(name: str, tmp_path: Path) -> None:
    from references import llama_cpp

    reference = ENCODERS[name]
    asked = _untold(reference) if reference.tensors else _ask(reference, tmp_path / "saved")
    folder = write_encoder(asked, tmp_path / "rebuilt")
    ours = vectors(folder)
    with open_reference(folder) as file:
        # What llama.cpp asks for besides.
        more: dict[str, object] = {}
        if "token_types.weight" in file.tensors:
            segments = file.tensors["token_types.weight"].shape[0]
            more["tokenizer.ggml.token_type_count"] = segments
        for layer in (2, 3):
            if f"dense_{layer}.weight" in file.tensors:
                given, read = file.tensors[f"dense_{layer}.weight"].shape
                more[f"{file.architecture}.dense_{layer}_feat_in"] = read
                more[f"{file.architecture}.dense_{layer}_feat_out"] = given
        gguf = write_as_gguf(file, tmp_path / "model.gguf", {**tokenizer_metadata(), **more})
    theirs = None
    if reference.llama_cpp:
        theirs = llama_cpp.embed(gguf, INPUTS)
        assert vectors(llama_cpp.rewritten(gguf)) == ours
        if not asked.vectors:  # nobody else knows the model
            asked = replace(asked, vectors=theirs, tolerance=5e-4)
    if os.environ.get("RECORD"):
        asked.write(name)
    assert vectors(gguf) == ours
    for place, vector in enumerate(asked.vectors):
        np.testing.assert_allclose(ours[place], vector, atol=asked.tolerance)
        np.testing.assert_allclose(RecordedEncoder.read(name).vectors[place], vector, atol=1e-5)
        if theirs is not None:
            np.testing.assert_allclose(ours[place], theirs[place], atol=2e-3)


def _untold(reference: EncoderReference) -> RecordedEncoder:
    """A model that transformers doesn't have."""
    assert reference.tensors is not None
    tensors = {}
    for name, shape in reference.tensors.items():
        is_norm = len(shape) == 1 and name.endswith("weight")
        spread = (float(is_norm), 0.1) if len(shape) == 1 else (0.0, 1 / math.sqrt(shape[-1]))
        tensors[name] = (list(shape), *spread)
    return RecordedEncoder(config=dict(reference.config), tensors=tensors, dense=[], vectors=[])


def _ask(reference: EncoderReference, path: Path) -> RecordedEncoder:
    """What transformers says."""
    import torch

    from references import transformers_model

    model, tensors = transformers_model.make(reference, path)
    config = json.loads((path / "config.json").read_text())
    said = []
    for tokens in INPUTS:
        with torch.no_grad():
            output = model(input_ids=torch.tensor([tokens]))
        if "logits" in output:
            said.append(output.logits[0].double().tolist())
            continue
        vector = output.last_hidden_state[0].double().numpy().mean(axis=0)
        for weight in dense_weights(reference.dense, len(vector)):
            vector = weight @ vector
        said.append((vector / np.linalg.norm(vector)).tolist())
    write_modules(path, reference.dense, config["hidden_size"])
    return RecordedEncoder(
        config=config, tensors=tensors, dense=list(reference.dense), vectors=said
    )
