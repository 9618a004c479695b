"""Ollama's own API, under `/api/`, for the programs that people point at Ollama."""
