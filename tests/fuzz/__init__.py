"""Fuzzing: random mutations of bytes from strangers, and what may come of them.

`make fuzz` runs every target (`fuzz/__main__.py`) with Atheris, each in a process of its own
(`fuzz/child.py`). A target takes bytes and returns whether they were accepted; of exceptions it
lets out only what is a fault. `tests/fuzz/test_seeds.py` runs all targets over their seeds.
"""
