"""What became of a line, and how the APIs write that down."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from caudal.batches.lines import Line
from caudal.batches.usage import Usage, usage_of

Why = Literal["expired", "cancelled"]
"""Why a line has no answer."""

TIMED_OUT = 504

_WHY = {
    "expired": "This request could not be executed before the completion window expired.",
    "cancelled": "This request was not executed because the batch was cancelled.",
}


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """A route's answer.

    Attributes:
        status: HTTP's.
        request_id: What the request was called.
        body: JSON.
        retry_after: Seconds after which it may be answered otherwise; None: never, as far as is
            known.
        is_busy: It has no place now, which is no fault of the line's.
    """

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None
    is_busy: bool = False


class Answer(Protocol):
    """Answers lines."""

    async def __call__(self, line: Line, tenant: str | None, gone: asyncio.Event) -> LineAnswer:
        """Answer a line.

        Args:
            line: What it asks.
            tenant: Who pays.
            gone: Set once nobody waits for the answer any more; then it ends, with whatever.
        """


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is written down of a line.

    Attributes:
        failed: Whether it has no answer that counts.
        usage: Tokens that it took.
        text: A line of JSON, without its end.
    """

    failed: bool
    usage: Usage
    text: bytes


class OutputForm(Protocol):
    """How an API writes down what became of lines."""

    @property
    def errors_apart(self) -> bool:
        """Whether lines that failed have a file of their own."""

    def answered(self, line: Line, answer: LineAnswer) -> Outcome:
        """Of a line with an answer."""

    def unanswered(self, line: Line, why: Why) -> bytes:
        """Of a line that was not answered in time."""


class OpenAIOutput:
    """`{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}`."""

    errors_apart = True

    def answered(self, line: Line, answer: LineAnswer) -> Outcome:
        """See `OutputForm`."""
        body = _body(answer)
        failed = answer.status >= 300
        if answer.status == TIMED_OUT:
            message = body["error"]["message"] if _is_error(body) else "The request timed out."
            return Outcome(True, Usage(), self._text(line, None, ("request_timeout", message)))
        response = {
            "status_code": answer.status,
            "request_id": answer.request_id,
            "body": body,
        }
        usage = Usage() if failed else usage_of(body)
        return Outcome(failed, usage, self._text(line, response, None))

    def unanswered(self, line: Line, why: Why) -> bytes:
        """See `OutputForm`."""
        return self._text(line, None, (f"batch_{why}", _WHY[why]))

    def _text(
        self, line: Line, response: dict[str, Any] | None, error: tuple[str, str] | None
    ) -> bytes:
        said = None if error is None else {"code": error[0], "message": error[1]}
        return _encoded(
            {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": line.custom_id,
                "response": response,
                "error": said,
            }
        )


class AnthropicOutput:
    """`{"custom_id", "result": {"type", …}}`."""

    errors_apart = False

    def answered(self, line: Line, answer: LineAnswer) -> Outcome:
        """See `OutputForm`."""
        body = _body(answer)
        failed = answer.status >= 300
        result = (
            {"type": "errored", "error": body} if failed else {"type": "succeeded", "message": body}
        )
        usage = Usage() if failed else usage_of(body)
        return Outcome(failed, usage, _encoded({"custom_id": line.custom_id, "result": result}))

    def unanswered(self, line: Line, why: Why) -> bytes:
        """See `OutputForm`."""
        kind = "canceled" if why == "cancelled" else why
        return _encoded({"custom_id": line.custom_id, "result": {"type": kind}})


def _body(answer: LineAnswer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return {"error": {"message": answer.body.decode(errors="replace")[:1000]}}


def _is_error(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("error"), dict)


def _encoded(value: Any) -> bytes:
    """One line; half a surrogate pair, which UTF-8 has not, is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
