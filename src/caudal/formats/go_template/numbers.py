"""Floats as Go's strconv writes them."""

from __future__ import annotations


def shortest_digits(value: float) -> tuple[str, str, int]:
    """Sign, digits and the exponent of the first digit, by the fewest digits that give the value.

    The value is finite.
    """
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    place = int(exponent or 0) + len(whole) - 1
    if whole == "0":
        place = int(exponent or 0) - (len(fraction) - len(fraction.lstrip("0"))) - 1
    digits = digits.rstrip("0")
    sign = "-" if str(value).startswith("-") else ""
    return (sign, digits, place) if digits else (sign, "0", 0)


def general(value: float, *, upper: bool = False) -> str:
    """A float as `%v` prints it: `%g` with the fewest digits."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = shortest_digits(value)
    if exponent < -4 or exponent >= 6:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        letter = "E" if upper else "e"
        return f"{sign}{digits[0]}{rest}{letter}{'-' if exponent < 0 else '+'}{abs(exponent):02}"
    return plain(value)


def plain(value: float) -> str:
    """A float without an exponent, with the fewest digits, and zeros where those don't reach."""
    sign, digits, exponent = shortest_digits(value)
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
