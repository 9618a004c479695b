"""What Go's literals stand for."""

from __future__ import annotations

import re

_SIMPLE = {
    "a": b"\a",
    "b": b"\b",
    "f": b"\f",
    "n": b"\n",
    "r": b"\r",
    "t": b"\t",
    "v": b"\v",
    "\\": b"\\",
    "'": b"'",
    '"': b'"',
}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LARGEST = {"signed": 1 << 63, "unsigned": 1 << 64}


def text_of(written: str) -> str:
    """The text of a string with its quotes; bytes that are no UTF-8 become lone surrogates.

    Raises:
        ValueError: It has an escape that Go doesn't know.
    """
    if written[0] == "`":
        return written[1:-1].replace("\r", "")
    return _unescape(written[1:-1], quote='"').decode("utf-8", "surrogateescape")


def rune_of(written: str) -> int:
    """The number of a character with its quotes.

    Raises:
        ValueError: It isn't one character.
    """
    inside = written[1:-1]
    short = re.fullmatch(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3}))", inside)
    if short is not None:  # a byte, which needn't be UTF-8
        value = int(short[1], 16) if short[1] else int(short[2], 8)
        if value > 255:
            raise ValueError("invalid syntax")
        return value
    text = _unescape(inside, quote="'").decode("utf-8", "surrogateescape")
    if len(text) != 1:
        raise ValueError(f"malformed character constant: {written}")
    return ord(text)


def number_of(written: str) -> int | float:
    """The number, a float where it is written as one.

    Raises:
        ValueError: It is none, or too large.
    """
    whole = _integer_of(written)
    is_float = any(letter in written for letter in ".eEpP") and not (
        written[:2] in ("0x", "0X") and not any(letter in written for letter in "pP")
    )
    if whole is not None and not -_LARGEST["signed"] <= whole < _LARGEST["unsigned"]:
        whole = None
        if not is_float:
            raise ValueError(f"integer overflow: {written!r}")
    if whole is not None and not is_float:
        if whole >= _LARGEST["signed"]:
            raise ValueError(f"{written} overflows int")
        return whole
    if whole is not None:
        return float(whole)
    value = _float_of(written) if is_float else None
    if value is None:
        raise ValueError(f"illegal number syntax: {written!r}")
    return value


def _integer_of(written: str) -> int | None:
    digits = written.lstrip("+-")
    if re.fullmatch("0[0-7_]+", digits):
        digits = "0o" + digits[1:]
    try:
        value = int(digits, 0)
    except ValueError:
        return None
    return -value if written[0] == "-" else value


def _float_of(written: str) -> float | None:
    if re.fullmatch(r"[+-]?0[xX][0-9a-fA-F.]+[pP][+-]?[0-9]+", written):
        try:
            return float.fromhex(written)
        except (ValueError, OverflowError):
            return None
    try:
        value = float(written)
    except ValueError:
        return None
    return None if value in (float("inf"), float("-inf")) else value


def _unescape(text: str, *, quote: str) -> bytes:
    other = "'" if quote == '"' else '"'
    parts: list[bytes] = []
    place = 0
    for escape in _ESCAPE.finditer(text):
        parts.append(text[place : escape.start()].encode("utf-8", "surrogatepass"))
        place = escape.end()
        byte, octal, short, long, simple = escape.groups()
        if byte is not None:
            parts.append(bytes((int(byte, 16),)))
        elif octal is not None:
            if int(octal, 8) > 255:
                raise ValueError("invalid syntax")
            parts.append(bytes((int(octal, 8),)))
        elif simple is not None:
            if simple not in _SIMPLE or simple == other:
                raise ValueError("invalid syntax")
            parts.append(_SIMPLE[simple])
        else:
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise ValueError("invalid syntax")
            parts.append(chr(code).encode())
    parts.append(text[place:].encode("utf-8", "surrogatepass"))
    return b"".join(parts)
