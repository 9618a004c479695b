"""Families against transformers and llama.cpp, on tiny models of random weights; see README.md."""
