"""What travels with a model's weights: how prompts are made, what is said first, parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caudal.store import oci
from caudal.store.disk import read_file
from caudal.store.oci import ImageManifest, Layer

_MAX_TEXT_BYTES = 16 << 20
"""Larger than any licence or template: more is a mistake or an attack."""


@dataclass(frozen=True, slots=True)
class PackagedMessage:
    """A message that every conversation begins with.

    Attributes:
        role: Who says it: `system`, `user` or `assistant`.
        content: What they say.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What travels with a model's weights.

    Attributes:
        template: The chat template, in Go's language as Ollama has it or Jinja; None: the weights'
            own.
        system: What the system says where a conversation doesn't.
        parameters: Names and JSON types of Ollama: `temperature`, `num_ctx`, `stop` (a list), ….
        licences: Their texts.
        messages: What every conversation begins with.
        adapters: LoRA files.
        projectors: Files with what makes images or sound into embeddings.
    """

    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    licences: Sequence[str] = ()
    messages: Sequence[PackagedMessage] = ()
    adapters: Sequence[Path] = ()
    projectors: Sequence[Path] = ()


NO_PACKAGE = Package()
"""That of files outside the store: they have nothing but what is in them."""


def read_package(manifest: ImageManifest, locate: Callable[[Layer], Path]) -> Package:
    """What a manifest's layers say.

    Args:
        manifest: It.
        locate: Where a layer's blob lies.

    Raises:
        OSError: A blob can't be read.
        ValueError: One isn't what its type says.
    """

    def texts(*media_types: str) -> list[str]:
        layers = [layer for layer in manifest.layers if layer.media_type in media_types]
        return [_read_text(locate(layer)) for layer in layers]

    def paths(media_type: str) -> tuple[Path, ...]:
        return tuple(map(locate, manifest.of_type(media_type)))

    templates = texts(oci.TEMPLATE_TYPE, oci.PROMPT_TYPE)
    systems = texts(oci.SYSTEM_TYPE)
    parameters = {
        key: value
        for text in texts(oci.PARAMS_TYPE)
        for key, value in _parsed(text, dict, "parameters").items()
        if value is not None
    }
    messages = [
        _message(each)
        for text in texts(oci.MESSAGES_TYPE)
        for each in _parsed(text, list, "messages")
    ]
    return Package(
        template=templates[-1] if templates else None,
        system=systems[-1] if systems else None,
        parameters=parameters,
        licences=tuple(texts(oci.LICENSE_TYPE)),
        messages=tuple(messages),
        adapters=paths(oci.ADAPTER_TYPE),
        projectors=paths(oci.PROJECTOR_TYPE),
    )


def _read_text(path: Path) -> str:
    try:
        return read_file(path, _MAX_TEXT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8") from error


def _parsed(text: str, kind: type, what: str) -> Any:
    try:
        content = oci.parse_json(text)
    except ValueError as error:
        raise ValueError(f"its {what} are no JSON: {error}") from error
    if content is None:  # as Go writes none of them
        return kind()
    if not isinstance(content, kind):
        raise ValueError(f"its {what} must be a JSON {kind.__name__}, not {text!r:.100}")
    return content


def _message(content: Any) -> PackagedMessage:
    role, said = (
        (content.get("role"), content.get("content", ""))
        if isinstance(content, dict)
        else (None, None)
    )
    if not isinstance(role, str) or not isinstance(said, str):
        raise ValueError("its messages must have a role and a content")
    return PackagedMessage(role, said)
