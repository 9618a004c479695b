"""Client programs as tests: their installation, their home, and a server that records them."""
