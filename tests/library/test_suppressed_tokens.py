"""Tokens that a model's maker keeps out of answers: those of images and sounds."""

from __future__ import annotations

import json
from pathlib import Path

from caudal import LLM, SamplingParams
from support.tiny_folder import write_tiny_folder


def test_no_answer_has_a_suppressed_token_whatever_is_asked(tmp_path: Path):
    folder = write_tiny_folder(tmp_path / "model")
    prompt = {"prompt_token_ids": [3, 4, 5]}

    def chosen(**asked: object) -> int:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, **asked)  # type: ignore[arg-type]
        with LLM(folder, threads=1, kv_memory=2**20) as llm:
            [result] = llm.generate([prompt], params)
        return result.outputs[0].token_ids[0]

    likeliest = chosen()
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({"suppress_tokens": [likeliest]}))
    second = chosen()
    assert second != likeliest
    assert chosen(min_tokens=1) == chosen(logit_bias={likeliest: 100}) == second
    assert chosen(allowed_token_ids=[likeliest, second]) == second
