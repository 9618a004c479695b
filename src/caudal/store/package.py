"""What travels with a model's weights, for whoever runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PackagedMessage:
    """A message that all conversations begin with.

    Attributes:
        role: Who speaks.
        content: What.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What travels with a model's weights.

    Attributes:
        template: Turns conversations into prompts, in Go's language (as Ollama's) or Jinja; None:
            the weights' own.
        system: What the model is told where a conversation has no system message.
        parameters: By Ollama's names, with the JSON types of its params layer.
        licences: Texts.
        messages: What conversations begin with.
        adapters: LoRA files.
        projectors: Files for images.
    """

    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    licences: Sequence[str] = ()
    messages: Sequence[PackagedMessage] = ()
    adapters: Sequence[Path] = ()
    projectors: Sequence[Path] = ()


NO_PACKAGE = Package()
"""Of weights alone."""
