"""A state machine that does to an engine whatever can be done, and checks it after every move."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from caudal.engine.request import BACKGROUND, FinishReason
from caudal.errors import QueueFullError
from caudal.models.pooling import PoolingKind
from support.engine_harness import Harness
from support.fake_executor import Batch
from support.fake_grammar import SlotGrammar

# Two tokens and few lengths: prompts share prefixes, diverge inside blocks and repeat.
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=14)
ADAPTERS = st.sampled_from([None, None, 0, 1, 2])
TENANTS = st.sampled_from([(None, 1.0), (None, 1.0), ("a", 1.0), ("b", 0.5), ("c", 4.0)])


def _fail(batch: Batch) -> None:
    raise RuntimeError("the device fell off")


class EngineMachine(RuleBasedStateMachine):
    """All that is done to an engine; those that build on it say how it begins.

    Attributes:
        harness: The engine.
    """

    harness: Harness

    @rule(
        prompt=PROMPTS,
        n=st.integers(1, 3),
        max_tokens=st.one_of(st.none(), st.integers(0, 10)),
        priority=st.sampled_from((-1, 0, 1, BACKGROUND)),
        salt=st.sampled_from([None, None, "a"]),
        adapter=ADAPTERS,
        tenant=TENANTS,
        scores=st.sampled_from([None, None, None, 0, 2]),
        timeout=st.sampled_from([None, None, 3.0]),
        first_token_timeout=st.sampled_from([None, None, 2.0]),
        seed=st.integers(0, 2),
    )
    def submit(
        self,
        prompt: list[int],
        n: int,
        max_tokens: int | None,
        priority: int,
        salt: str | None,
        adapter: int | None,
        tenant: tuple[str | None, float],
        scores: int | None,
        timeout: float | None,
        first_token_timeout: float | None,
        seed: int,
    ) -> None:
        if max_tokens is not None:
            max_tokens = min(max_tokens, 24 - len(prompt))
        try:
            self._ask(
                prompt,
                salt,
                adapter,
                tenant,
                n=self._at_most(n),
                max_tokens=max_tokens,
                priority=priority,
                prompt_logprobs=scores,
                timeout=timeout,
                first_token_timeout=first_token_timeout,
                seed=seed,
            )
        except QueueFullError:
            assert self.harness.engine.num_requests >= 6

    @rule(
        prompt=PROMPTS,
        n=st.integers(1, 2),
        slots=st.lists(st.sets(st.integers(1, 3), min_size=1), min_size=1, max_size=9),
        alike=st.sets(st.integers(0, 8)),
        logprobs=st.sampled_from([None, 0]),
        max_tokens=st.integers(1, 10),
        penalty=st.sampled_from([1.0, 1.2]),
        salt=st.sampled_from([None, None, "a"]),
        adapter=ADAPTERS,
        tenant=TENANTS,
        seed=st.integers(0, 2),
    )
    def submit_constrained(
        self,
        prompt: list[int],
        n: int,
        slots: list[set[int]],
        alike: set[int],
        logprobs: int | None,
        max_tokens: int,
        penalty: float,
        salt: str | None,
        adapter: int | None,
        tenant: tuple[str | None, float],
        seed: int,
    ) -> None:
        """What is forced is appended; or with log-probabilities proposed, and drawn or not."""
        # Without log-probabilities what stands for the same text is forced and not drawn.
        grammar = SlotGrammar(slots, vocab_size=4, alike=() if logprobs is None else alike)
        with contextlib.suppress(QueueFullError):
            self._ask(
                prompt,
                salt,
                adapter,
                tenant,
                n=self._at_most(n),
                grammar=grammar,
                logprobs=logprobs,
                max_tokens=max_tokens,
                repetition_penalty=penalty,
                seed=seed,
            )

    @rule(
        prompt=PROMPTS,
        kind=st.sampled_from(["mean", "cls", "last"]),
        salt=st.sampled_from([None, None, "a"]),
        adapter=ADAPTERS,
        tenant=TENANTS,
        timeout=st.sampled_from([None, None, 3.0]),
    )
    def submit_pooling(
        self,
        prompt: list[int],
        kind: PoolingKind,
        salt: str | None,
        adapter: int | None,
        tenant: tuple[str | None, float],
        timeout: float | None,
    ) -> None:
        with contextlib.suppress(QueueFullError):
            self._ask(prompt, salt, adapter, tenant, pooling=kind, timeout=timeout)

    def _ask(
        self,
        prompt: list[int],
        salt: str | None,
        adapter: int | None,
        tenant: tuple[str | None, float],
        **fields: Any,
    ) -> None:
        name, weight = tenant
        self.harness.submit(
            prompt,
            cache_salt=salt,
            adapter=self._offered(adapter),
            tenant=name,
            weight=weight,
            **fields,
        )

    def _at_most(self, n: int) -> int:
        """So many sequences, or as many as may run."""
        return min(n, self.harness.engine.config.max_num_seqs)

    @rule()
    def load_adapter(self) -> None:
        if len(self.harness.engine.adapters.offered) < 3:
            self.harness.load_adapter()

    @rule(choice=ADAPTERS)
    def unload_adapter(self, choice: int | None) -> None:
        """Its requests go on; another may get its place in the executor once they have ended."""
        number = self._offered(choice)
        if number is not None:
            self.harness.engine.adapters.unload(number)

    def _offered(self, choice: int | None) -> int | None:
        """The number of one of the adapters that there are, or None."""
        offered = self.harness.engine.adapters.offered
        return offered[choice % len(offered)].number if offered and choice is not None else None

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()
            self.harness.check_invariants()

    @rule(choice=st.integers(0, 1000), index=st.one_of(st.none(), st.integers(0, 2)))
    def cancel(self, choice: int, index: int | None) -> None:
        ids = sorted(self.harness.requests)
        if ids:
            self.harness.engine.cancel(ids[choice % len(ids)], index)

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.harness.clock.now += seconds

    @rule()
    def fail_once(self) -> None:
        self.harness.executor.fail = _fail
        failures = self.harness.engine.stats().executor_failures
        self.harness.step()
        self.harness.executor.fail = None
        ended = [u for u in self.harness.updates if u.finish_reason is FinishReason.FAILED]
        if self.harness.engine.stats().executor_failures > failures:
            assert ended
        self.harness.check_invariants()

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.harness.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.clock.now += 1.0  # a dynamic batch waits no longer
        # Everything that lives ends, within as many iterations as could be needed if each
        # computed a single token and every sequence were preempted a few times.
        self.harness.run(limit=100 + 100 * len(self.harness.requests))
        self.harness.check_invariants()
        assert self.harness.ends.keys() == self.harness.outputs.keys()
        self.harness.check_outputs()
        assert self.harness.engine.stats().blocks_used == 0
