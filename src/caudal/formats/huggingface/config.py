"""A decoder's config.json: the text part of it, checked where families read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from caudal.errors import ModelLoadError
from caudal.formats.model_folder import CONFIG, JsonObject, ModelFolder

# Where configurations of models of more than text keep the text model's.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")

# GGUF's files say by the program what activation there is; so these have to be the family's.
SILU = ("silu", "swish")
GELU_TANH = ("gelu_pytorch_tanh", "gelu_tanh", "gelu_new", "gelu_fast")


class Config(JsonObject):
    """The configuration of a text model, or of the text model within one of more than text.

    Args:
        source: The file's path, for errors.
        content: The whole file's object.
    """

    def __init__(self, source: str, content: Mapping[str, Any]) -> None:
        text: Mapping[str, Any] = {}
        for name in _TEXT_PARTS:
            if name in content:
                text = JsonObject(source, content).get(name, dict)
                break
        super().__init__(source, {**content, **text})
        self.model_types = tuple(
            JsonObject(source, part).get("model_type", str, "") for part in (text, content)
        )

    @classmethod
    def of(cls, folder: ModelFolder) -> Self:
        """A folder's.

        Raises:
            ModelLoadError: It is missing, or isn't a JSON object.
        """
        config = folder.read_object(CONFIG)
        return cls(config.source, config.content)

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """The same, with values for keys that are missing."""
        given = {key: value for key, value in self.content.items() if value is not None}
        return self._with_content({**defaults, **given})

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """The same, with other values for some keys."""
        return self._with_content({**self.content, **values})

    def _with_content(self, content: Mapping[str, Any]) -> Config:
        result = Config(self.source, {})
        result.content = content
        result.model_types = self.model_types
        return result

    def part(self, key: str) -> JsonObject:
        """The object under a key; an empty one where it is missing."""
        return JsonObject(f"{self.source}: {key}", self.get(key, dict, {}))

    def require(self, key: str, allowed: tuple[Any, ...], default: Any) -> None:
        """Refuse what isn't computed.

        Args:
            key: The key.
            allowed: Values that are.
            default: What a missing key stands for.

        Raises:
            ModelLoadError: The key has another value; names both.
        """
        value = self.content.get(key)
        value = default if value is None else value
        if value not in allowed:
            options = " or ".join(map(repr, allowed))
            raise self.error(f"{key} is {value!r:.100}; supported is {options}")

    def error(self, reason: str) -> ModelLoadError:
        """What to raise about the configuration."""
        return ModelLoadError(self.source, reason)
