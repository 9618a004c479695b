"""A model in this process, for programs in Python: `LLM` and what it returns."""
