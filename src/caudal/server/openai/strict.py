"""JSON objects that take nothing silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class StrictModel(BaseModel):
    """A JSON object with a fixed set of fields and no conversions between types.

    Attributes:
        unsupported: Fields that are refused, with the values that ask for nothing and pass.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    unsupported: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls.unsupported.keys() & data.keys():
            value = data[name]
            if value is not None and value not in cls.unsupported[name]:
                raise UnsupportedFieldError(name)
        return {name: value for name, value in data.items() if name not in cls.unsupported}


class UnsupportedFieldError(ValueError):
    """A known field asks for something that Caudal does not offer."""

    def __init__(self, field: str) -> None:
        self.field = field
        super().__init__(f"{field} is not supported by this server.")
