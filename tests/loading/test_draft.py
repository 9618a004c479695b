"""Draft models: answers are the same to the bit, and what can't guess for a model is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caudal import LLM, SamplingParams
from caudal.engine.drafting.speculation import Speculation
from caudal.errors import ModelLoadError, ParameterError
from caudal.loading.load import load_model, plan_model
from caudal.loading.options import LoadOptions
from caudal.planning.plan import Demand, Planner
from caudal.planning.reading import read_figures
from caudal.structured_outputs import StructuredOutputsParams
from support.reference_hybrids import TinyQwen35, TinyQwen35Ahead
from support.reference_model import TinyModel
from support.vocabularies import bpe_metadata


def of_tokens(model: TinyModel) -> TinyModel:
    """A model with the tokens that all of them have."""
    named = bpe_metadata() | model.metadata | {"general.architecture": model.architecture}
    return replace(model, vocab_size=259, metadata=named)


TARGET = of_tokens(TinyModel(architecture="llama", layers=2))
DRAFTS = {
    "itself": TARGET,
    "another": of_tokens(TinyModel(architecture="qwen2", layers=1, biases=True, seed=7)),
    "a hybrid": of_tokens(TinyQwen35()),
}
PROMPTS = ["a prompt", "another prompt, which is longer", "a prompt that begins like one", "x" * 90]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.7, top_p=0.9, seed=3, max_tokens=24, n=2),
    SamplingParams(
        seed=5, repetition_penalty=1.3, frequency_penalty=0.5, max_tokens=20, min_tokens=9, stop="e"
    ),
    SamplingParams(
        seed=6, max_tokens=18, structured_outputs=StructuredOutputsParams(regex="([ab]{3} ?)+")
    ),
]


def answers(target: Path, **options: Any) -> tuple[list[Any], int]:
    """What a model answers, and how many guesses were right."""
    common: dict[str, Any] = {"threads": 1, "max_num_seqs": 8, "max_num_batched_tokens": 32}
    with LLM(target, **common, **options) as llm:
        results = llm.generate(PROMPTS, PARAMS)
        drafting = llm._service.parts.engine._engine.stats().drafts
        outputs = [
            [(output.token_ids, output.logprobs, output.finish_reason) for output in each.outputs]
            for each in results
        ]
        return outputs, drafting.accepted


@pytest.mark.parametrize("draft", list(DRAFTS))
def test_answers_are_the_same_to_the_bit(draft: str, tmp_path: Path) -> None:
    target = TARGET.write(tmp_path / "target.gguf")
    path = DRAFTS[draft].write(tmp_path / "draft.gguf")
    # So little that not all sequences have room at once.
    options = {"kv_memory": 160 << 10, "max_model_len": 128}
    plain, _ = answers(target, **options)
    config = {
        "method": "draft_model",
        "model": str(path),
        "num_speculative_tokens": 4,
        "adaptive": False,
    }
    guessed, right = answers(target, **options, speculative_config=config)
    assert guessed == plain
    assert right > 40 if draft == "itself" else right >= 0


@pytest.mark.parametrize("model", [TARGET, DRAFTS["a hybrid"]], ids=["llama", "hybrid"])
def test_answers_are_the_same_with_look_ups(model: TinyModel, tmp_path: Path) -> None:
    target = model.write(tmp_path / "target.gguf")
    options = {"kv_memory": 1 << 20, "max_model_len": 128}
    plain, _ = answers(target, **options, speculative="off")
    for config in ({"prompt_lookup_min": 1, "adaptive": False}, {"prompt_lookup_min": 2}):
        guessed, right = answers(target, **options, speculative_config=config)
        assert guessed == plain
        assert right > 0 or "adaptive" not in config


def test_answers_are_the_same_with_a_layer_that_predicts_ahead(tmp_path: Path) -> None:
    target = of_tokens(TinyQwen35Ahead()).write(tmp_path / "target.gguf")
    options = {"kv_memory": 1 << 20, "max_model_len": 128}
    plain, _ = answers(target, **options)
    guessed, _ = answers(target, **options, speculative_config={"method": "mtp", "adaptive": False})
    assert guessed == plain
    with pytest.raises(ParameterError, match="can't guess by mtp"):
        answers(TARGET.write(tmp_path / "without.gguf"), speculative="mtp")


def speculates(path: Path, **options: Any) -> LoadOptions:
    speculation = Speculation(method="draft", model=str(path))
    return LoadOptions(**{"kv_memory": 2**20, "threads": 1} | options, speculative=speculation)


def test_memory_is_for_both_models(tmp_path: Path) -> None:
    target, path = TARGET.write(tmp_path / "it.gguf"), DRAFTS["a hybrid"].write(tmp_path / "h.gguf")
    with plan_model(str(target), speculates(path)) as planned:
        assert planned.draft_memory is not None
        own, drafts = planned.run.memory.kinds, planned.draft_memory.kinds
        assert 2**19 < own.bytes + drafts.bytes <= 2**20
        assert own.sequences(1024) >= 1
        assert drafts.sequences(1024) >= 1
        loaded = planned.load(memory=2**19)
    try:
        assert loaded.draft is not None
        assert loaded.facts.draft == loaded.draft.facts
        assert loaded.facts.memory is not None
        assert loaded.facts.memory.bytes + loaded.draft.facts.memory.bytes <= 2**19
    finally:
        loaded.close()


@pytest.mark.parametrize("draft", list(DRAFTS))
def test_what_a_plan_says_suffices_for_both(draft: str, tmp_path: Path) -> None:
    target = TARGET.write(tmp_path / "it.gguf")
    path = DRAFTS[draft].write(tmp_path / "draft.gguf")
    smaller = read_figures(str(path))
    figures = replace(read_figures(str(target)), draft=smaller)
    found, demand = Planner(figures), Demand(users=5, context=200)
    needs = found.needs(demand)
    assert needs.draft_model > 0
    assert found.flags(demand)[-2:] == ["--speculative", f"draft:{smaller.name}"]
    options = speculates(
        path, kv_memory=-(-needs.sequences // 2**20) * 2**20, max_num_seqs=5, max_model_len=200
    )
    with plan_model(str(target), options) as planned:
        memory = planned.draft_memory
        assert memory is not None
        assert planned.run.memory.kinds.sequences(200) >= 5
        assert memory.kinds.sequences(200) >= 5
        assert memory.weights.bytes + memory.workspace == needs.draft_model


def test_what_a_plan_says_suffices_for_a_layer_and_the_states_that_wait(tmp_path: Path) -> None:
    target = str(of_tokens(TinyQwen35Ahead()).write(tmp_path / "it.gguf"))
    found, demand = Planner(read_figures(target, with_ahead=True)), Demand(users=5, context=100)
    needs, without = found.needs(demand), Planner(read_figures(target)).needs(demand)
    assert needs.weights == without.weights
    assert needs.sequences > without.sequences
    assert found.flags(demand)[-2:] == ["--speculative", "mtp"]
    options = LoadOptions(
        threads=1,
        kv_memory=-(-needs.sequences // 2**20) * 2**20,
        max_num_seqs=5,
        max_model_len=100,
        speculative=Speculation(method="mtp", num_speculative_tokens=5),
    )
    with plan_model(target, options) as planned:
        memory = planned.draft_memory
        assert memory is not None
        assert planned.run.memory.kinds.sequences(100) >= 5
        assert memory.kinds.sequences(100) >= 5
        weights = planned.run.memory.weights.bytes + memory.weights.bytes
        assert weights + memory.workspace == needs.weights + needs.draft_model
        loaded = planned.load()
    try:
        width = loaded.program.state.width
        assert loaded.draft is not None
        assert loaded.draft.facts.state_bytes == (512 + 256) * width * 4
        assert 0 < loaded.draft.facts.state_bytes < memory.workspace
    finally:
        loaded.close()
    with pytest.raises(ParameterError, match="no layer that predicts"):
        read_figures(str(TARGET.write(tmp_path / "without.gguf")), with_ahead=True)


def test_what_cannot_guess_for_a_model_is_refused_by_name(tmp_path: Path) -> None:
    target = TARGET.write(tmp_path / "it.gguf")
    tokens = bpe_metadata()["tokenizer.ggml.tokens"]
    changed = bpe_metadata() | {"tokenizer.ggml.tokens": [*tokens[:200], "other", *tokens[201:]]}
    refused = {
        "token 200 is 'other' there": replace(TARGET, metadata=changed),
        "it knows 260 tokens, and the model 259": replace(
            TARGET,
            vocab_size=260,
            metadata=changed
            | {
                "tokenizer.ggml.tokens": [*tokens, "more"],
                "tokenizer.ggml.token_type": [*changed["tokenizer.ggml.token_type"], 1],
            },
        ),
    }
    for number, (why, model) in enumerate(refused.items()):
        path = model.write(tmp_path / f"{number}.gguf")
        with pytest.raises(ParameterError, match=why) as bad:
            load_model(str(target), speculates(path))
        assert bad.value.param == "speculative"
        # Where the option is for whatever is loaded, this one runs without.
        loaded = load_model(str(target), speculates(path, for_all=True))
        assert loaded.draft is None
        assert loaded.engine_config.speculative is None
        loaded.close()
    # Not that the model itself is missing.
    with pytest.raises(ModelLoadError, match=r"nothing\.gguf: this draft model is not on"):
        load_model(str(target), speculates(tmp_path / "nothing.gguf"))
    with pytest.raises(ParameterError, match="doesn't suffice for the draft model"):
        load_model(str(target), speculates(target, kv_memory=6 << 10))
