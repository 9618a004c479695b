"""The state machine with tiers behind the pools, a disk that fails, and processes that are killed.

The fake executor holds what it reads of its blocks against each sequence's history: a block
that comes back as another's, or half, is found out there.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from caudal.backends.executor import Bytes, blocks_of_window
from caudal.engine.tiers import disk
from caudal.engine.tiers.files import write_piece
from caudal.engine.tiers.pieces import Piece
from support.engine_harness import Harness
from support.engine_machine import EngineMachine


class TierMachine(EngineMachine):
    @initialize(
        num_blocks=st.integers(6, 14),
        max_num_seqs=st.integers(1, 5),
        budget=st.integers(1, 12),
        windows=st.sampled_from([(), (), (3,), (1, 6), (9,)]),
        spare=st.integers(0, 5),
        num_slots=st.sampled_from([0, 0, 1, 2, 4, 7, 12]),
        memory=st.sampled_from([0, 300, 2000, 100_000]),
        size=st.sampled_from([0, 30_000, 200_000, 2**30]),
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        windows: tuple[int, ...],
        spare: int,
        num_slots: int,
        memory: int,
        size: int,
    ) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="caudal-")
        self.trouble = patch.multiple(disk, write_piece=self.write, PAUSE_SECONDS=0.0)
        self.trouble.start()
        self.is_full = False
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=4,
            vocab_size=4,
            max_model_len=24,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + budget,
            max_queue=6,
            windows=[(blocks_of_window(window, 4) + spare, window) for window in windows],
            num_slots=num_slots,
            prefix_memory=memory,
            prefix_store=self.directory.name if size or not memory else None,
            prefix_store_size=size,
        )

    def write(self, directory: Path, piece: Piece, data: Bytes) -> None:
        """Writes a piece's file, unless the disk is full."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_piece(directory, piece, data)

    @rule(count=st.integers(1, 40))
    def work(self, count: int) -> None:
        """The threads get on; not as far as they would like."""
        self.harness.work_threads(count)

    @rule(count=st.integers(0, 20))
    def work_along(self, count: int) -> None:
        """They do so before each iteration."""
        self.harness.threads = count

    @rule(seed=st.integers(0, 3), choice=st.integers(0, 1000))
    def ask_again(self, seed: int, choice: int) -> None:
        """Others crowd out of the pools what was asked before, and it is asked again."""
        prompts = [request.prompt for request in self.harness.requests.values()]
        if not prompts or self.harness.engine.has_work:
            return
        self.harness.threads = max(self.harness.threads, 1 + seed)
        for number in range(4):
            others = [(seed + number * i) % 3 + 1 for i in range(20)]
            self.harness.submit(others, max_tokens=2)
            self.harness.run()
        self.harness.submit(prompts[choice % len(prompts)], max_tokens=2)
        self.harness.run()

    @rule()
    def save(self) -> None:
        """Nothing is asked for a moment."""
        self.harness.engine.rest()

    @rule()
    def fill_disk(self) -> None:
        self.is_full = not self.is_full

    @rule(choice=st.integers(0, 1000), how=st.sampled_from(["cut", "flip", "delete", "swap"]))
    def damage(self, choice: int, how: str) -> None:
        """Something happens to a file."""
        files = sorted(Path(self.directory.name).rglob("*.kv"))
        if not files:
            return
        file = files[choice % len(files)]
        content = bytearray(file.read_bytes())
        if how == "delete":
            file.unlink()
        elif how == "swap":
            other = files[(choice + 1) % len(files)]
            file.write_bytes(other.read_bytes())
        else:
            place = choice % len(content)
            content[place] ^= 1
            file.write_bytes(content[:place] if how == "cut" else content)

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        """A new process, after an orderly end or a sudden one."""
        self.harness.engine.cancel_all()
        self.harness.run()
        self.harness.restart(kill=kill)

    def teardown(self) -> None:
        if not hasattr(self, "directory"):
            return
        try:
            self.harness.threads = 50
            super().teardown()
            self.harness.engine.close()
        finally:
            self.trouble.stop()
            self.directory.cleanup()


TierMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
TestTierMachine = pytest.mark.filterwarnings("error")(TierMachine.TestCase)
