"""What can't be converted."""

from __future__ import annotations

from caudal.errors import CaudalError


class ConversionError(CaudalError):
    """A model can't be converted, or not to what was asked for; the message says why."""
