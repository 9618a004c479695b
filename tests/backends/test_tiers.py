"""Answers are the same to the bit from whichever tier what they go on from comes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.engine_harness import stepwise_store
from support.reference_hybrids import TinyQwen35
from support.reference_model import TinyModel
from support.served import Served

MODELS = {
    "llama": TinyModel(architecture="llama"),
    "gemma3": TinyModel(architecture="gemma3", layers=7, window=20, kv_heads=1, head_dim=24),
    "qwen35": TinyQwen35(),
}


def prompts_of(count: int) -> list[list[int]]:
    """Conversations that share beginnings, in pieces of lengths that no block has."""
    random_numbers = random.Random(5)
    prompts: list[list[int]] = []
    for _ in range(count):
        before = random_numbers.choice(prompts)[: random_numbers.randrange(70)] if prompts else []
        more = random_numbers.choices(range(1, 60), k=random_numbers.randrange(20, 50))
        prompts.append([*before, *more][:105])
    return prompts


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_the_same_from_memory_a_disk_and_after_a_restart(
    name: str, tmp_path: Path
) -> None:
    model, prompts = MODELS[name], prompts_of(24)
    alone = Served(model, tmp_path, prefix_cache=False)
    expected = [alone.answers(prompt)[0][0] for prompt in prompts]
    small = alone.kinds.sequence_bytes(128) * 5 // 2
    random_numbers = random.Random(7)
    hits = 0
    with stepwise_store():
        for tiers in (
            {"prefix_memory": 1 << 20},
            {"prefix_store": str(tmp_path / "store")},
            {"prefix_store": str(tmp_path / "store"), "prefix_memory": 30_000},
        ):
            served = Served(
                model,
                tmp_path,
                max_num_batched_tokens=random_numbers.randrange(12, 40),
                max_num_seqs=3,
                kv_memory=small,
                **tiers,
            )
            order = random_numbers.choices(range(len(prompts)), k=45)
            while order:
                group, order = set(order[:3]), order[3:]
                answers = served.answers(*(prompts[number] for number in group), work=20)
                assert [scored for scored, _ in answers] == [expected[number] for number in group]
            stats = served.engine.stats()
            assert stats.tiers is not None
            assert stats.tiers.hits > 0
            assert stats.tiers.failures == 0
            hits += stats.tiers.disk_hit_tokens > 0
            served.engine.close()
    assert hits == 2
    alone.engine.close()
