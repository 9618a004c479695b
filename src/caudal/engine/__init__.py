"""Queues, schedules, pages and reuses; knows neither tensors nor HTTP.

Read in this order: `request` (what is asked and reported), `kv` and `radix` (blocks, and what they
hold), `memory` (a sequence's block table), `sequence`, `policy` and `scheduler` (who runs next),
`grammar` and `constrained` (answers of a given form), `engine` (one iteration; `checks`,
`deadlines` and `stats` help it), `async_engine` (the same in a thread).
"""
