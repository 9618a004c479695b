"""What a request's API calls the fields that errors blame."""

from __future__ import annotations

from starlette.types import Scope

from caudal.service.naming import OUR_NAMES, FieldNames

_NAMES = "caudal.field_names"


def set_field_names(scope: Scope, names: FieldNames) -> None:
    """Name the fields of a request so from here on."""
    scope[_NAMES] = names


def field_names(scope: Scope) -> FieldNames:
    """What a request's fields are called."""
    names: FieldNames = scope.get(_NAMES, OUR_NAMES)
    return names
