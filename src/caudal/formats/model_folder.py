"""A model that is several files, as Hugging Face lays them out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from caudal.errors import ModelLoadError

MAX_JSON_BYTES = 32 << 20
"""Larger than any configuration or tokenizer: more is a mistake or an attack."""

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
CHAT_TEMPLATE_JSON = "chat_template.json"
GENERATION_CONFIG = "generation_config.json"

T = TypeVar("T")
_MISSING = object()


def is_part_of_model(name: str) -> bool:
    """Whether Caudal reads a file of this path within a model's folder."""
    directory, _, file = name.rpartition("/")
    if "/" in directory:
        return False
    if directory:  # a module of sentence-transformers, such as 1_Pooling
        return directory[0].isdigit() and file in (CONFIG, WEIGHTS)
    if file.startswith("model") and file.endswith(".safetensors"):  # a shard
        return True
    return file in (
        CONFIG,
        WEIGHTS,
        WEIGHTS_INDEX,
        TOKENIZER,
        TOKENIZER_CONFIG,
        SPECIAL_TOKENS,
        CHAT_TEMPLATE,
        CHAT_TEMPLATE_JSON,
        GENERATION_CONFIG,
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    )


class JsonObject:
    """One JSON object of a model, with getters that check types.

    Args:
        source: The file's path, for errors.
        content: The object.

    Attributes:
        source: The file's path, for errors.
        content: The object.
    """

    def __init__(self, source: str, content: Mapping[str, Any]) -> None:
        self.source = source
        self.content = content

    def __contains__(self, key: str) -> bool:
        return self.content.get(key) is not None

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: T) -> T: ...
    def get(self, key: str, kind: type[T], default: Any = _MISSING) -> T:
        """The value of a key; null counts as missing.

        Raises:
            ModelLoadError: It is missing without a default, of another type, or no finite number.
        """
        value = self.content.get(key)
        if value is None:
            if default is _MISSING:
                raise ModelLoadError(self.source, f"{key} is missing")
            result: T = default
            return result
        if kind is float and type(value) is int and abs(value) < 2**63:
            value = float(value)
        if type(value) is not kind:
            raise ModelLoadError(
                self.source, f"{key} must be of type {kind.__name__}, but is {value!r:.100}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ModelLoadError(self.source, f"{key} must be a finite number, but is {value}")
        return value

    def strings(self, key: str, default: list[str]) -> list[str]:
        """A list of strings.

        Raises:
            ModelLoadError: It is something else.
        """
        values = self.get(key, list, default)
        if not all(type(value) is str for value in values):
            raise ModelLoadError(self.source, f"{key} must be strings, but is {values!r:.100}")
        return values

    def positive(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to 2³¹ - 1.

        Raises:
            ModelLoadError: It is missing without a default, or something else.
        """
        value = self.get(key, int) if default is None else self.get(key, int, default)
        if not 0 < value < 2**31:
            raise ModelLoadError(self.source, f"{key} must be positive, but is {value}")
        return value


class ModelFolder:
    """The files of a model by their path within its folder; they may lie anywhere.

    Args:
        files: Where each of them is.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    @classmethod
    def scan(cls, directory: Path) -> ModelFolder:
        """The files of a directory that Caudal reads; nothing else in it is looked at."""
        found = [*directory.glob("*"), *directory.glob("[0-9]*/*")]
        names = {path.relative_to(directory).as_posix(): path for path in found if path.is_file()}
        return cls({name: path for name, path in sorted(names.items()) if is_part_of_model(name)})

    @property
    def files(self) -> Mapping[str, Path]:
        """Where each file is, by its path within the folder."""
        return self._files

    @property
    def is_complete(self) -> bool:
        """Whether the files are there that every model has."""
        names = self._files.keys()
        return {CONFIG, TOKENIZER} <= names and (WEIGHTS in names or WEIGHTS_INDEX in names)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def path(self, name: str) -> Path:
        """Where a file is.

        Raises:
            ModelLoadError: There is no such file.
        """
        found = self._files.get(name)
        if found is None:
            raise ModelLoadError(name, "the model's folder has no such file")
        return found

    def read_text(self, name: str) -> str:
        """A text file's content.

        Raises:
            ModelLoadError: It is missing, too large, or no UTF-8.
        """
        path = self.path(name)
        try:
            size = path.stat().st_size
            if size > MAX_JSON_BYTES:
                raise ModelLoadError(str(path), f"{size} bytes are too many for {name}")
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise ModelLoadError(str(path), error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            raise ModelLoadError(str(path), f"{name} is not valid UTF-8") from error

    def read_json(self, name: str) -> Any:
        """A JSON file's content.

        Raises:
            ModelLoadError: It is missing, too large, or no JSON.
        """
        text = self.read_text(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelLoadError(str(self.path(name)), f"not valid JSON: {error}") from error

    def read_object(self, name: str) -> JsonObject:
        """A JSON file that holds one object.

        Raises:
            ModelLoadError: See `read_json`; or it holds something else.
        """
        content = self.read_json(name)
        if not isinstance(content, dict):
            raise ModelLoadError(str(self.path(name)), "expected a JSON object")
        return JsonObject(str(self.path(name)), content)
