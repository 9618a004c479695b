"""How fast the engine runs a model, measured beside llama.cpp where asked: `caudal bench engine`.

The two single-sequence cases are those of llama.cpp's llama-bench: a prompt of 512 tokens, and 128
tokens decoded one by one from an empty context. The batched ones go through scheduler, paging and
sampler as a server's requests do.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caudal.backends.executor import Batch, Executor
from caudal.bench.steps import lone_step
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request
from caudal.errors import CaudalError
from caudal.loading.load import LoadedModel
from caudal.sampling_params import SamplingParams

PROMPT_TOKENS = 512
DECODE_TOKENS = 128
BATCH_SIZES = (8, 16, 32)
BATCH_PROMPT, BATCH_OUTPUT = 128, 64


class BenchmarkError(CaudalError):
    """The peer could not be run."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One row of the report.

    Attributes:
        name: Which case.
        description: What was measured.
        rates: Tokens per second of each run.
        peer_rates: The peer's, where it was asked for and has this case.
    """

    name: str
    description: str
    rates: Sequence[float]
    peer_rates: Sequence[float] = ()

    @property
    def median(self) -> float:
        """Caudal's median rate in tokens per second."""
        return statistics.median(self.rates)

    @property
    def peer_median(self) -> float | None:
        """The peer's median rate in tokens per second."""
        return statistics.median(self.peer_rates) if self.peer_rates else None

    @property
    def ratio(self) -> float | None:
        """Caudal's median over the peer's."""
        return self.median / self.peer_median if self.peer_median else None


def run_cases(
    model: LoadedModel,
    *,
    runs: int,
    llama_bench: Path | None,
    progress: Callable[[str], None],
) -> Iterator[CaseResult]:
    """Measure all cases, Caudal and the peer in turn within each run.

    Args:
        model: Loaded with a `max_num_batched_tokens` of at least `PROMPT_TOKENS`.
        runs: How often each case is measured, after one run to warm up.
        llama_bench: llama.cpp's llama-bench, or None.
        progress: Told what is being measured.

    Raises:
        BenchmarkError: The peer could not be run.
    """
    threads = model.facts.executor.threads
    executor = model.executor
    singles: Mapping[str, tuple[str, Callable[[], float]]] = {
        "prefill": (f"{PROMPT_TOKENS}-token prompt", lambda: prefill_rate(executor)),
        "decode": (f"1 sequence, {DECODE_TOKENS} tokens", lambda: decode_rate(executor)),
    }
    for name, (description, measure) in singles.items():
        progress(name)
        measure()
        rates, peer_rates = [], []
        for _ in range(runs):
            rates.append(measure())
            if llama_bench is not None:
                peer_rates.append(llama_bench_rate(llama_bench, model.path, name, threads))
        yield CaseResult(name, description, rates, peer_rates)
    for size in BATCH_SIZES:
        name = f"batch of {size}"
        progress(name)
        description = f"{size} x ({BATCH_PROMPT} + {BATCH_OUTPUT}) tokens, all counted"
        rates = [batch_rate(model, size) for _ in range(runs)]
        yield CaseResult(name, description, rates)


def prefill_rate(executor: Executor) -> float:
    """Tokens per second of computing a prompt in one chunk, first token included."""
    info = executor.info
    prompt = random_prompt(info.vocab_size, PROMPT_TOKENS)
    step = lone_step(info, prompt, 0, blocks=_blocks(executor, PROMPT_TOKENS))
    start = time.perf_counter()
    executor.execute(Batch([step]))
    return PROMPT_TOKENS / (time.perf_counter() - start)


def decode_rate(executor: Executor) -> float:
    """Tokens per second of one sequence, decoded from an empty context."""
    blocks = _blocks(executor, DECODE_TOKENS)
    token = 1
    start = time.perf_counter()
    for position in range(DECODE_TOKENS):
        step = lone_step(executor.info, [token], position, blocks=blocks)
        token = executor.execute(Batch([step]))[0].samples[0].token
    return DECODE_TOKENS / (time.perf_counter() - start)


def batch_rate(model: LoadedModel, size: int) -> float:
    """Tokens per second, prompts and outputs, of `size` unrelated requests through the engine."""
    # One more token is generated than goes through the model.
    config = EngineConfig(
        max_model_len=BATCH_PROMPT + BATCH_OUTPUT + 1,
        max_num_seqs=size,
        max_num_batched_tokens=model.engine_config.max_num_batched_tokens,
        prefix_cache=False,
    )
    engine = Engine(model.executor, config, frozenset())
    params = SamplingParams(temperature=0.0, max_tokens=BATCH_OUTPUT + 1, ignore_eos=True)
    for number in range(size):
        prompt = random_prompt(model.executor.info.vocab_size, BATCH_PROMPT, seed=number)
        engine.submit(Request(request_id=str(number), prompt=prompt, work=Generate(params)))
    start = time.perf_counter()
    while engine.has_work:
        engine.step()
    return size * (BATCH_PROMPT + BATCH_OUTPUT) / (time.perf_counter() - start)


def llama_bench_rate(binary: Path, model: Path, case: str, threads: int) -> float:
    """The peer's tokens per second in the same case.

    Raises:
        BenchmarkError: It can't be run, or prints something else.
    """
    prompt = PROMPT_TOKENS if case == "prefill" else 0
    decode = DECODE_TOKENS if case == "decode" else 0
    command = [str(binary), "-m", str(model), "-t", str(threads), "-o", "json", "-r", "1"]
    command += ["-p", str(prompt), "-n", str(decode)]
    # Builds that keep their shared libraries beside the program don't always find them.
    paths = [str(binary.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BenchmarkError(f"cannot run {binary}: {error}") from error
    try:
        return float(json.loads(done.stdout)[0]["avg_ts"])
    except (ValueError, LookupError, TypeError) as error:
        last_words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise BenchmarkError(f"{binary} did not report a rate; it said: {last_words[0]}") from error


def random_prompt(vocab_size: int, length: int, seed: int = 0) -> list[int]:
    """Token ids that share no prefix with those of another seed."""
    generator = random.Random(seed)
    return [generator.randrange(vocab_size) for _ in range(length)]


def _blocks(executor: Executor, tokens: int) -> range:
    return range(-(-tokens // executor.info.block_size))
