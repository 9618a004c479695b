"""Whatever is done to an engine on models of all kinds, nothing is wrong after any move."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from caudal.backends.executor import blocks_of_window
from support.engine_harness import Harness
from support.engine_machine import EngineMachine


class AnyModelMachine(EngineMachine):
    @initialize(
        num_blocks=st.integers(6, 14),
        max_num_seqs=st.integers(1, 5),
        budget=st.integers(1, 12),
        prefix_cache=st.booleans(),
        schedule=st.sampled_from(["prefix", "fcfs"]),
        batching=st.sampled_from(["continuous", "dynamic", "static"]),
        windows=st.sampled_from([(), (), (3,), (1, 6), (9,)]),
        spare=st.integers(0, 5),
        num_slots=st.sampled_from([0, 0, 1, 2, 4, 7, 12]),
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        prefix_cache: bool,
        schedule: str,
        batching: str,
        windows: tuple[int, ...],
        spare: int,
        num_slots: int,
    ) -> None:
        """Models of all kinds, with too little memory of some kind more often than not."""
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=4,
            vocab_size=4,
            max_model_len=24,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + budget,
            prefix_cache=prefix_cache,
            schedule=schedule,
            batching=batching,
            preferred_batch_size=min(2, max_num_seqs),
            max_queue=6,
            windows=[(blocks_of_window(window, 4) + spare, window) for window in windows],
            num_slots=num_slots,
        )


AnyModelMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
TestEngineMachine = pytest.mark.filterwarnings("error")(AnyModelMachine.TestCase)
