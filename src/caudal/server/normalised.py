"""What `--normalise-prompts` did to requests: said in a header, counted, and logged once."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from caudal.server.said import Said

HEADER = "x-caudal-normalised"


def normalised_prompts(registry: CollectorRegistry) -> Said:
    """The rules that have found something, by name.

    Args:
        registry: Where the counts are shown.
    """
    counter = Counter(
        "caudal_normalised_prompts",
        "Prompts that --normalise-prompts has changed, by what was found in them.",
        ["rule"],
        registry=registry,
    )
    line = (
        "%s: %s was taken out of a system prompt, or moved behind it (said once; every answer to "
        f"such a request says it in {HEADER})"
    )
    return Said(HEADER, counter, line)
