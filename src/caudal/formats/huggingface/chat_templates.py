"""The chat templates of a folder, under GGUF's keys."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.errors import ModelLoadError
from caudal.formats.model_folder import (
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_JSON,
    TOKENIZER_CONFIG,
    ModelFolder,
)

_KEY = "tokenizer.chat_template"
_DEFAULT = "default"


def chat_template_keys(folder: ModelFolder) -> Mapping[str, str]:
    """`tokenizer.chat_template`, and `tokenizer.chat_template.NAME` of those that have names.

    A file of its own goes before what the tokenizer's configuration has.

    Raises:
        ModelLoadError: A file is damaged, or a template isn't text.
    """
    if CHAT_TEMPLATE in folder:
        return {_KEY: folder.read_text(CHAT_TEMPLATE)}
    for name in (CHAT_TEMPLATE_JSON, TOKENIZER_CONFIG):
        if name not in folder:
            continue
        settings = folder.read_object(name)
        templates = settings.content.get("chat_template")
        if templates is None:
            continue
        if isinstance(templates, str):
            return {_KEY: templates}
        if not isinstance(templates, list):
            raise ModelLoadError(settings.source, "chat_template must be a text or a list")
        keys = {}
        for each in templates:
            named = each if isinstance(each, dict) else {}
            kind, source = named.get("name"), named.get("template")
            if not isinstance(kind, str) or not isinstance(source, str):
                raise ModelLoadError(
                    settings.source, "chat_template has an entry without name or template"
                )
            keys[_KEY if kind == _DEFAULT else f"{_KEY}.{kind}"] = source
        return keys
    return {}
