"""Queues, schedules, pages and reuses; knows neither tensors nor HTTP.

Read in this order: `request` (what is asked and reported), `kv` and `radix` (blocks, and what they
hold), `memory` (a sequence's block table), `sequence`, `policy`, `lane` and `scheduler` (who runs
next), `grammar` and `answer` (answers of a given form), `steps` and `iteration` (one iteration),
`live` (every request ends once), `engine` (all of it), `async_engine` (the same in a thread). What
crosses to another process is packed by `wire`.
"""
