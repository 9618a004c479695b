"""`GET /v1/models` as Anthropic's API has it, for clients that name a version of that API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from caudal.errors import ParameterError
from caudal.service.models import ModelStatus

_DEFAULT_LIMIT = 20
_MAX_LIMIT = 1000


def model_page(models: Sequence[ModelStatus], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the names that requests may use.

    Args:
        models: Those that there are.
        query: `limit`, and `after_id` or `before_id`: the names next to it.

    Raises:
        ParameterError: One of them makes no sense.
    """
    limit = _limit(query.get("limit"))
    by_name = {name: model for model in models for name in model.names}
    names = list(by_name)
    begin, end = 0, len(names)
    if "after_id" in query:
        begin = _place(names, "after_id", query["after_id"]) + 1
    if "before_id" in query:
        end = _place(names, "before_id", query["before_id"])
    found = names[begin:end]
    # The page next to the name that was given: before it, that is the last one.
    page = found[-limit:] if "before_id" in query and "after_id" not in query else found[:limit]
    return {
        "data": [model_info(by_name[name], name) for name in page],
        "has_more": len(found) > len(page),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def model_info(model: ModelStatus, name: str) -> dict[str, Any]:
    """One model."""
    service = model.service
    created = datetime.fromtimestamp(
        model.created if service is None else service.info.created, UTC
    )
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.max_model_len,
        "max_tokens": model.max_model_len,
    }


def _limit(given: str | None) -> int:
    if given is None:
        return _DEFAULT_LIMIT
    if given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= _MAX_LIMIT:
        return int(given[:9])
    raise ParameterError("limit", f"limit must be 1 to {_MAX_LIMIT}, but is {given!r:.80}.")


def _place(names: Sequence[str], field: str, name: str) -> int:
    if name not in names:
        raise ParameterError(field, f"{field}: there is no model {name!r:.80}.")
    return names.index(name)
