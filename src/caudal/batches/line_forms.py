"""The forms in which lines are written: OpenAI's, and plain ones for whoever has no server."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from caudal.batches.lines import MAX_CUSTOM_ID, Line, LineError

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
)
"""Routes that answer lines."""

FindExcess = Callable[[bytes], str | None]
"""Says what there is too much of in a JSON text, before it is parsed."""

_WITHOUT_WAITING = {
    "stream": "A line's answer is one object: stream must be false.",
    "background": "A batch waits for its answers: background must be false.",
}


@dataclass(frozen=True, slots=True)
class OpenAILines:
    """Lines as OpenAI's Batch API has them: `{"custom_id", "method", "url", "body"}`.

    Attributes:
        endpoints: Routes that they may be for.
        find_excess: Refuses what would cost too much to parse.
    """

    endpoints: Collection[str]
    find_excess: FindExcess

    def __call__(self, data: bytes, number: int) -> Line:
        """See `ReadLine`."""
        return self.of(parsed(data, self.find_excess))

    def of(self, line: dict[str, Any]) -> Line:
        """Read a line that has been parsed; raises `LineError`."""
        for name in ("custom_id", "method", "url", "body"):
            if line.get(name) is None:
                raise LineError(
                    "missing_required_parameter", f"Missing required parameter: '{name}'.", name
                )
        custom_id = checked_id(line["custom_id"])
        if line["method"] != "POST":
            raise LineError("invalid_method", "method must be POST.", "method")
        url = line["url"]
        if url not in self.endpoints:
            raise LineError(
                "invalid_url",
                f"The url {url!s:.100} is not the endpoint of this batch: it must be "
                f"{' or '.join(self.endpoints)}.",
                "url",
            )
        return Line(custom_id, url, checked_body(line["body"]))


@dataclass(frozen=True, slots=True)
class AnyLines:
    """OpenAI's lines, for any endpoint; or a request's body alone, with `prompt`, `messages` or
    `input`, whose name is its `custom_id` or `id`, or its number.

    Attributes:
        find_excess: Refuses what would cost too much to parse.
        model: Answers all lines, whatever they name; None: the one that they name.
    """

    find_excess: FindExcess
    model: str | None = None

    def __call__(self, data: bytes, number: int) -> Line:
        """See `ReadLine`."""
        line = parsed(data, self.find_excess)
        if "url" in line or "method" in line or "body" in line:
            read = OpenAILines(ENDPOINTS, self.find_excess).of(line)
        else:
            read = self._plain(dict(line), number)
        if self.model is not None:
            read.body["model"] = self.model
        elif not isinstance(read.body.get("model"), str):
            raise LineError("missing_required_parameter", "This line names no model.", "body.model")
        return read

    def _plain(self, line: dict[str, Any], number: int) -> Line:
        custom_id = line.pop("custom_id", None)
        other = line.pop("id", None)
        custom_id = number if custom_id is None and other is None else custom_id or other
        name = checked_id(custom_id if isinstance(custom_id, str) else str(custom_id))
        for field, url in (
            ("messages", "/v1/chat/completions"),
            ("prompt", "/v1/completions"),
            ("input", "/v1/embeddings"),
        ):
            if field in line:
                return Line(name, url, checked_body(line))
        raise LineError(
            "invalid_request",
            "A line is one of OpenAI's Batch API (custom_id, method, url, body), or has messages, "
            "prompt or input.",
        )


def parsed(data: bytes, find_excess: FindExcess) -> dict[str, Any]:
    """A line's object; raises `LineError`."""
    if (excess := find_excess(data)) is not None:
        raise LineError("invalid_json_line", excess)
    try:
        line = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = (
            f": {error.msg} (at {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        )
        raise LineError("invalid_json_line", f"This line is no valid JSON{reason}.") from error
    if not isinstance(line, dict):
        raise LineError("invalid_json_line", "This line is no JSON object.")
    return line


def checked_id(custom_id: Any) -> str:
    """A line's name; raises `LineError`."""
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise LineError(
            "invalid_custom_id",
            f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters.",
            "custom_id",
        )
    return custom_id


def checked_body(body: Any) -> dict[str, Any]:
    """What a route is to be sent; raises `LineError`."""
    if not isinstance(body, dict):
        raise LineError("invalid_request", "body must be an object.", "body")
    for name, message in _WITHOUT_WAITING.items():
        if body.get(name):
            raise LineError("invalid_request", message, f"body.{name}")
    return body
