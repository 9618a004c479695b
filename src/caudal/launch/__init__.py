"""Coding agents against a server of ours: what each has to be told, and how that is undone."""
