"""Adapters at run time: as merged weights, and the same bits whatever else is in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from caudal.backends.executor import (
    Batch,
    PooledRows,
    SamplingRow,
    SequenceStep,
    StepResult,
    TokenLogprob,
)
from caudal.backends.native.executor import NativeExecutor, NativeOptions
from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.lora.adapter import Adapter
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.reading import read_adapter
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from caudal.sampling_params import SamplingParams
from references.checks import Runner, open_reference
from references.reference import Recorded
from references.weights import write_folder
from support.adapter_writer import changeable, random_adapter, write_merged, write_peft
from support.reference_model import TinyModel

PARAMS = SamplingParams(temperature=0, logprobs=0)


# Heads that are permuted; fused queries, keys and values; a head that is the embedding, with
# experts beside; recurrent layers whose columns are reordered.
@pytest.mark.parametrize("name", ["llama", "phi3", "cohere2_moe", "qwen3_5_moe"])
def test_an_adapter_is_as_good_as_merged_weights(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    with open_reference(write_folder(recorded, tmp_path / "base")) as file:
        modules = changeable(recorded, file.architecture)
        base = AdapterBase.of(file)
        runner = Runner(file)
    adapter = read_adapter(write_peft(tmp_path / "adapter", modules), base)
    plain = runner.scores()
    adapted = runner.scores(adapter=adapter)
    with open_reference(write_merged(recorded, tmp_path / "merged", modules, 1.5)) as file:
        merged = Runner(file)
    assert np.abs(adapted - plain).max() > 0.5
    np.testing.assert_allclose(adapted, merged.scores(), atol=1e-3)
    assert runner.scores().tolist() == plain.tolist(), "without it, as before"
    merged.close()
    runner.close()


MODEL = TinyModel(architecture="llama", layers=2, hidden=64)
PROMPTS = [[int(t) for t in np.random.default_rng(i).integers(0, 320, 70)] for i in range(6)]
ROW = SamplingRow(PARAMS, seed=1, stream=0, step=0)


class Adapted:
    """A model with two adapters, of different ranks and matrices."""

    def __init__(self, path: Path, threads: int = 2) -> None:
        with GGUFFile.open(path) as file:
            program = build_program(file)
            options = NativeOptions(num_blocks=60, max_batch_tokens=512, threads=threads)
            self.executor = NativeExecutor(file, program, options)
            self.shapes = {
                name: tensor.shape
                for name, tensor in file.tensors.items()
                if len(tensor.shape) == 2 and name != "token_embd.weight"
            }
        some = {name: shape for name, shape in self.shapes.items() if "attn_q" in name}
        self.adapters: list[int | None] = [None]
        for adapter in (random_adapter("one", self.shapes, 20), random_adapter("two", some, 3)):
            self.adapters.append(self.executor.load_adapter(adapter).index)

    def step(self, number: int, tokens: Sequence[int], context: int) -> SequenceStep:
        """A step of sequence `number`, which has an adapter or none."""
        table = range(number * 10, number * 10 + 10)
        adapter = self.adapters[number % 3]
        return SequenceStep(tokens, context, table, [ROW], adapter=adapter)

    def answer(self, number: int, chunk: int = 70) -> list[TokenLogprob]:
        """What follows a prompt, alone in its batches."""
        prompt, results = PROMPTS[number], []
        for first in range(0, len(prompt), chunk):
            step = self.step(number, prompt[first : first + chunk], first)
            results = list(self.executor.execute(Batch([step])))
        answer = [drawn(results[0])]
        for context in range(len(prompt), len(prompt) + 4):
            step = self.step(number, [answer[-1].token], context)
            answer.append(drawn(self.executor.execute(Batch([step]))[0]))
        return answer


def drawn(result: StepResult) -> TokenLogprob:
    found = result.samples[0].logprob
    assert found is not None
    return found


@pytest.fixture(scope="module", params=[TensorType.Q4_0, TensorType.F32], ids=lambda t: t.name)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODEL.write(tmp_path_factory.mktemp("model") / "tiny.gguf", request.param)


@pytest.fixture(scope="module")
def adapted(path: Path) -> Iterator[Adapted]:
    made = Adapted(path)
    yield made
    made.executor.close()


@pytest.fixture(scope="module")
def alone(adapted: Adapted) -> list[list[TokenLogprob]]:
    answers = [adapted.answer(number) for number in range(len(PROMPTS))]
    assert len({each.logprob for answer in answers for each in answer}) == 30
    return answers


def test_each_alone_in_chunks(adapted: Adapted, alone: list[list[TokenLogprob]]) -> None:
    for chunk in (1, 23, 64):
        for number in range(3):
            assert adapted.answer(number, chunk) == alone[number]


def test_mixed_in_one_batch(adapted: Adapted, alone: list[list[TokenLogprob]]) -> None:
    """Prompts at once, in another order each time, and at last single tokens."""
    contexts = [0] * len(PROMPTS)
    answers: list[list[TokenLogprob]] = [[] for _ in PROMPTS]
    rng = np.random.default_rng(3)
    while any(len(answer) < 5 for answer in answers):
        order = [n for n in rng.permutation(len(PROMPTS)).tolist() if len(answers[n]) < 5]
        steps = []
        for number in order:
            size = int(rng.integers(1, 50))
            known = PROMPTS[number] + [each.token for each in answers[number]]
            tokens = known[contexts[number] : contexts[number] + size]
            steps.append(adapted.step(number, tokens, contexts[number]))
        for number, step, result in zip(
            order, steps, adapted.executor.execute(Batch(steps)), strict=True
        ):
            contexts[number] += len(step.tokens)
            if contexts[number] >= len(PROMPTS[number]):
                answers[number].append(drawn(result))
    assert answers == alone


def test_threads_and_other_indices(path: Path, alone: list[list[TokenLogprob]]) -> None:
    other = Adapted(path, threads=1)
    *_, last = other.adapters
    assert last is not None
    other.executor.unload_adapter(last)
    down = "blk.1.ffn_down.weight"
    small = random_adapter("small", {down: other.shapes[down]})
    assert other.executor.load_adapter(small).index == last
    assert other.answer(2) != alone[2]
    assert other.answer(1) == alone[1]
    other.executor.close()


def test_the_bare_model_computes_what_it_did(
    path: Path, adapted: Adapted, alone: list[list[TokenLogprob]]
) -> None:
    with GGUFFile.open(path) as file:
        options = NativeOptions(num_blocks=60, max_batch_tokens=512, threads=2)
        bare = NativeExecutor(file, build_program(file), options)
    having, adapted.executor = adapted.executor, bare
    assert adapted.answer(0) == alone[0]
    adapted.executor = having
    bare.close()


def test_states_are_those_of_the_adapter(adapted: Adapted) -> None:
    def pooled(adapter: int | None) -> list[float]:
        step = SequenceStep(
            PROMPTS[0], 0, range(10), pooled_rows=PooledRows(0, 70), adapter=adapter
        )
        found = adapted.executor.execute(Batch([step]))[0].pooled
        assert found is not None
        return list(found.tolist())

    assert len({tuple(pooled(adapter)) for adapter in adapted.adapters}) == 3


def test_what_can_not_be_loaded_changes_nothing(
    adapted: Adapted, alone: list[list[TokenLogprob]]
) -> None:
    def refusal(adapter: Adapter) -> str:
        with pytest.raises(ModelLoadError) as caught:
            adapted.executor.load_adapter(adapter)
        return str(caught.value)

    embedding = random_adapter("it", {"token_embd.weight": (320, 64)})
    assert "it changes token_embd.weight, which adapters can't change" in refusal(embedding)
    assert "bad adapter" in refusal(random_adapter("it", {"blk.0.attn_q.weight": (64, 32)}))
    with pytest.raises(KeyError):
        adapted.executor.unload_adapter(7)
    with pytest.raises(ValueError, match="unknown adapter"):
        adapted.executor.execute(Batch([SequenceStep([1], 0, [0], adapter=7)]))
    assert adapted.answer(1) == alone[1]


def test_its_memory_is_counted(adapted: Adapted) -> None:
    shape = adapted.shapes["blk.0.attn_q.weight"]
    loaded = adapted.executor.load_adapter(random_adapter("it", {"blk.0.attn_q.weight": shape}, 16))
    assert (loaded.rank, loaded.bytes) == (16, 16 * 2 * sum(shape))
    adapted.executor.unload_adapter(loaded.index)
