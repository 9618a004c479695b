"""Adapters: low-rank changes to a model's matrices (LoRA, arXiv 2106.09685), in files apart."""
