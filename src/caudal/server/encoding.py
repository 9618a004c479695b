"""JSON on its way out."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response


def encode_json(data: Any) -> bytes:
    """Compact JSON in UTF-8. Half a surrogate pair, which JSON can carry in, goes out escaped."""
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":")).encode()


class JSONReply(Response):
    """A response with a JSON body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the body."""
        return encode_json(content)
