"""A tiny model behind an engine, in the memory that the backend plans for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caudal.backends.backend import BackendOptions, RunLimits
from caudal.backends.native.backend import NativeBackend
from caudal.engine.checkpoints import Checkpoints
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request, SequenceUpdate
from caudal.formats.gguf import GGUFFile
from caudal.models import build_program
from caudal.sampling_params import SamplingParams
from support.reference_model import TinyModel

ANSWER = 15
"""Tokens of each answer."""


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

    def answers(
        self, *prompts: list[int], work: int = 0
    ) -> list[tuple[list[tuple[int, float]], int]]:
        """Tokens with their log-probabilities, and how much of the prompt was cached.

        Args:
            prompts: What to answer, all at once.
            work: Pieces that a store without threads reads and writes before each iteration.
        """
        params = SamplingParams(seed=3, max_tokens=ANSWER, logprobs=0)
        for number, prompt in enumerate(prompts):
            self.engine.submit(
                Request(request_id=f"{number}", prompt=prompt, work=Generate(params))
            )
        updates: list[SequenceUpdate] = []
        while self.engine.has_work:
            for _ in range(work):
                store = self.engine._tier.store if self.engine._tier else None
                if store is None or not (store.read_one() or store.write_one()):
                    break
            updates += self.engine.step()
        found = []
        for number in range(len(prompts)):
            own = [update for update in updates if update.request_id == f"{number}"]
            tokens = [sampled for update in own for sampled in update.tokens]
            scored = [(each.token, each.logprob.logprob) for each in tokens if each.logprob]
            assert len(scored) == ANSWER
            found.append((scored, own[-1].num_cached_tokens))
        return found
