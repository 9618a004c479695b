"""The HTTP server: a package for each API, and what they share."""
