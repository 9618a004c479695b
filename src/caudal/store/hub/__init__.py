"""Models from the Hugging Face Hub, by its own library: its settings, tokens and cache hold."""
