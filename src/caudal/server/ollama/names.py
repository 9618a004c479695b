"""Names of models as Ollama's API takes and shows them."""

from __future__ import annotations

from pydantic import Field
from starlette.exceptions import HTTPException

from caudal.errors import ModelNameError, ParameterError
from caudal.reading.fields import RequestObject
from caudal.service.models import ModelStatus
from caudal.store import StoredModel
from caudal.store.names import FileReference, RegistryName, parse_model_name

INVALID = "invalid model name"


class NamedModel(RequestObject):
    """Body of what is about one model."""

    model: str | None = None
    name: str | None = Field(None, description="The older name of `model`.")

    @property
    def wanted(self) -> str:
        """The name.

        Raises:
            ParameterError: There is none.
        """
        name = self.model or self.name
        if not name:
            raise ParameterError("model", "model is required")
        return name


def checked_name(text: str, message: str = INVALID) -> str:
    """A name that a client gave, in a form that is never a file's of this machine.

    Raises:
        HTTPException: It is a path, or no name at all.
    """
    try:
        reference = parse_model_name(text)
    except ModelNameError as error:
        raise HTTPException(400, message) from error
    if isinstance(reference, FileReference):
        raise HTTPException(400, message)
    return reference.full if isinstance(reference, RegistryName) else reference.name


def shown_names(status: ModelStatus, stored: StoredModel | None) -> list[str]:
    """What a model is called: as Ollama does, and by the names that somebody gave it here."""
    own, *aliases = status.names
    if stored is not None and stored.ollama_name and own == stored.name:
        own = stored.ollama_name
    return [own, *aliases]
