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

from gpuplane.core.faults.catalogue import NVIDIA_FAULTS, FaultCatalogue
from gpuplane.model.config import Settings
from gpuplane.model.health import CatalogueEntry, Severity

HEALTH_CHECK_VARIABLES: dict[str, Severity] = {"health_checks_enabled": "unhealthy", "health_checks_disabled": "note"}
"""The fields of Settings that hold the variables, and what an XID that they list is; the first that lists it counts."""

ALL_XIDS = ("all", "xids")
XID_NUMBER = re.compile(r"0*([1-9][0-9]{0,4})")
XID_CODE = re.compile(r"xid-([1-9][0-9]{0,4})")


class HealthCheckList(NamedTuple):
    """What DP_*_HEALTHCHECKS lists: whether all, which XIDs, and the words that are neither."""

    all_xids: bool
    xids: frozenset[int]
    invalid_words: tuple[str, ...]


@lru_cache(maxsize=8)
def parse_health_check_list(text: str) -> HealthCheckList:
    """What a text lists. A word that means nothing costs itself alone, as it does there."""
    words = [word.strip() for word in text.lower().split(",") if word.strip()]
    numbers = {word: int(found[1]) for word in words if (found := XID_NUMBER.fullmatch(word))}
    odd = tuple(word for word in words if word not in numbers and word not in ALL_XIDS)
    return HealthCheckList(any(word in ALL_XIDS for word in words), frozenset(numbers.values()), odd)


def xid_number(code: str) -> int | None:
    """The number of an XID's code; None for another fault's."""
    found = XID_CODE.fullmatch(code)
    return int(found[1]) if found else None


def deciding_variable(code: str, settings: Settings) -> str:
    """Which of the variables says whether a fault counts, by its field of Settings; "" where neither does."""
    number = xid_number(code)
    if number is not None:
        for field in HEALTH_CHECK_VARIABLES:
            said = parse_health_check_list(getattr(settings, field))
            if said.all_xids or number in said.xids:
                return field
    return ""


def entry_for(code: str, settings: Settings | None, catalogue: FaultCatalogue = NVIDIA_FAULTS) -> CatalogueEntry:
    """How a fault is judged: the catalogue's entry, with the overrides of the configuration; None: without any."""
    default = catalogue.unknown_fault if xid_number(code) is None else catalogue.unlisted_xid
    entry = catalogue.entries.get(code, default)
    if settings is None:
        return entry
    override, variable = settings.faults.get(code), deciding_variable(code, settings)
    if override is not None:
        fields = override.__struct_fields__
        entry = entry.but(**{field: value for field in fields if (value := getattr(override, field)) is not None})
    return entry.but(severity=HEALTH_CHECK_VARIABLES[variable]) if variable else entry
