"""A request's tokens and log-probabilities depend on the request alone, to the last bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from caudal.backends.executor import (
    Batch,
    SamplingRow,
    SequenceStep,
    StateSlots,
    TokenLogprob,
)
from caudal.backends.native.executor import BLOCK_SIZE, NativeExecutor, NativeOptions
from caudal.backends.native.options import KVType
from caudal.formats.gguf import GGUFFile
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program
from caudal.models.program import Attention, Program
from caudal.sampling_params import SamplingParams
from support.attention_model import ARCHITECTURE, AttentionModel
from support.attention_model import build as build_attention
from support.reference_hybrids import TinyLFM2, TinyQwen35
from support.reference_model import TinyExperts, TinyModel

NUM_BLOCKS = 400
MAX_TOKENS = 640
# Longer than two partitions of attention (256 each), so that its merging is covered too.
PROMPT = [(37 * i + i * i) % 320 for i in range(600)]
ANSWER = 6
PARAMS = SamplingParams(temperature=0.9, top_p=0.95, seed=5, logprobs=5)

WINDOW = 100

MODELS: dict[str, tuple[TinyModel | AttentionModel, TensorType]] = {
    "llama Q4_1": (
        TinyModel(architecture="llama", layers=2, hidden=96, heads=6, kv_heads=2),
        TensorType.Q4_1,
    ),
    "llama Q4_K": (
        TinyModel(architecture="llama", layers=2, hidden=256, feed_forward=512, head_dim=64),
        TensorType.Q4_K,
    ),
    "qwen3 Q8_0": (
        TinyModel(architecture="qwen3", layers=2, hidden=96, heads=7, kv_heads=1, head_dim=32),
        TensorType.Q8_0,
    ),
    "gemma3 Q6_K with a sliding window": (
        TinyModel(
            architecture="gemma3",
            layers=6,
            hidden=256,
            feed_forward=256,
            head_dim=64,
            window=WINDOW,
        ),
        TensorType.Q6_K,
    ),
    "qwen3moe Q4_K and a shared expert": (
        TinyModel(
            architecture="qwen3moe",
            layers=2,
            hidden=256,
            head_dim=64,
            experts=TinyExperts(count=16, used=4, inner=256, shared=256),
        ),
        TensorType.Q4_K,
    ),
    "llama F16": (TinyModel(architecture="llama", layers=2), TensorType.F16),
    "windows, sinks and latents Q8_0": (AttentionModel(), TensorType.Q8_0),
}
IN_8_BITS = "windows, sinks and latents, keys and values in 8 bits"
MODELS[IN_8_BITS] = MODELS["windows, sinks and latents Q8_0"]
WITH_WINDOWS = ["gemma3 Q6_K with a sliding window", "windows, sinks and latents Q8_0", IN_8_BITS]


def kv_type_of(name: str) -> KVType:
    return "q8" if name == IN_8_BITS else "f16"


def program_of(file: GGUFFile, *, forget: bool) -> Program:
    """The program with a pool for its window, or with everything in the main one."""
    made_up = file.architecture == ARCHITECTURE
    program = build_attention(file) if made_up else build_program(file)
    windowed = {
        op.layer for op in program.body if isinstance(op, Attention) and op.window == WINDOW
    }
    layers = (
        dataclasses.replace(layer, window=WINDOW if forget and index in windowed else None)
        for index, layer in enumerate(program.kv_layers)
    )
    return dataclasses.replace(program, kv_layers=tuple(layers))


class Runner:
    """Runs PROMPT and ANSWER tokens on an executor, cut in chunks and beside others as told.

    `window_blocks`: layers with a window have a pool of so many blocks; None: they keep all tokens.
    """

    def __init__(
        self, path: Path, threads: int, kv_type: KVType, window_blocks: int | None = None
    ) -> None:
        with GGUFFile.open(path) as file:
            program = program_of(file, forget=window_blocks is not None)
            self.executor = NativeExecutor(
                file,
                program,
                NativeOptions(
                    num_blocks=NUM_BLOCKS,
                    max_batch_tokens=MAX_TOKENS,
                    threads=threads,
                    kv_type=kv_type,
                    window_blocks=() if window_blocks is None else (window_blocks,),
                ),
            )

    def run(
        self, chunks: Sequence[int] = (len(PROMPT),), others: int = 0, first_block: int = 0
    ) -> list[TokenLogprob]:
        """The answer's tokens with their log-probabilities."""
        table = list(range(first_block, first_block + 40))[::-1]
        done = 0
        answer: list[TokenLogprob] = []
        for iteration, size in enumerate((*chunks, *[1] * (ANSWER - 1))):
            tokens = PROMPT[done : done + size] or [answer[-1].token]
            last = done + size >= len(PROMPT)
            row = SamplingRow(params=PARAMS, seed=5, stream=0, step=len(answer))
            step = SequenceStep(tokens, done, table, [row] if last else [])
            steps = [*self._others(others, iteration), step]
            result = self.executor.execute(Batch(steps))[-1]
            if last:
                assert result.samples[0].logprob is not None
                answer.append(result.samples[0].logprob)
            done += size
        return answer

    def _others(self, count: int, iteration: int) -> Iterator[SequenceStep]:
        for number in range(count):
            size = 1 + (number * 5 + iteration) % 4  # prefill chunks and decodes, mixed
            context = 0 if iteration == 0 else 10 + 4 * iteration
            tokens = [(number + i + iteration) % 320 for i in range(size)]
            table = range(100 + 10 * number, 110 + 10 * number)
            row = SamplingRow(params=SamplingParams(), seed=number, stream=0, step=iteration)
            yield SequenceStep(tokens, context, table, [row])


@pytest.fixture(params=MODELS, scope="module")
def model_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model_path(model_name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, quantised = MODELS[model_name]
    return model.write(tmp_path_factory.mktemp("model") / "tiny.gguf", quantised)


@pytest.fixture(scope="module")
def kv_type(model_name: str) -> KVType:
    return kv_type_of(model_name)


@pytest.fixture(scope="module")
def runner(model_path: Path, kv_type: KVType) -> Iterator[Runner]:
    made = Runner(model_path, threads=2, kv_type=kv_type)
    yield made
    made.executor.close()


@pytest.fixture(scope="module")
def alone(runner: Runner) -> list[TokenLogprob]:
    answer = runner.run()
    assert len({token.logprob for token in answer}) > 1, "a constant answer would prove little"
    return answer


@pytest.mark.parametrize("size", [1, 7, 16, 100, 512])
def test_chunking(runner: Runner, alone: list[TokenLogprob], size: int) -> None:
    whole, rest = divmod(len(PROMPT), size)
    assert runner.run(chunks=[size] * whole + ([rest] if rest else [])) == alone


@pytest.mark.parametrize("others", [1, 3, 16])
def test_company(runner: Runner, alone: list[TokenLogprob], others: int) -> None:
    chunks = [500, 90, 10]
    assert runner.run(chunks=chunks, others=others) == alone


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(
    model_path: Path, kv_type: KVType, alone: list[TokenLogprob], threads: int
) -> None:
    other = Runner(model_path, threads, kv_type)
    assert other.run(chunks=[599, 1], others=2) == alone
    other.executor.close()


def test_other_blocks_with_stale_contents(runner: Runner, alone: list[TokenLogprob]) -> None:
    runner.run(others=16)  # leaves its keys and values behind
    assert runner.run(first_block=103) == alone


def test_copied_blocks(runner: Runner, alone: list[TokenLogprob]) -> None:
    """A prefix whose blocks were copied (copy-on-write, partial reuse) is as good as its own."""
    runner.run()
    own = list(range(40))[::-1]
    blocks = len(PROMPT) // BLOCK_SIZE + 1
    copies = [(own[i], 300 + i) for i in range(blocks)]
    row = SamplingRow(params=PARAMS, seed=5, stream=0, step=0)
    step = SequenceStep(PROMPT[-1:], len(PROMPT) - 1, range(300, 340), [row])
    (result,) = runner.executor.execute(Batch([step], copies))
    assert result.samples[0].logprob == alone[0]


@pytest.mark.parametrize("wrong", range(ANSWER))
def test_proposed_tokens(runner: Runner, alone: list[TokenLogprob], wrong: int) -> None:
    """They count up to the first that isn't what is drawn anyway; the rest leaves no trace."""
    table = list(range(40))[::-1]
    answer = [scored.token for scored in alone]
    guesses = answer[:-1]
    if wrong < len(guesses):
        guesses[wrong] = (guesses[wrong] + 1) % 320
    runner.executor.execute(Batch([SequenceStep(PROMPT[:590], 0, table)]))
    got: list[TokenLogprob | None] = []
    tokens, context = PROMPT[590:], 590
    while len(got) < ANSWER:
        rows = [
            SamplingRow(params=PARAMS, seed=5, stream=0, step=step)
            for step in range(len(got), ANSWER)
        ]
        proposed = answer[len(got) : -1] if got else guesses
        step = SequenceStep([*tokens, *proposed], context, table, rows, proposed=len(proposed))
        others = [SequenceStep([1, 2], 0, [300], [rows[0]])]
        samples = runner.executor.execute(Batch([*others, step]))[-1].samples
        assert len(samples) == min(len(rows), wrong + 1 if not got else len(rows))
        got += [sampled.logprob for sampled in samples]
        context = len(PROMPT) + len(got) - 1
        tokens = [answer[len(got) - 1]]
    assert got == alone


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_fails_behind_a_proposed_token_is_left_to_be_drawn_again(
    runner: Runner, alone: list[TokenLogprob], failing: int
) -> None:
    masks = [bytes(40) if place == failing else None for place in range(3)]
    rows = [SamplingRow(PARAMS, 5, 0, place, allowed_tokens=masks[place]) for place in range(3)]
    tokens = [*PROMPT, alone[0].token, alone[1].token]
    step = SequenceStep(tokens, 0, list(range(40))[::-1], rows, proposed=2)
    (result,) = runner.executor.execute(Batch([step]))
    assert [sampled.logprob for sampled in result.samples] == alone[:failing]
    assert (result.error is None) == (failing > 0)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [320]},
        {"tokens": [-1]},
        {"tokens": []},
        {"context": -1},
        {"context": 16},
        {"block_table": [NUM_BLOCKS]},
        {"block_table": [-1]},
        {"block_table": []},
        {"tokens": [1] * (MAX_TOKENS + 1), "block_table": list(range(60))},
        {"score_targets": [320]},
        {"score_targets": [1, 1]},
    ],
)
def test_a_batch_that_refers_to_nothing_is_refused_before_it_runs(
    runner: Runner, alone: list[TokenLogprob], change: dict[str, Any]
) -> None:
    good: dict[str, Any] = {"tokens": [1], "context": 0, "block_table": [0]}
    with pytest.raises(ValueError, match="bad batch"):
        runner.executor.execute(Batch([SequenceStep(**{**good, **change})]))
    with pytest.raises(ValueError, match="copy outside the pool"):
        runner.executor.execute(Batch([SequenceStep(**good)], [(0, NUM_BLOCKS)]))
    assert runner.run() == alone


@pytest.mark.parametrize("sharers", [2, 9, 30])
def test_shared_prefix(runner: Runner, sharers: int) -> None:
    """Attention reads a prefix that several sequences share once for all of them."""
    runner.run()
    prompt_blocks = list(range(40))[::-1]
    steps = []
    for number in range(sharers):
        # One in four leaves the prefix after its first partition, and each goes on by itself.
        shared = 17 if number % 4 == 3 else 32
        table = [*prompt_blocks[:shared], *range(100 + 8 * number, 108 + 8 * number)]
        suffix = [(7 * number + 3 * i) % 320 for i in range(1 + number % 20)]
        context = shared * BLOCK_SIZE + len(suffix)
        runner.executor.execute(Batch([SequenceStep(suffix, shared * BLOCK_SIZE, table, [])]))
        row = SamplingRow(params=PARAMS, seed=number, stream=0, step=0)
        steps.append(SequenceStep([number], context, table, [row]))
    alone = [runner.executor.execute(Batch([step]))[0] for step in steps]
    together = runner.executor.execute(Batch(steps))
    assert [each.samples for each in together] == [each.samples for each in alone]

    def bytes_read(batch: Batch) -> float:
        costs = runner.executor.profile(batch)
        return sum(cost.bytes for cost in costs if cost.name == "attention")

    assert bytes_read(Batch(steps)) < 0.9 * sum(bytes_read(Batch([step])) for step in steps)


class WindowBlocks:
    """The window blocks of a sequence, those that nothing sees any more given back at once."""

    def __init__(self, free: Sequence[int]) -> None:
        self.free = list(free)
        self.table: list[int] = []

    def before(self, context: int, tokens: int) -> list[int]:
        """The table for a step."""
        for index in range(max(0, context - WINDOW + 1) // BLOCK_SIZE):
            if self.table[index] >= 0:
                self.free.insert(0, self.table[index])  # the next to be written again
                self.table[index] = -1
        while len(self.table) * BLOCK_SIZE < context + tokens:
            self.table.append(self.free.pop(0))
        return self.table


@pytest.fixture(params=WITH_WINDOWS, scope="module")
def forgetting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Runner, Runner]]:
    """A model with windows that keeps everything, and one that forgets."""
    model, quantised = MODELS[request.param]
    path = model.write(tmp_path_factory.mktemp("model") / "tiny.gguf", quantised)
    kv_type = kv_type_of(request.param)
    runners = Runner(path, 2, kv_type), Runner(path, 2, kv_type, window_blocks=90)
    yield runners
    for each in runners:
        each.executor.close()


@pytest.mark.parametrize("size", [1, 100, 310])
def test_blocks_behind_a_window_are_given_back(
    forgetting: tuple[Runner, Runner], size: int
) -> None:
    """Two sequences of the same prompt in few blocks, that have forgotten the same beginning."""
    keeping, runner = forgetting
    alone = keeping.run()
    blocks = [WindowBlocks(range(45)), WindowBlocks(range(89, 44, -1))]
    answers: list[list[TokenLogprob]] = [[], []]
    done = 0
    while done < len(PROMPT) + ANSWER - 1:
        tokens = PROMPT[done : done + size] or [answers[0][-1].token]
        last = done + len(tokens) >= len(PROMPT)
        steps = []
        for number, windowed in enumerate(blocks):
            row = SamplingRow(params=PARAMS, seed=5, stream=0, step=len(answers[number]))
            table = range(40 * number, 40 * number + 40)
            windows = [windowed.before(done, len(tokens))]
            steps.append(
                SequenceStep(tokens, done, table, [row] if last else [], window_tables=windows)
            )
        for answer, result in zip(answers, runner.executor.execute(Batch(steps)), strict=True):
            for sample in result.samples:
                assert sample.logprob is not None
                answer.append(sample.logprob)
        done += len(tokens)
    assert blocks[0].table[: (len(PROMPT) - WINDOW) // BLOCK_SIZE] == [-1] * 31
    assert answers == [alone, alone]

    # The last token again, in copies of the blocks.
    windows = blocks[0].before(len(PROMPT) - 1, 1)
    copies = [(block, 80 + i) for i, block in enumerate(b for b in windows if b >= 0)]
    copied = [dict(copies).get(block, -1) for block in windows]
    step = SequenceStep(PROMPT[-1:], len(PROMPT) - 1, range(40), window_tables=[copied])
    step.samples = [SamplingRow(params=PARAMS, seed=5, stream=0, step=0)]
    (result,) = runner.executor.execute(Batch([step], window_copies=[copies]))
    assert result.samples[0].logprob == alone[0]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "number of window tables"),
        ([[0]], "window table too short"),
        ([[-1] * 31 + [90] * 7], "block id outside a window's pool"),
        ([[-2] * 31 + [1] * 7], "block id outside a window's pool"),
        ([[-1] * 32 + [1] * 6], "block within a window is gone"),
        ([[-1] * 31 + [1] * 6 + [-1]], "block within a window is gone"),
    ],
)
def test_a_window_table_without_what_is_seen_is_refused(
    forgetting: tuple[Runner, Runner], tables: list[list[int]], message: str
) -> None:
    _, runner = forgetting
    good = SequenceStep([1], 599, range(40), window_tables=[[-1] * 31 + [1] * 7 + [-1]])
    runner.executor.execute(Batch([good]))
    with pytest.raises(ValueError, match=message):
        runner.executor.execute(Batch([dataclasses.replace(good, window_tables=tables)]))
    for copies in ([[(0, 90)]], [[], [(0, 1)]]):
        with pytest.raises(ValueError, match="bad batch: cop"):
            runner.executor.execute(Batch([good], window_copies=copies))


HYBRIDS = {
    "qwen35 Q8_0": (
        TinyQwen35(hidden=96, feed_forward=96),
        TensorType.Q8_0,
    ),
    "lfm2 Q4_1": (TinyLFM2(hidden=96, heads=6), TensorType.Q4_1),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_of_recurrent_layers(name: str, tmp_path: Path) -> None:
    """However a prompt is cut, whatever runs beside it, from slot to slot or in place."""
    model, quantised = HYBRIDS[name]
    path = model.write(tmp_path / "tiny.gguf", quantised)
    runs = []
    for threads, chunks, slots in (
        (2, [200], [0]),
        (2, [1, 60, 139], [1, 2, 1, 0]),
        (1, [16] * 12 + [8], [3]),
        (3, [199, 1], [2, 0]),
    ):
        with GGUFFile.open(path) as file:
            options = NativeOptions(
                num_blocks=40, num_slots=6, max_batch_tokens=256, threads=threads
            )
            executor = NativeExecutor(file, build_program(file), options)
        answer: list[TokenLogprob] = []
        done, source = 0, None
        for iteration, size in enumerate([*chunks, *[1] * (ANSWER - 1)]):
            tokens = PROMPT[:200][done : done + size] or [answer[-1].token]
            last = done + size >= 200
            row = SamplingRow(params=PARAMS, seed=5, stream=0, step=len(answer))
            state = StateSlots(source, slots[iteration % len(slots)])
            step = SequenceStep(tokens, done, range(14), [row] if last else [], state=state)
            beside = [SequenceStep([1, 2, iteration], 0, [20], state=StateSlots(None, 5))]
            result = executor.execute(Batch([*beside[: threads - 1], step]))[-1]
            if last:
                assert result.samples[0].logprob is not None
                answer.append(result.samples[0].logprob)
            done, source = done + size, state.destination
        executor.close()
        runs.append(answer)
    assert len({token.logprob for token in runs[0]}) > 1, "a constant answer would prove little"
    assert all(answer == runs[0] for answer in runs)
