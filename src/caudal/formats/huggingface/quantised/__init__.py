"""Quantised checkpoints: methods that read their tensors as rows of block types (blocks.py)."""
