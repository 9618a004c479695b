"""Block tables: copy-on-write, forks, and giving back."""

from __future__ import annotations

from caudal.engine.memory import Memory
from caudal.engine.nodes import Match
from caudal.engine.space import Space
from caudal.engine.tables import SequenceMemory


def started(memory: Memory, length: int) -> SequenceMemory:
    table = memory.open(Match())
    assert memory.extend(table, length)
    table.length = length
    return table


def test_blocks_are_taken_only_when_the_last_is_full() -> None:
    memory = Memory(8, 4, prefix_cache=False)
    table = started(memory, 4)
    assert len(table.blocks) == 1
    assert memory.extend(table, 5)
    assert len(table.blocks) == 2
    table.length = 5
    assert memory.extend(table, 8)
    assert len(table.blocks) == 2


def test_the_first_write_after_a_fork_copies_the_shared_block_and_no_other() -> None:
    memory = Memory(8, 4, prefix_cache=False)
    table = started(memory, 6)
    twin = memory.fork(table)
    assert memory.pool.num_used == 2
    shared = table.blocks[1]
    assert memory.extend(twin, 7)
    assert twin.copy == (shared, twin.blocks[1])
    assert twin.blocks[0] == table.blocks[0]
    memory.settle(twin)
    assert memory.extend(table, 7)  # alone with its block by now
    assert table.copy is None
    assert memory.pool.num_used == 3


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    memory = Memory(8, 4, prefix_cache=False)
    table = started(memory, 8)
    twin = memory.fork(table)
    assert memory.extend(twin, 9)
    assert memory.extend(table, 9)
    assert twin.copy is None
    assert table.copy is None
    assert memory.pool.num_used == 4


def test_a_part_of_a_block_is_used_through_a_copy() -> None:
    memory = Memory(8, 4, prefix_cache=True)
    assert memory.cache is not None
    memory.close(started(memory, 6), Space(), [1, 2, 3, 4, 5, 6], 6, keep=True)
    match = memory.cache.match(Space(), [1, 2, 3, 4, 5, 9, 9], 6)
    table = memory.open(match)
    assert table.length == 5
    assert match.source is not None
    assert table.copy == (match.source.block, table.blocks[1])
    assert memory.pool.references(match.source.block) == 1  # until the copy is made
    memory.settle(table)
    assert memory.pool.references(match.source.block) == 0


def test_without_a_block_to_spare_the_part_is_not_used() -> None:
    memory = Memory(2, 4, prefix_cache=True)
    assert memory.cache is not None
    memory.close(started(memory, 8), Space(), [1, 2, 3, 4, 5, 6, 7, 8], 8, keep=True)
    table = memory.open(memory.cache.match(Space(), [1, 2, 3, 4, 5, 6, 9], 6))
    assert table.length == 4
    assert table.copy is None
    assert memory.extend(table, 7)


def test_extend_changes_nothing_when_it_fails() -> None:
    memory = Memory(3, 4, prefix_cache=False)
    table = started(memory, 6)
    twin = memory.fork(table)
    assert not memory.extend(twin, 9)  # a copy and a new block are two, and one is left
    assert twin.blocks == table.blocks
    assert twin.copy is None
    assert memory.pool.num_free == 1


def test_without_keep_nothing_is_cached_and_a_pending_copy_is_undone() -> None:
    memory = Memory(8, 4, prefix_cache=True)
    table = started(memory, 6)
    twin = memory.fork(table)
    assert memory.extend(twin, 7)
    memory.close(twin, Space(), [1, 2, 3, 4, 5, 6, 7], 6, keep=False)
    memory.close(table, Space(), [1, 2, 3, 4, 5, 6], 6, keep=False)
    assert memory.pool.num_free == 8
