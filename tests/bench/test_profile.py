"""What `caudal bench engine --profile` counts, on a model small enough to count by hand."""

from __future__ import annotations

import pytest

from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.bench.engine import PROMPT_TOKENS
from caudal.bench.profile import CaseProfile, profile_cases
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from support.reference_model import TinyModel

MODEL = TinyModel(architecture="llama", layers=2, tied=False)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[CaseProfile]:
    path = MODEL.write(tmp_path_factory.mktemp("model") / "tiny.gguf", TensorType.Q4_0)
    with GGUFFile.open(path) as file:
        executor = NativeExecutor(
            file,
            build_program(file),
            NativeOptions(num_blocks=352, max_batch_tokens=PROMPT_TOKENS, threads=2),
        )
    return profile_cases(executor, runs=1)


def test_linear_stages_count_their_weights_and_products(cases: list[CaseProfile]) -> None:
    prefill = {stage.name: stage for stage in cases[0].stages}
    down = prefill["linear Q4_0 64x96"]
    assert down.calls == MODEL.layers
    assert down.bytes == MODEL.layers * 64 * 96 * 18 / 32
    # In the last layer only the last token needs it.
    rows = (MODEL.layers - 1) * PROMPT_TOKENS + 1
    assert down.operations == 2 * 64 * 96 * rows
    # Activations that keys and values are made of have two terms.
    projections = prefill["linear Q4_0 64x64 + Q4_0 32x64 + Q4_0 32x64"]
    assert projections.operations == 2 * 64 * (64 + 2 * 64) * MODEL.layers * PROMPT_TOKENS
    head = prefill["linear Q4_0 320x64"]
    assert head.operations == 2 * 320 * 64, "only the last token's logits are wanted"


def test_attention_counts_what_queries_see(cases: list[CaseProfile]) -> None:
    decode = {stage.name: stage for stage in cases[1].stages}["attention"]
    seen = 129
    assert decode.bytes == MODEL.layers * 2 * seen * 32 * 2
    assert decode.operations == MODEL.layers * 4 * 64 * seen


def test_stages_are_sorted_and_timed(cases: list[CaseProfile]) -> None:
    for case in cases:
        seconds = [stage.work_seconds for stage in case.stages]
        assert seconds == sorted(seconds, reverse=True)
        assert min(seconds) >= 0
        assert case.thread_seconds == pytest.approx(sum(seconds))
    assert [case.tokens for case in cases] == [PROMPT_TOKENS, 1, 32, 1]
