"""Drives an engine on the fake executor and holds it to account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from caudal.backends.executor import WindowPool
from caudal.engine.checkpoints import Checkpoints
from caudal.engine.config import EngineConfig
from caudal.engine.drafting.proposer import Proposer
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.engine import Engine
from caudal.engine.nodes import Node
from caudal.engine.request import FinishReason, Generate, Pool, Request, SequenceUpdate
from caudal.engine.sequence import Status
from caudal.engine.tiers.second_tier import SecondTier
from caudal.engine.tiers.store import PieceStore
from caudal.models.pooling import PoolingKind
from caudal.sampling_params import SamplingParams
from support.fake_executor import (
    FakeExecutor,
    expected_output,
    mark_of,
    pooled_states,
    score,
    with_adapter,
)
from support.fake_grammar import FakeGrammars, SlotGrammar
from support.tiny_adapter import tiny_adapter

EOS = 0


@contextmanager
def stepwise_store() -> Iterator[None]:
    """Engines that are made meanwhile have stores without threads, on disks of unknown speed."""
    made = "caudal.engine.tiers.opening.PieceStore"
    with (
        patch(made, partial(PieceStore, threads=False)),
        patch("caudal.engine.tiers.disk.measured_rate", lambda home: float("inf")),
    ):
        yield


class Clock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Harness:
    """An engine, its fake executor, and a ledger of everything it has reported.

    Args:
        num_blocks, block_size, vocab_size, num_slots: The fake executor's.
        windows: Its pools for windows: blocks, and the window.
        proposer: What guesses tokens; some are guessed by default then.
        config: Fields of `EngineConfig`.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = 50,
        windows: Sequence[tuple[int, int]] = (),
        num_slots: int = 0,
        proposer: Proposer | None = None,
        **config: Any,
    ) -> None:
        config.setdefault("max_model_len", min(100, num_blocks * block_size))
        if proposer is not None:
            config.setdefault("speculative", Speculation())
        config.setdefault("embedding_queue_delay", 0.0)  # the clock stands still
        config.setdefault("checkpoints", Checkpoints(interval=2 * block_size, margin=2, worth=4))
        self.executor = FakeExecutor(
            num_blocks,
            block_size,
            vocab_size,
            windows=[WindowPool(*pool) for pool in windows],
            num_slots=num_slots,
        )
        self.clock = Clock()
        self.grammars = FakeGrammars()
        self.config = EngineConfig(**config)
        self.proposer = proposer
        self.engine = self._open()
        self.threads = 0  # pieces that the store's threads read and write before each step
        self.sources: list[str] = []
        self.requests: dict[str, Request] = {}
        self.asked: dict[str, SlotGrammar] = {}
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], SequenceUpdate] = {}
        self.prompt_logprobs: dict[str, Sequence[Any]] = {}
        self.updates: list[SequenceUpdate] = []

    def _open(self) -> Engine:
        with stepwise_store():
            return Engine(
                self.executor,
                self.config,
                frozenset({EOS}),
                self.grammars,
                clock=self.clock,
                proposer=self.proposer,
            )

    @property
    def tier(self) -> SecondTier:
        """What lies behind the pools."""
        tier = self.engine._tier
        assert tier is not None
        return tier

    def restart(self, *, kill: bool = False) -> None:
        """A new process with the same configuration; `kill`: the old one had no time for anything.

        Nothing lives, and what was asked is forgotten.
        """
        assert not self.engine.has_work
        self.check_outputs()
        for ledger in (self.requests, self.asked, self.outputs, self.ends, self.prompt_logprobs):
            ledger.clear()
        self.updates.clear()
        if not kill:
            self.engine.close()
        old = self.executor
        self.executor = replace(old, adapters={}, batches=[], closed=False)
        self.sources = []
        self.engine = self._open()

    def work_threads(self, times: int) -> None:
        """Let the store's threads do so much."""
        for _ in range(times):
            if not self.tier.store.read_one() and not self.tier.store.write_one():
                return

    def load_adapter(self, name: str = "adapter") -> int:
        """Load an adapter that is like no other, and return its number."""
        self.sources.append(f"{name} {len(self.sources)}")
        made = self.engine.adapters.load(name, tiny_adapter(self.sources[-1]))
        assert made.number == len(self.sources) - 1
        return made.number

    def submit(
        self,
        prompt: Sequence[int],
        *,
        name: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: int | None = None,
        tenant: str | None = None,
        weight: float = 1.0,
        max_waiting: int | None = None,
        arrived: float | None = None,
        first_token_timeout: float | None = None,
        timeout: float | None = None,
        pooling: PoolingKind | None = None,
        grammar: SlotGrammar | None = None,
        **params: Any,
    ) -> str:
        """Submit a request and return its id; the seed is 7 unless given."""
        if grammar is not None:
            params["structured_outputs"] = self.grammars.form(grammar)
        params.setdefault("seed", 7)
        request = Request(
            request_id=name if name is not None else f"r{len(self.requests)}",
            prompt=prompt,
            work=Generate(SamplingParams(**params)) if pooling is None else Pool(pooling),
            priority=priority,
            cache_salt=cache_salt,
            adapter=adapter,
            tenant=tenant,
            weight=weight,
            max_waiting=max_waiting,
            arrived=arrived,
            first_token_timeout=first_token_timeout,
            timeout=timeout,
        )
        self.engine.submit(request)
        self.requests[request.request_id] = request
        if grammar is not None:
            self.asked[request.request_id] = grammar
        for index in range(request.work.num_sequences):
            self.outputs[request.request_id, index] = []
        return request.request_id

    def step(self) -> list[SequenceUpdate]:
        """One iteration; its updates are entered in the ledger."""
        if self.threads:
            self.work_threads(self.threads)
        updates = self.engine.step()
        seen = Counter((update.request_id, update.index) for update in updates)
        assert not seen or max(seen.values()) == 1, "two updates of a sequence in one step"
        for update in updates:
            self._enter(update)
        return updates

    def run(self, limit: int = 10_000) -> None:
        """Iterate until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"work is left after {limit} iterations")

    def output(self, request_id: str, index: int = 0) -> list[int]:
        """Tokens of a sequence so far."""
        return self.outputs[request_id, index]

    def reason(self, request_id: str, index: int = 0) -> FinishReason | None:
        """How a sequence ended, if it has."""
        end = self.ends.get((request_id, index))
        return end.finish_reason if end else None

    def cached(self, request_id: str) -> int:
        """Prompt tokens taken from the cache, of an ended request."""
        return self.ends[request_id, 0].num_cached_tokens

    def expected(self, request_id: str, index: int = 0) -> list[int]:
        """What the request's tokens must be, had it run alone to its end."""
        request = self.requests[request_id]
        assert isinstance(request.work, Generate)
        params = request.work.params
        room = self.engine.config.max_model_len - len(request.prompt)
        count = room if params.max_tokens is None else min(params.max_tokens, room)
        assert params.seed is not None
        seed = params.seed
        if request.adapter is not None:
            seed = with_adapter(seed, self.sources[request.adapter])
        if request_id in self.asked:
            grammar = self.asked[request_id]
            return grammar.answer(request.prompt, seed=seed, stream=index)[:count]
        return expected_output(
            request.prompt,
            seed=seed,
            stream=index,
            count=count,
            vocab_size=self.executor.vocab_size,
            stop=frozenset() if params.ignore_eos else frozenset({EOS}),
        )

    def _check_pooled(self, request: Request, end: SequenceUpdate) -> None:
        assert end.tokens == ()
        if end.finish_reason is FinishReason.STOP:
            assert end.pooled is not None
            assert isinstance(request.work, Pool)
            expected = pooled_states(request.prompt, request.work.kind, self._mark(request))
            assert end.pooled.tolist() == [expected]
        else:
            assert end.pooled is None

    def _mark(self, request: Request) -> list[int]:
        return [] if request.adapter is None else [mark_of(self.sources[request.adapter])]

    def check_outputs(self) -> None:
        """Every sequence has ended; those that ran to their end said what they would alone."""
        for (request_id, index), output in self.outputs.items():
            end = self.ends[request_id, index]
            work = self.requests[request_id].work
            if isinstance(work, Pool):
                self._check_pooled(self.requests[request_id], end)
                continue
            expected = self.expected(request_id, index)
            if end.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert output == expected, (request_id, index)
                stopped = bool(expected) and expected[-1] == EOS
                if request_id in self.asked:  # it ends where its grammar does
                    stopped = stopped or len(output) == len(self.asked[request_id].slots)
                ignored = work.params.ignore_eos
                assert (end.finish_reason is FinishReason.STOP) == (stopped and not ignored)
            else:
                assert output == expected[: len(output)], (request_id, index)
        for request_id, scores in self.prompt_logprobs.items():
            prompt = list(self.requests[request_id].prompt)
            mark = self._mark(self.requests[request_id])
            assert [entry.token for entry in scores] == prompt[1:]
            for i, entry in enumerate(scores):
                assert entry.logprob == score(mark + prompt[: i + 1], prompt[i + 1])

    def check_invariants(self) -> None:
        """Nothing is leaked, freed twice, shared wrongly, or cached under a wrong name."""
        engine: Any = self.engine
        memory, lanes = engine._memory, engine._scheduler.lanes
        live = {
            id(seq) for state in engine._live._groups.values() for seq in state.sequences.values()
        }
        assert len(live) == len(lanes.running) + lanes.num_waiting
        self._check_adapters([state.request for state in engine._live._groups.values()])
        assert lanes.num_free >= 0
        self._check_tenants()
        references: list[Counter[int]] = [Counter() for _ in memory.pools]
        for seq in lanes.running:
            assert seq.status is Status.RUNNING
            assert id(seq) in live
            self._check_held(seq, references)
        if engine._tier is not None:
            assert all(seq.status is Status.WAITING for seq in engine._tier._behind)
        for recall in [] if engine._tier is None else engine._tier._recalls.values():
            assert id(recall.seq) in live
            for kind, table in enumerate(recall.held.tables):
                references[kind].update(block for block in table.blocks if block >= 0)
            if recall.held.slot >= 0:
                references[-1][recall.held.slot] += 1
        for kind, (pool, references_of) in enumerate(zip(memory.pools, references, strict=True)):
            self._check_pool(pool, references_of)
            if memory.cache is None:
                assert not any(map(pool.is_retained, range(pool.num_blocks)))
                continue
            retained = memory.cache._kinds[kind]
            evictable = retained.evictable()
            for block in range(pool.num_blocks):
                assert (retained.nodes[block] is not None) == pool.is_retained(block)
                if kind and pool.is_retained(block) and not references_of[block]:
                    assert block in evictable
        if memory.cache is not None:
            found = [0] * len(memory.pools)
            leaves = memory.cache._main.evictable()
            for space, root in memory.cache._roots.items():
                assert root.space == space
                assert root.children, "an empty root"
                self._check_subtree(root, [], memory.cache, found, leaves)
            assert found == [kind.num_nodes for kind in memory.cache._kinds]

    def _check_tenants(self) -> None:
        """Each tenant's account has what waits of it, and is kept as long as there is anything."""
        engine: Any = self.engine
        for lane in engine._scheduler.lanes:
            queue, tenants = lane.waiting, lane.waiting.tenants
            new = [
                seq
                for account in tenants._accounts.values()
                for bucket in account.waiting.values()
                for seq in bucket
            ]
            assert queue.num_new == len(set(new)) == len(new)
            there = [*new, *queue._preempted, *lane.running]
            live = Counter(seq.group.request.tenant for seq in there)
            for tenant, account in tenants._accounts.items():
                assert account.live == live[tenant]
                waiting = [seq for seq in new if seq.group.request.tenant == tenant]
                assert account.num_waiting == len(waiting)
                assert (account in tenants.waiting) == bool(waiting)
            assert live.keys() <= tenants._accounts.keys()
            assert len(queue.candidates(self.clock.now, lambda seq: 0)) >= (len(queue) > 0)

    def _check_held(self, seq: Any, references: list[Counter[int]]) -> None:
        """A running sequence has what it needs, and that is its own tokens'."""
        held = seq.memory
        assert len(held.tables) == len(self.executor.pools)
        for kind, table in enumerate(held.tables):
            assert table.copy is None
            first = self.executor.seen(kind, held.length)
            assert table.first == (first // self.executor.block_size)
            assert all(block < 0 for block in table.blocks[: table.first])
            there = table.blocks[table.first :]
            assert len(set(there)) == len(there)
            references[kind].update(there)
            tokens = self.executor.read(kind, table.blocks, first, held.length)
            assert tokens == seq.tokens[first : held.length]
        assert held.next_slot < 0
        if held.slot >= 0:
            references[-1][held.slot] += 1
            assert self.executor.state_in(held.slot) == seq.tokens[: held.length]
        assert (held.slot >= 0) == (self.executor.num_slots > 0 and held.length > 0)

    def _check_adapters(self, live: Sequence[Request]) -> None:
        """Those are loaded that are offered or in use, and no others."""
        adapters: Any = self.engine.adapters
        used = Counter(request.adapter for request in live if request.adapter is not None)
        held = adapters._held
        assert held.keys() == {each.number for each in adapters.offered} | used.keys()
        assert self.executor.adapters.keys() == {each.loaded.index for each in held.values()}
        assert Counter({n: users for n, users in adapters._users.items() if users}) == used

    @staticmethod
    def _check_pool(pool: Any, references: Counter[int]) -> None:
        """Each is free, in use or cached."""
        for block in range(pool.num_blocks):
            assert pool.references(block) == references[block], f"block {block}"
        free = pool._free
        assert len(set(free)) == len(free)
        assert not any(references[block] or pool.is_retained(block) for block in free)
        assert pool.num_used == len(references)
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks

    def _check_subtree(
        self,
        node: Node,
        path: list[int],
        cache: Any,
        found: list[int],
        leaves: dict[int, int],
    ) -> None:
        pool, stamps = cache._pool, cache._main.stamps
        assert node.order == sorted(node.children)
        for left, right in zip(node.order, node.order[1:], strict=False):
            if right[: len(left)] == left:
                leaf = node.children[left]
                assert leaf.slot >= 0 or leaf.windows, "a leaf that says nothing new"
        for keys, child in node.children.items():
            tokens = [*path, *keys]
            assert child.keys == keys
            assert child.parent is node
            assert child.end == node.end + len(keys) == len(tokens)
            assert len(keys) == pool.block_size or not child.children
            for kind, block in enumerate((child.block, *child.windows)):
                if block >= 0:
                    found[kind] += 1
                    assert cache._kinds[kind].nodes[block] is child
                    assert tuple(self.executor.pools[kind][block][: len(keys)]) == keys
            if child.slot >= 0:
                found[-1] += 1
                assert cache._states.nodes[child.slot] is child
                assert self.executor.state_in(child.slot) == tokens
            if pool.references(child.block):
                assert node.block < 0 or pool.references(node.block), "an unlocked ancestor"
            else:
                assert child.children or leaves[child.block] == stamps[child.block]
                if node.block >= 0 and not pool.references(node.block):
                    assert stamps[node.block] >= stamps[child.block]
            self._check_subtree(child, tokens, cache, found, leaves)

    def _enter(self, update: SequenceUpdate) -> None:
        key = (update.request_id, update.index)
        assert key in self.outputs, f"an update of nobody's: {update}"
        assert key not in self.ends, f"an update after the end: {update}"
        self.updates.append(update)
        self.outputs[key] += [sampled.token for sampled in update.tokens]
        if update.prompt_logprobs is not None:
            assert update.request_id not in self.prompt_logprobs, "prompt scores came twice"
            self.prompt_logprobs[update.request_id] = update.prompt_logprobs
        if update.finish_reason is not None:
            self.ends[key] = update
