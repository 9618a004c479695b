"""`encrypted_content`: reasoning in a form that clients pass back without reading it.

It holds the text, compressed, and a signature by which the server knows its own work again, after a
restart too. It is no secret: the same text stands beside it. What was changed on its way, or comes
from another server, is recognised and not read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib

MAX_TEXT_BYTES = 4 * 2**20
"""Longest reasoning that is read back: a small body could hold the beginning of a huge one."""

_VERSION = b"caudal1:"
_SIGNATURE_BYTES = 16


class ReasoningSeal:
    """Seals reasoning, and opens what it has sealed.

    Args:
        secret: What only servers know that are to read each other's; may be empty.
    """

    def __init__(self, secret: str = "") -> None:
        self._key = hashlib.sha256(b"caudal reasoning\0" + secret.encode()).digest()

    def close(self, text: str) -> str:
        """The text, sealed."""
        packed = zlib.compress(text.encode(errors="replace"))
        return base64.urlsafe_b64encode(_VERSION + self._sign(packed) + packed).decode()

    def open(self, sealed: str) -> str | None:
        """The text of what `close` returned; None of anything else."""
        try:
            data = base64.b64decode(sealed, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if not data.startswith(_VERSION):
            return None
        data = data.removeprefix(_VERSION)
        signature, packed = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(packed)):
            return None
        reader = zlib.decompressobj()
        try:
            text = reader.decompress(packed, MAX_TEXT_BYTES)
            return text.decode() if reader.eof else None
        except (zlib.error, UnicodeDecodeError):
            return None

    def _sign(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")[:_SIGNATURE_BYTES]
