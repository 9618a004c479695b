"""What is wrong with a request's body."""

from __future__ import annotations

from caudal.errors import CaudalError


class BodyError(CaudalError):
    """A body is no JSON, or not what its route takes.

    Args:
        message: What is wrong.
        param: The field to blame, where it is one's fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)
