"""What Caudal makes of a model's file, run in all the ways that must not make a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caudal.backends.executor import Executor
from caudal.backends.registry import find_backend
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request
from caudal.formats.huggingface.model import open_folder
from caudal.formats.lora.adapter import Adapter
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import ModelFolder
from caudal.loading.options import LoadOptions
from caudal.loading.planning import plan_run
from caudal.models import build_program
from caudal.sampling_params import SamplingParams
from references.reference import LENGTH, TOKENS, VOCABULARY
from support.gguf_writer import write_gguf

MAX_LENGTH = 256
OTHERS = [TOKENS[7:90], TOKENS[100:190], TOKENS[::3]]
GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
SCORES = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
EXACT = LoadOptions(
    activations="f32", kv_type="f32", threads=2, kv_memory=64 << 20, max_model_len=MAX_LENGTH
)

Answer = list[tuple[int, float]]
"""Tokens, and their log-probabilities."""


@contextmanager
def open_reference(path: Path) -> Iterator[ModelFile]:
    """A folder's model."""
    with open_folder(ModelFolder.scan(path), any_column_order=True) as file:
        yield file


class Runner:
    """Runs prompts on a model, in float32.

    Each call has an engine of its own, and so begins with nothing cached.
    """

    def __init__(self, file: ModelFile) -> None:
        backend = find_backend("native")
        program = build_program(file)
        self._plan = plan_run(file, program, EXACT, backend)
        self._executor = backend.open(file, program, self._plan.memory)

    def close(self) -> None:
        """Release it."""
        self._executor.close()

    def scores(
        self,
        prompt: Sequence[int] = TOKENS,
        *,
        others: bool = False,
        chunk: int = MAX_LENGTH,
        adapter: Adapter | None = None,
    ) -> NDArray[np.float64]:
        """The log-probability of each token of a prompt but the first."""
        run = _Run(self._executor, chunk, adapter)
        if others:
            for number, other in enumerate(OTHERS):
                run.submit(f"other {number}", other, GREEDY)
        run.submit("it", prompt, SCORES)
        run.finish()
        return np.array(run.scores["it"])

    def greedy(self, prompt: Sequence[int], *, after: Sequence[int] | None = None) -> Answer:
        """What follows a prompt; `after` another that leaves its beginning in the cache."""
        run = _Run(self._executor, MAX_LENGTH)
        if after is not None:
            run.submit("before", after, GREEDY)
            run.finish()
        run.submit("it", prompt, GREEDY)
        run.finish()
        assert (run.cached["it"] > 0) == (after is not None), "the prefix must have been resumed"
        return run.answers["it"]


class _Run:
    """An engine, which takes the executor with it when it is done: nobody closes that."""

    def __init__(self, executor: Executor, chunk: int, adapter: Adapter | None = None) -> None:
        config = EngineConfig(
            max_model_len=MAX_LENGTH, max_num_batched_tokens=chunk, max_num_seqs=5
        )
        self._engine = Engine(executor, config, frozenset())
        self._adapter = adapter and self._engine.adapters.load("it", adapter).number
        self.scores: dict[str, list[float]] = {}
        self.answers: dict[str, Answer] = {}
        self.cached: dict[str, int] = {}

    def submit(self, name: str, prompt: Sequence[int], params: SamplingParams) -> None:
        work = Generate(params)
        self._engine.submit(
            Request(request_id=name, prompt=prompt, work=work, adapter=self._adapter)
        )

    def finish(self) -> None:
        while self._engine.has_work:
            for update in self._engine.step():
                name = update.request_id
                assert update.error is None, update.error
                self.cached[name] = update.num_cached_tokens
                answer = self.answers.setdefault(name, [])
                answer += [
                    (each.token, each.logprob.logprob) for each in update.tokens if each.logprob
                ]
                if update.prompt_logprobs is not None:
                    self.scores[name] = [each.logprob for each in update.prompt_logprobs]
        if self._adapter is not None:
            self._engine.adapters.unload(self._adapter)


def check_invariance(file: ModelFile, *, quick: bool = False) -> NDArray[np.float64]:
    """Check that nothing but the request decides, and give the log-probabilities of TOKENS.

    Args:
        file: The model.
        quick: Try one way of each kind.
    """
    runner = Runner(file)
    whole = runner.scores()
    assert whole.shape == (LENGTH - 1,)
    assert np.isfinite(whole).all()
    assert np.ptp(whole) > 1, "a constant answer would prove little"
    for chunk in (33,) if quick else (7, 16, 33, 100):
        assert runner.scores(chunk=chunk).tolist() == whole.tolist(), f"chunks of {chunk}"
    assert runner.scores(others=True, chunk=64).tolist() == whole.tolist(), "in a batch"
    for length in (150,) if quick else (90, 150, LENGTH):
        prompt = TOKENS[:length]
        cold = runner.greedy(prompt)
        resumed = runner.greedy(prompt, after=[*TOKENS[: length - 5], 3, 1, 4])
        assert resumed == cold, f"after a resumed prefix, at {length}"
        # Tokens that were decoded have the log-probabilities that they have in a prompt.
        again = runner.scores([*prompt, *(token for token, _ in cold)])
        assert again[length - 1 :].tolist() == [logprob for _, logprob in cold], "decoded"
    runner.close()
    return whole


def write_as_gguf(file: ModelFile, path: Path, metadata: dict[str, object]) -> Path:
    """The GGUF file of the keys and tensors of an open model, and of more keys."""
    tensors = {
        name: (tensor.type, tensor.shape, file.tensor_bytes(name).tobytes())
        for name, tensor in file.tensors.items()
    }
    assert file.tensor("token_embd.weight").shape[0] == VOCABULARY
    return write_gguf(path, {**file.metadata, **metadata}, tensors)
