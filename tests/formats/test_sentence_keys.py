"""What sentence-transformers keeps beside a model, as keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.families import find_family
from caudal.formats.huggingface.sentence_keys import SentenceModules, embedding_metadata
from caudal.formats.model_folder import ModelFolder


@pytest.mark.parametrize(
    "pooling",
    [{"pooling_mode_lasttoken": True, "include_prompt": True}, {"pooling_mode": "lasttoken"}],
)
def test_modules_say_how_a_model_that_generates_embeds(
    pooling: dict[str, Any], tmp_path: Path
) -> None:
    kinds = ["", "1_Pooling"]
    modules = [
        {"type": f"x.{kind}", "path": path}
        for kind, path in zip(("Transformer", "Pooling"), kinds, strict=True)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    read = SentenceModules.read(ModelFolder.scan(tmp_path))
    config = Config("config.json", {"matryoshka_dimensions": [64, 32]})
    keys = embedding_metadata(config, read, "qwen3", is_encoder=False)
    assert keys.pop("caudal.embedding.dimensions").tolist() == [32, 64]  # type: ignore[union-attr]
    assert keys == {"qwen3.pooling_type": 3, "caudal.embedding.normalize": False}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": {"query": 1}}, "prompts must be up to 256 texts"),
        ({"default_prompt_name": "query"}, "default_prompt_name is 'query', which prompts doesn't"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    modules = [{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match=message):
        SentenceModules.read(ModelFolder.scan(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {
                "model_type": "modernbert",
                "layer_types": ["full_attention", "sliding_attention", "full_attention"] * 2,
            },
            "layer_types isn't one of full_attention to the same number",
        ),
        ({"model_type": "modernbert", "rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"model_type": "nomic_bert", "n_embd": 64, "prenorm": True}, "prenorm is True"),
        (
            {"model_type": "nomic_bert", "n_embd": 64, "rotary_emb_fraction": 0.5},
            "rotary_emb_fraction is 0.5",
        ),
        ({"model_type": "nomic_bert", "hidden_act": "relu"}, "hidden_act is 'relu'"),
    ],
)
def test_what_encoders_do_not_compute_is_refused(content: dict[str, Any], message: str) -> None:
    config = Config("config.json", content)
    family = find_family(config)
    with pytest.raises(ModelLoadError, match=message):
        family.metadata(config.with_defaults(family.defaults))
