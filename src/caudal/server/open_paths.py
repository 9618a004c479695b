"""Routes that say no more than that the server is there, and answer everyone at any time."""

OPEN_PATHS = frozenset(("/", "/health", "/ready"))
"""Need no key and no model. Clients look at `/` to see whether there is a server."""

PROBES = OPEN_PATHS | {"/metrics"}
"""What watches over the server asks for these all the time, while models are loaded, too."""
