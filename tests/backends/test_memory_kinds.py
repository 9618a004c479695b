"""Answers of models with windows and states are the same to the bit, whatever is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caudal.backends.backend import BackendOptions, RunLimits
from caudal.backends.native.backend import NativeBackend
from caudal.engine.checkpoints import Checkpoints
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request, SequenceUpdate
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from caudal.sampling_params import SamplingParams
from support.reference_hybrids import TinyLFM2, TinyQwen35
from support.reference_model import TinyModel

MODELS = {
    "gemma3": TinyModel(architecture="gemma3", layers=7, window=20, kv_heads=1, head_dim=24),
    "qwen35": TinyQwen35(),
    "lfm2": TinyLFM2(),
}
ANSWER = 15
PROMPT = [(7 * i * i + 3 * i) % 60 + 1 for i in range(75)]


class Served:
    """A model behind an engine, in the memory that the backend plans for it."""

    def __init__(self, model: TinyModel, path: Path, **config: Any) -> None:
        config = {"max_num_seqs": 8, "max_num_batched_tokens": 64} | config
        backend = NativeBackend()
        with GGUFFile.open(model.write(path / "tiny.gguf")) as file:
            program = build_program(file)
            limits = RunLimits(
                max_model_len=min(128, program.context_length),
                max_num_seqs=config["max_num_seqs"],
                max_num_batched_tokens=config["max_num_batched_tokens"],
                kv_memory=config.pop("kv_memory", 16 << 20),
            )
            plan = backend.plan(file, program, BackendOptions(threads=1), limits)
            executor = backend.open(file, program, plan)
        self.kinds = plan.kinds
        self.engine = Engine(
            executor,
            EngineConfig(
                max_model_len=plan.max_model_len,
                checkpoints=Checkpoints(interval=32, margin=8, worth=16),
                **config,
            ),
            frozenset(),
        )

    def answers(self, *prompts: list[int]) -> list[tuple[list[tuple[int, float]], int]]:
        """Tokens with their log-probabilities, and how much of the prompt was cached."""
        params = SamplingParams(seed=3, max_tokens=ANSWER, logprobs=0)
        for number, prompt in enumerate(prompts):
            self.engine.submit(
                Request(request_id=f"{number}", prompt=prompt, work=Generate(params))
            )
        updates: list[SequenceUpdate] = []
        while self.engine.has_work:
            updates += self.engine.step()
        found = []
        for number in range(len(prompts)):
            own = [update for update in updates if update.request_id == f"{number}"]
            tokens = [sampled for update in own for sampled in update.tokens]
            scored = [(each.token, each.logprob.logprob) for each in tokens if each.logprob]
            assert len(scored) == ANSWER
            found.append((scored, own[-1].num_cached_tokens))
        return found


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_the_same_alone_among_others_in_small_memory_and_resumed(
    name: str, tmp_path: Path
) -> None:
    served = Served(MODELS[name], tmp_path)
    kinds = served.kinds
    assert kinds.windows or kinds.states
    [(alone, cached)] = served.answers(PROMPT)
    assert cached == 0
    others = [[number, *PROMPT[number:]] for number in range(1, 8)]
    among = served.answers(PROMPT, *others)
    assert among[0] == (alone, 74 if kinds.states is None else 64)
    # The next turn computes what is new only: all but the answer's last token is there.
    history = [*PROMPT, *(token for token, _ in alone), 5, 6, 7]
    [(resumed, cached)] = served.answers(history)
    assert cached == len(PROMPT) + ANSWER - 1
    # Cut as if memory were short, and with nobody's help.
    small = Served(
        MODELS[name],
        tmp_path,
        max_num_batched_tokens=12,
        max_num_seqs=3,
        kv_memory=kinds.sequence_bytes(128) * 5 // 2,
    )
    assert [scored for scored, _ in small.answers(PROMPT, *others)] == [
        scored for scored, _ in among
    ]
    cold = Served(MODELS[name], tmp_path, prefix_cache=False)
    assert cold.answers(history) == [(resumed, 0)]
    for each in (served, small, cold):
        each.engine.close()
