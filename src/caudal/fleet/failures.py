"""Why a model can't be had, as clients are told it.

The log says of which file that is; clients needn't know where this machine keeps it.
"""

from __future__ import annotations

from pathlib import PurePath

from caudal.errors import (
    AdapterNotFoundError,
    CaudalError,
    ModelLoadError,
    ModelNotFoundError,
    ParameterError,
    in_words,
)
from caudal.workers.messages import RemoteFailureError


def told_to_clients(model: str, error: Exception) -> CaudalError:
    """What who asks for a model is told of why it couldn't be loaded.

    Args:
        model: Its name.
        error: Why.
    """
    match error:
        case ModelLoadError():
            file = PurePath(error.source).name  # one of several, or an adapter's
            place = "" if file == PurePath(model).name else f"{file}: "
            return ModelLoadError(model, place + error.reason)
        case AdapterNotFoundError():
            return ModelLoadError(model, f"there is no file of its adapter {error.name!r}")
        case ModelNotFoundError():
            return ModelLoadError(model, "its files are not there any more")
        case ParameterError() | RemoteFailureError():  # of the server's options, not a request's
            return ModelLoadError(model, str(error))
        case CaudalError():
            return error
        case _:
            return ModelLoadError(model, in_words(error))
