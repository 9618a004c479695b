"""Bodies of requests that ask something of a model."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from caudal.fleet.durations import keep_alive_seconds
from caudal.reading.fields import RequestObject
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import AdapterInfo
from caudal.service.naming import OUR_NAMES, FieldNames
from caudal.service.service import Service

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


KeepAlive = Annotated[
    str | int | float,
    AfterValidator(keep_alive_seconds),
]
"""Seconds, written in any way; infinite for ever."""


class ModelRequestBody(RequestObject):
    """A body that names a model. Each API says here what it calls things, and who asks."""

    model: str | None = Field(None, description="Default: the model that is served.")
    keep_alive: KeepAlive | None = Field(
        None,
        description="How long the model stays loaded after this request, and after later ones "
        "until one says otherwise: `5m`, seconds, 0 for not at all, -1 for ever. Ollama's.",
    )

    def takes_any_model(self) -> bool:
        """Whether whatever is served is meant, where there is no model of the name given."""
        return False

    def streams(self) -> bool:
        """Whether it asks for a stream of events."""
        return bool(getattr(self, "stream", False))

    def adapter(self, model: Service) -> AdapterInfo | None:
        """The adapter that the model is to answer with, where a field besides `model` says so.

        Args:
            model: That which `model` names.

        Raises:
            ParameterError: There is no such adapter.
        """
        return None

    def context(self) -> RequestContext:
        """What travels with the work."""
        return NO_CONTEXT

    def field_names(self) -> FieldNames:
        """What this API calls the fields that errors blame."""
        return OUR_NAMES


class WorkRequestBody(ModelRequestBody):
    """A body that asks for work, which is given up where it takes too long."""

    timeout: Seconds | None = Field(
        None, description="Seconds from arrival after which an answer that isn't complete is a 504."
    )

    def context(self) -> RequestContext:
        """How long it may take."""
        return RequestContext(timeout=self.timeout)


class GenerationRequestBody(WorkRequestBody):
    """A body that asks for text."""

    first_token_timeout: Seconds | None = Field(
        None, description="Seconds from arrival after which an answer that hasn't begun is a 504."
    )

    def context(self) -> RequestContext:
        """How long it may take."""
        return RequestContext(timeout=self.timeout, first_token_timeout=self.first_token_timeout)
