"""Models in packages, from the index that pip is configured for."""
