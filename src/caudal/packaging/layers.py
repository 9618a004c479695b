"""The small layers of a model, byte for byte as Ollama writes them, so that they are shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from caudal.store.package import PackagedMessage


def params_layer(parameters: Mapping[str, Any]) -> bytes:
    """The layer of parameters."""
    return _go_json({name: _number(parameters[name]) for name in sorted(parameters)})


def messages_layer(messages: Sequence[PackagedMessage]) -> bytes:
    """The layer of messages."""
    return _go_json([{"role": each.role, "content": each.content} for each in messages])


def _number(value: Any) -> Any:
    """Numbers without a fraction have no point in Go's JSON."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return int(value) if whole else value


_ESCAPED = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""Go's JSON can stand in HTML."""


def _go_json(content: object) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"{text.translate(_ESCAPED)}\n".encode("utf-8", "replace")
