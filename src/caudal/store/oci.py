"""Manifests and configurations of models as OCI registries and Ollama have them.

Layout and media types are those of Ollama (github.com/ollama/ollama: manifest/manifest.go,
manifest/layer.go, types/model/config.go), which has them from Docker's registry.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"

MODEL_TYPE = "application/vnd.ollama.image.model"
MODEL_TYPES = (MODEL_TYPE, "application/vnd.docker.ai.gguf.v3")
"""What weights are: Ollama's type, which we write, and that of Docker's models."""
TEMPLATE_TYPE = "application/vnd.ollama.image.template"
PROMPT_TYPE = "application/vnd.ollama.image.prompt"
"""What templates were called once."""
SYSTEM_TYPE = "application/vnd.ollama.image.system"
PARAMS_TYPE = "application/vnd.ollama.image.params"
LICENSE_TYPE = "application/vnd.ollama.image.license"
MESSAGES_TYPE = "application/vnd.ollama.image.messages"
ADAPTER_TYPE = "application/vnd.ollama.image.adapter"
PROJECTOR_TYPE = "application/vnd.ollama.image.projector"

TITLE = "org.opencontainers.image.title"
"""The annotation with a file's name within the model, where that has several."""

MAX_MANIFEST_BYTES = 16 << 20
"""Registries take 4 MiB; a model of thousands of tensors, each a layer, has somewhat more."""

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})", re.ASCII)


def parse_digest(text: str) -> str:
    """A blob's digest as `sha256:HEX` in lower case, from that or `sha256-HEX`.

    Raises:
        ValueError: It is something else.
    """
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise ValueError(f"a digest must be sha256: and 64 hexadecimal digits, not {text!r:.100}")
    return f"sha256:{match[1].lower()}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One blob of a model.

    Attributes:
        media_type: What it is.
        digest: `sha256:HEX`.
        size: Its bytes.
        annotations: What else is said of it.
        from_: The model that it was taken from, as Ollama notes it; empty where nobody did.
    """

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    from_: str = ""

    @property
    def sha256(self) -> str:
        """Its hash in hex."""
        return self.digest.removeprefix("sha256:")

    @property
    def title(self) -> str | None:
        """The file's name within the model, where it has one."""
        return self.annotations.get(TITLE)

    @classmethod
    def of_file(cls, media_type: str, digest: str, size: int, title: str) -> Self:
        """A blob that is a file of several."""
        return cls(media_type, digest, size, {TITLE: title})

    @classmethod
    def parse(cls, content: Any) -> Self:
        """A layer as manifests have it.

        Raises:
            ValueError: It isn't one; says what is wrong.
        """
        if not isinstance(content, dict):
            raise ValueError("a layer must be an object")
        media_type, digest, size = (content.get(key) for key in ("mediaType", "digest", "size"))
        if not isinstance(media_type, str) or not media_type:
            raise ValueError("a layer's `mediaType` must be a string")
        if not isinstance(digest, str):
            raise ValueError("a layer's `digest` must be a string")
        if type(size) is not int or not 0 <= size < 2**63:
            raise ValueError("a layer's `size` must be a number of bytes")
        from_ = content.get("from", "")
        if not isinstance(from_, str):
            raise ValueError("a layer's `from` must be a string")
        return cls(media_type, parse_digest(digest), size, _annotations(content), from_)

    def to_json(self) -> dict[str, Any]:
        """As manifests have it."""
        content: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.from_:
            content["from"] = self.from_
        return content | ({"annotations": dict(self.annotations)} if self.annotations else {})


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """What a model consists of.

    Attributes:
        config: The blob with its `ImageConfig`.
        layers: Its other blobs, in order.
        annotations: What else is said of it.
    """

    config: Layer
    layers: Sequence[Layer]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def blobs(self) -> Sequence[Layer]:
        """All blobs, that with the configuration last."""
        return (*self.layers, self.config)

    @property
    def digest(self) -> str:
        """The hash of its bytes in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def of_type(self, *media_types: str) -> Sequence[Layer]:
        """The layers of one type, or of some."""
        return [layer for layer in self.layers if layer.media_type in media_types]

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a manifest.

        Raises:
            ValueError: It isn't one; says what is wrong.
        """
        if len(raw) > MAX_MANIFEST_BYTES:
            raise ValueError(f"{len(raw)} bytes are too many for a manifest")
        content = _json_object(raw)
        version = content.get("schemaVersion")
        if version != 2:
            raise ValueError(f"expected a manifest with schemaVersion 2, not {version!r:.50}")
        media_type = content.get("mediaType", MANIFEST_TYPE)
        if media_type not in (MANIFEST_TYPE, OCI_MANIFEST_TYPE):
            raise ValueError(f"expected the manifest of one image, not {media_type!r:.100}")
        layers = content.get("layers")
        if not isinstance(layers, list):
            raise ValueError("`layers` must be a list")
        return cls(
            Layer.parse(content.get("config")),
            tuple(map(Layer.parse, layers)),
            _annotations(content),
        )

    def to_bytes(self) -> bytes:
        """Its JSON."""
        content: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self.config.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
        }
        if self.annotations:
            content["annotations"] = dict(self.annotations)
        return json.dumps(content, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """What a model says of itself, for lists of models.

    Attributes:
        model_format: `gguf`, or `safetensors` of a folder.
        model_family: The architecture.
        model_families: The architectures of all its files.
        model_type: Its size in words, such as `135M`.
        file_type: Its quantisation, such as `Q4_K_M`.
        renderer: What Ollama makes prompts with, where that isn't the template.
        parser: What Ollama reads answers with.
        requires: The version of Ollama that it needs.
        capabilities: What it can do, where it says so.
        context_length: Tokens that it takes, where it says so.
        embedding_length: Numbers in an embedding, where it says so.
        base_name: What it was made from, where it says so.
        others: All else, as it was read.
    """

    model_format: str = ""
    model_family: str = ""
    model_families: Sequence[str] = ()
    model_type: str = ""
    file_type: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    capabilities: Sequence[str] = ()
    context_length: int = 0
    embedding_length: int = 0
    base_name: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a configuration.

        Raises:
            ValueError: It isn't one; says what is wrong.
        """
        return cls.from_mapping(_json_object(raw))

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Self:
        """A configuration from its JSON object; null is what isn't said.

        Raises:
            ValueError: It has a value of another type.
        """
        known: dict[str, Any] = {}
        for each in dataclasses.fields(cls):
            value = content.get(each.name)
            if each.name == "others" or value is None:
                continue
            if each.type == "Sequence[str]":
                if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                    raise ValueError(f"`{each.name}` must be a list of strings")
                value = tuple(value)
            elif type(value) is not (int if each.type == "int" else str):
                raise ValueError(f"`{each.name}` must be of type {each.type}")
            known[each.name] = value
        others = {key: value for key, value in content.items() if key not in _CONFIG_FIELDS}
        return cls(**known, others=others)

    def to_mapping(self) -> dict[str, Any]:
        """Its JSON object, without what it doesn't say."""
        content: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name != "others" and (value or each.name in _ALWAYS):
                content[each.name] = list(value) if isinstance(value, tuple | list) else value
        return content | dict(self.others)


_CONFIG_FIELDS = frozenset(each.name for each in dataclasses.fields(ImageConfig)) - {"others"}
_ALWAYS = ("model_format", "model_family", "model_families", "model_type", "file_type")


def _annotations(content: Mapping[str, Any]) -> Mapping[str, str]:
    annotations = content.get("annotations")
    if annotations is None:
        return {}
    if not isinstance(annotations, dict) or not all(
        isinstance(value, str) for value in annotations.values()
    ):
        raise ValueError("`annotations` must be an object of strings")
    return annotations


def parse_json(raw: bytes | str) -> Any:
    """JSON as it is defined: Python takes numbers, too, that nobody can go on with.

    Raises:
        ValueError: It isn't JSON.
    """
    try:
        return json.loads(raw, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.80} is no number")
    return value


def _json_object(raw: bytes) -> Mapping[str, Any]:
    try:
        content = parse_json(raw)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    return content
