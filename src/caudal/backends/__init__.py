"""What runs batches: the contract (`base`), what a backend is (`backend`), and which there are."""
