"""What a registry asks for when it says 401 (RFC 9110, distribution's token specification)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SCHEME = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9_-]*)(?:\s+|$)(?!\s*=)")
_PARAMETER = re.compile(r'\s*,?\s*([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to say who one is.

    Attributes:
        scheme: `basic`, `bearer` or another one, in lower case.
        parameters: Its parameters, names in lower case.
    """

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Sequence[str]) -> Sequence[Challenge]:
    """The challenges of all `WWW-Authenticate` headers; what isn't well-formed ends a header."""
    found = []
    for text in headers:
        at = 0
        while scheme := _SCHEME.match(text, at):
            at = scheme.end()
            parameters = {}
            while parameter := _PARAMETER.match(text, at):
                at = parameter.end()
                quoted, plain = parameter[2], parameter[3]
                value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                parameters[parameter[1].lower()] = value
            found.append(Challenge(scheme[1].lower(), parameters))
    return found
