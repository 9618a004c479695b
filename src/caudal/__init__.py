"""Caudal: a serving layer for local large language models."""
