"""Quantities of Kubernetes: two that are written differently may be the same amount (apimachinery, api/resource)."""

import re
from decimal import Decimal

QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))([eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE]?)"
)

_DECIMAL_SUFFIXES = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
FACTOR_BY_SUFFIX = {
    **{suffix: Decimal(1000) ** (n - 3) for n, suffix in enumerate(_DECIMAL_SUFFIXES)},
    **{f"{suffix}i": Decimal(1024) ** (n + 1) for n, suffix in enumerate("KMGTPE")},
}


def parse_quantity(text: str) -> Decimal | None:
    """The amount that a quantity means; None where it is none. What is too long for an amount is none."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, suffix = found.groups()
    factor = FACTOR_BY_SUFFIX.get(suffix)
    return Decimal(f"{number}{suffix}") if factor is None else Decimal(number) * factor


def is_same_quantity(one: object, other: object) -> bool:
    """Whether two quantities are the same amount."""
    if one == other:
        return True
    amounts = [parse_quantity(each) for each in (one, other) if isinstance(each, str)]
    return len(amounts) == 2 and amounts[0] is not None and amounts[0] == amounts[1]
