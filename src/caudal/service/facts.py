"""What is served, as far as it is worth showing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from caudal import __version__
from caudal.loading.facts import ModelFacts


@dataclass(frozen=True, kw_only=True)
class ServedFacts:
    """A model as it is served.

    Attributes:
        loaded: The model, and what runs it.
        tool_parser: How tool calls are told from text; None for a model that doesn't generate.
        reasoning_parser: How reasoning is told from an answer; None likewise.
    """

    loaded: ModelFacts
    tool_parser: str | None = None
    reasoning_parser: str | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Changes with what may change answers: version, model, kernels, parsers."""
        loaded, executor = self.loaded, self.loaded.executor
        deciding = [
            loaded.architecture,
            loaded.tensors_text,
            loaded.tokenizer_text,
            loaded.chat_template,
            loaded.package,
            executor.backend,
            executor.instruction_set,
            executor.activations,
            executor.kv_type,
            self.tool_parser,
            self.reasoning_parser,
        ]
        digest = hashlib.sha256(repr(deciding).encode()).hexdigest()
        return f"caudal-{__version__}-{digest[:8]}"
