"""How one fault is judged here: the catalogue, under what the configuration says otherwise.

NVIDIA's environment variables, in their meaning (k8s-device-plugin 0.20, internal/rm/health.go): comma lists of XIDs,
`all` or `xids` for every one. What DP_ENABLE_HEALTHCHECKS lists counts, the ones that are ignored by default too; else
what DP_DISABLE_HEALTHCHECKS lists does not. Two things are as their documentation says and not as their code does:
`all` disabled with one enabled leaves that one, and 0 is no word for all. Both variables are about XIDs alone: what a
look shows counts whatever they say. They stand above the file, as the environment does in everything.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from gpuplane.core.health.catalogue import CATALOGUE, UNKNOWN, UNLISTED
from gpuplane.model.config import Settings
from gpuplane.model.health import CatalogueEntry, Severity

VARIABLES: dict[str, Severity] = {"health_checks_enabled": "unhealthy", "health_checks_disabled": "note"}
"""The fields of Settings that hold the variables, and what an XID that they list is; the first that lists it counts."""

ALL = ("all", "xids")
NUMBER = re.compile(r"0*([1-9][0-9]{0,4})")
CODE = re.compile(r"xid-([1-9][0-9]{0,4})")


class Listed(NamedTuple):
    """What DP_*_HEALTHCHECKS lists: whether all, which XIDs, and the words that are neither."""

    all: bool
    xids: frozenset[int]
    odd: tuple[str, ...]


@lru_cache(maxsize=8)
def listed(text: str) -> Listed:
    """What a text lists. A word that means nothing costs itself alone, as it does there."""
    words = [word.strip() for word in text.lower().split(",") if word.strip()]
    numbers = {word: int(found[1]) for word in words if (found := NUMBER.fullmatch(word))}
    odd = tuple(word for word in words if word not in numbers and word not in ALL)
    return Listed(any(word in ALL for word in words), frozenset(numbers.values()), odd)


def xid(code: str) -> int | None:
    """The number of an XID's code; None for another fault's."""
    found = CODE.fullmatch(code)
    return int(found[1]) if found else None


def decided(code: str, settings: Settings) -> str:
    """Which of the variables says whether a fault counts, by its field of Settings; "" where neither does."""
    number = xid(code)
    if number is not None:
        for field in VARIABLES:
            said = listed(getattr(settings, field))
            if said.all or number in said.xids:
                return field
    return ""


def entry(code: str, settings: Settings | None) -> CatalogueEntry:
    """How a fault is judged; None: by the catalogue alone."""
    plain = CATALOGUE.get(code) or (UNKNOWN if xid(code) is None else UNLISTED)
    if settings is None:
        return plain
    ruling, by = settings.faults.get(code), decided(code, settings)
    if ruling is not None:
        fields = ruling.__struct_fields__
        plain = plain.but(**{field: said for field in fields if (said := getattr(ruling, field)) is not None})
    return plain.but(severity=VARIABLES[by]) if by else plain
