"""JSON on its way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


json_text: Callable[[Any], str] = _ENCODER.encode
"""Compact JSON. May have half a surrogate pair in it, which JSON can carry in."""


def encode_json_text(text: str) -> bytes:
    """What `json_text` wrote, in UTF-8; escaped where it has half a pair, which UTF-8 has not."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def encode_json(data: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return encode_json_text(json_text(data))


class JSONReply(Response):
    """A response with a JSON body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the body."""
        return encode_json(content)
