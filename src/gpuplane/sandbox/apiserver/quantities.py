"""Quantities: their values, and the spelling in which an API server gives them back.

Sources: k8s.io/apimachinery, pkg/api/resource/quantity.go (ParseQuantity, CanonicalizeBytes), and what a real server
answered. A number without decimals whose suffix fits is given back as it was sent: "+7", "00010" and "12E6" stay.
"""

import re
from fractions import Fraction
from typing import Any, NamedTuple

QUANTITY_PATTERN = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?P<point>\.?)(?P<part>\d*)(?P<suffix>[eEinumkKMGTP]*[-+]?\d*)"
)
EXPONENT_PATTERN = re.compile(r"[eE]([-+]?\d+)")
DECIMAL_EXPONENT_BY_SUFFIX = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY_EXPONENT_BY_SUFFIX = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
SMALLEST_EXPONENT = -9
"""The finest decimal place (a power of ten). What is finer is rounded up."""


class Quantity(NamedTuple):
    """A value, and its spelling."""

    value: Fraction
    text: str


def parse_quantity(sent: Any) -> Quantity:
    """What a client sent, a string or a number. Raises ValueError with the server's words."""
    text = sent.strip() if isinstance(sent, str) else _format_json_number(sent)
    parts = QUANTITY_PATTERN.fullmatch(text)
    if not text or parts is None:
        pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
        raise ValueError(f"quantities must match the regular expression '{pattern}'")
    suffix, exponent = parts["suffix"], EXPONENT_PATTERN.fullmatch(parts["suffix"])
    if suffix not in DECIMAL_EXPONENT_BY_SUFFIX and suffix not in BINARY_EXPONENT_BY_SUFFIX and exponent is None:
        raise ValueError("unable to parse quantity's suffix")
    digits = parts["whole"] + parts["part"]
    if not digits:
        raise ValueError("unable to parse numeric part of quantity")
    mantissa = int(digits) * (-1 if parts["sign"] == "-" else 1)
    if suffix in BINARY_EXPONENT_BY_SUFFIX:
        value = mantissa * Fraction(1024) ** BINARY_EXPONENT_BY_SUFFIX[suffix] / 10 ** len(parts["part"])
        fits = mantissa % 1024 != 0
    else:
        power = int(exponent[1]) if exponent else DECIMAL_EXPONENT_BY_SUFFIX[suffix]
        value = mantissa * Fraction(10) ** (power - len(parts["part"]))
        fits = mantissa % 1000 != 0 and power % 3 == 0 and power >= SMALLEST_EXPONENT
    if not parts["part"] and (fits or text == "0"):
        return Quantity(value, text)
    value = _round_up(value)
    return Quantity(
        value, _format_number(value, binary=suffix in BINARY_EXPONENT_BY_SUFFIX, exponent=exponent is not None)
    )


def _format_json_number(sent: Any) -> str:
    if sent is None:
        return "0"
    return str(sent).lower() if isinstance(sent, bool) else str(sent)


def _round_up(value: Fraction) -> Fraction:
    scaled = value * 10**-SMALLEST_EXPONENT
    away = -(-scaled.numerator // scaled.denominator) if scaled > 0 else scaled.numerator // scaled.denominator
    return Fraction(away, 10**-SMALLEST_EXPONENT)


def _format_number(value: Fraction, *, binary: bool, exponent: bool) -> str:
    if value == 0:
        return "0"
    if binary and abs(value) >= 1024 and value.denominator == 1:
        suffix, power = max(
            (
                (name, power)
                for name, power in {"": 0, **BINARY_EXPONENT_BY_SUFFIX}.items()
                if value.numerator % 1024**power == 0
            ),
            key=lambda each: each[1],
        )
        return f"{value.numerator // 1024**power}{suffix}"
    suffix, power = max(
        (
            (name, power)
            for name, power in DECIMAL_EXPONENT_BY_SUFFIX.items()
            if (value / Fraction(10) ** power).denominator == 1
        ),
        key=lambda each: each[1],
    )
    mantissa = value / Fraction(10) ** power
    return f"{mantissa}e{power}" if exponent and power else f"{mantissa}{suffix}"
