"""Models from registries, and to them, as Ollama's and Docker's speak it (OCI's distribution)."""
