"""BlockPool: each block is exactly one of free, in use or cached."""

from __future__ import annotations

import pytest

from caudal.engine.kv import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_used, pool.num_cached


def test_a_block_goes_from_free_to_used_to_cached_and_back() -> None:
    pool = BlockPool(3, 16)
    assert counts(pool) == (3, 0, 0)
    block = pool.allocate()
    assert counts(pool) == (2, 1, 0)
    pool.retain(block)
    assert counts(pool) == (2, 1, 0)  # in use and in the tree: in use
    assert pool.release(block)
    assert counts(pool) == (2, 0, 1)
    pool.acquire(block)
    assert counts(pool) == (2, 1, 0)
    assert pool.release(block)
    pool.forget(block)
    assert counts(pool) == (3, 0, 0)


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1, 16)
    block = pool.allocate()
    assert pool.is_exclusive(block)
    pool.acquire(block)
    assert not pool.is_exclusive(block)
    assert not pool.release(block)
    assert counts(pool) == (0, 1, 0)
    assert not pool.release(block)
    assert counts(pool) == (1, 0, 0)


def test_a_retained_block_is_not_exclusive() -> None:
    pool = BlockPool(1, 16)
    block = pool.allocate()
    pool.retain(block)
    assert not pool.is_exclusive(block)


def test_double_release_and_use_of_free_blocks_are_refused() -> None:
    pool = BlockPool(2, 16)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release(block)
    with pytest.raises(RuntimeError, match="is free"):
        pool.acquire(block)
    with pytest.raises(RuntimeError, match="not in use"):
        pool.retain(block)
    with pytest.raises(RuntimeError, match="not retained"):
        pool.forget(block)
    assert counts(pool) == (2, 0, 0)


def test_allocation_from_an_empty_pool_raises() -> None:
    pool = BlockPool(1, 16)
    pool.allocate()
    with pytest.raises(IndexError):
        pool.allocate()


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(1, 16).blocks_for(tokens) == blocks


def test_a_pool_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="needs blocks"):
        BlockPool(0, 16)
