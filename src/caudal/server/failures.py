"""What an error comes to: HTTP's status, OpenAI's code, the field to blame. Decided here alone."""

from __future__ import annotations

from typing import NamedTuple

from caudal.batches.errors import (
    BatchesElsewhereError,
    BatchStateError,
    NoRoomError,
    UnknownBatchError,
    UnknownFileError,
)
from caudal.errors import (
    AdapterExistsError,
    AdapterNotFoundError,
    CaudalError,
    ContextOverflowError,
    ConversionError,
    EngineDeadError,
    InputTooLongError,
    KeyRevokedError,
    LimitError,
    ModelLoadError,
    ModelNameError,
    ModelNotFoundError,
    ModelTooLargeError,
    ModelUnavailableError,
    OverLimitError,
    ParameterError,
    QueueFullError,
    RequestFailedError,
    RequestTimeoutError,
    StoreError,
    TemplateError,
    TemplateProcessError,
    UnknownAdapterError,
    UnknownModelError,
    UnsupportedTaskError,
    WorkerEndedError,
)
from caudal.server.body_error import BodyError
from caudal.server.openai.unknown import (
    UnknownConversationError,
    UnknownItemError,
    UnknownResponseError,
)

UNAVAILABLE_SECONDS = 1
"""After which it is sensible to ask again for what isn't there now and may be there then."""

NO_ROOM = 507
"""The status of what can't be stored."""


class Failure(NamedTuple):
    """What is said of an error besides its message.

    Attributes:
        status: HTTP's.
        param: The field to blame.
        code: OpenAI's, where it has one.
        limit: The limit that it is about, by the name in `docs/limits.md`.
        retry_after: Seconds after which it is sensible to ask again, where it ever is.
    """

    status: int
    param: str | None = None
    code: str | None = None
    limit: str | None = None
    retry_after: int | None = None


def describe(error: CaudalError) -> Failure:
    """What an error comes to."""
    match error:
        case ContextOverflowError() | InputTooLongError():
            return Failure(400, error.param, "context_length_exceeded", "max_prompt_tokens")
        case OverLimitError():
            return Failure(400, error.param, limit=error.limit)
        case ParameterError() | BodyError():
            return Failure(400, error.param)
        case TemplateError():
            return Failure(400, error.param)
        case ConversionError():
            return Failure(400)
        case UnknownModelError():
            return Failure(404, "model", "model_not_found")
        case UnsupportedTaskError():
            return Failure(400, "model", "unsupported_task")
        case UnknownAdapterError():
            return Failure(404, "model", "model_not_found")
        case AdapterNotFoundError():
            return Failure(404, "lora_path")
        case AdapterExistsError():
            return Failure(400, "lora_name")
        case UnknownResponseError():
            return Failure(404, code="response_not_found")
        case UnknownConversationError():
            return Failure(404, "conversation")
        case UnknownItemError():
            return Failure(404, "input")
        case KeyRevokedError():
            return Failure(401, code="invalid_api_key")
        case UnknownFileError():
            return Failure(404, "id")
        case UnknownBatchError():
            return Failure(404)
        case BatchStateError():
            return Failure(409)
        case NoRoomError():
            return Failure(NO_ROOM, code="insufficient_storage", limit=error.limit)
        case BatchesElsewhereError():
            return Failure(503, code="files_elsewhere")
        case LimitError():
            after = error.retry_after
            return Failure(error.status, None, _limit_code(error), error.limit, after)
        case ModelTooLargeError():
            return Failure(503, "model", "model_too_large")
        case ModelNameError():
            return Failure(400, "model")
        case ModelNotFoundError():
            return Failure(404, "model", "model_not_found")
        case ModelLoadError() | StoreError():
            return Failure(500, "model", "model_load_failed")
        case ModelUnavailableError():
            return Failure(503, "model", "model_unavailable", retry_after=UNAVAILABLE_SECONDS)
        case RequestFailedError():
            return Failure(500)
        case WorkerEndedError():
            return Failure(503, retry_after=error.retry_after)
        case EngineDeadError() | TemplateProcessError():
            return Failure(503, retry_after=UNAVAILABLE_SECONDS)
        case _:
            return Failure(500)


def _limit_code(error: LimitError) -> str | None:
    """OpenAI's word for it, where its API has one; else the limit's name, or what it was before."""
    match error:
        case LimitError(status=413):
            return None
        case QueueFullError():
            return "queue_full"
        case RequestTimeoutError():
            return "timeout"
        case LimitError(status=429):
            return "rate_limit_exceeded"
        case _:
            return error.limit
