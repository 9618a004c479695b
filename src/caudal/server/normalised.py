"""What `--normalise-prompts` did to requests: said in a header, counted, and logged once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter

from caudal.server.said import say

logger = logging.getLogger("caudal.server")

HEADER = "x-caudal-normalised"


class NormalisedPrompts:
    """Counts what rules have found, by their names.

    Args:
        registry: Where the counts are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "caudal_normalised_prompts",
            "Prompts that --normalise-prompts has changed, by what was found in them.",
            ["rule"],
            registry=registry,
        )
        self._known: set[str] = set()

    def note(self, request: Request, rules: Sequence[str]) -> None:
        """Say of a request that rules have found something in its prompt."""
        for rule in rules:
            if not say(request.scope, HEADER, rule):
                continue  # a conversation may be looked at more than once
            self._counter.labels(rule).inc()
            if rule not in self._known:
                self._known.add(rule)
                logger.info(
                    "%s: %s was taken out of a system prompt, or moved behind it (said once; every "
                    "answer to such a request says it in %s)",
                    request.url.path,
                    rule,
                    HEADER,
                )
