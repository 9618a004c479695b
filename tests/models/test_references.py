"""Folders of every family against what transformers was recorded to say; see tests/references."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from caudal.formats.tensor_types import TensorType
from references.checks import check_invariance, open_reference
from references.encoders import INPUTS, RecordedEncoder, vectors, write_encoder
from references.reference import Recorded
from references.weights import write_folder
from support.safetensors_writer import write_safetensors
from support.sketches import check_sketch


@pytest.mark.parametrize("name", Recorded.names())
def test_says_what_transformers_said(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    with open_reference(write_folder(recorded, tmp_path / name)) as file:
        ours = check_invariance(file, quick=True)
        check_sketch(recorded.config, file, TensorType.F32)
    np.testing.assert_allclose(ours, recorded.logprobs, atol=recorded.tolerance)


@pytest.mark.parametrize("name", Recorded.names())
def test_config_json_alone_says_what_a_model_in_bf16_takes(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    nothing = {key: np.zeros(spread[0], np.uint16) for key, spread in recorded.tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", nothing)
    (tmp_path / "config.json").write_text(json.dumps(recorded.config))
    with open_reference(tmp_path) as file:
        check_sketch(recorded.config, file, TensorType.BF16)


@pytest.mark.parametrize("name", RecordedEncoder.names())
def test_embeds_as_others_did(name: str, tmp_path: Path) -> None:
    recorded = RecordedEncoder.read(name)
    folder = write_encoder(recorded, tmp_path / name)
    ours = vectors(folder)
    for place, vector in enumerate(recorded.vectors):
        np.testing.assert_allclose(ours[place], vector, atol=recorded.tolerance)
        # Alone the same, to the bit.
        assert vectors(folder, [INPUTS[place]]) == [ours[place]]
