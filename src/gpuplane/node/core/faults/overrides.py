"""How one fault is judged: the catalogue, and the overrides of the configuration.

NVIDIA's environment variables mean the same here (k8s-device-plugin 0.20, internal/rm/health.go): lists of XIDs with
commas, `all` or `xids` for every one. XIDs in DP_ENABLE_HEALTHCHECKS count, also those that are ignored by default. Of
the others, those in DP_DISABLE_HEALTHCHECKS do not. Two things follow their documentation and not their code: with
`all` disabled an XID that is enabled counts, and 0 does not mean all. Both variables are about XIDs alone: faults that
observations show always count. The variables win over the file, as the environment always does.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from gpuplane.node.core.kinds.nvidia.faults import UNKNOWN_FAULT, UNLISTED_XID
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.model.config import Settings
from gpuplane.node.model.health import CatalogueEntry, FaultCatalogue, Severity

HEALTH_CHECK_VARIABLES: dict[str, Severity] = {"health_checks_enabled": "unhealthy", "health_checks_disabled": "note"}
"""Field of Settings that holds a variable → the severity of the XIDs in it; the first variable with an XID counts."""

WORDS_FOR_ALL_XIDS = ("all", "xids")
XID_NUMBER_PATTERN = re.compile(r"0*([1-9][0-9]{0,4})")


class HealthCheckList(NamedTuple):
    """What DP_*_HEALTHCHECKS lists: whether all XIDs, which XIDs, and the words that are neither."""

    all_xids: bool
    xids: frozenset[int]
    invalid_words: tuple[str, ...]


@lru_cache(maxsize=8)
def parse_health_check_list(text: str) -> HealthCheckList:
    """Parses a list. A word that means nothing is ignored, as NVIDIA's plugin does."""
    words = [word.strip() for word in text.lower().split(",") if word.strip()]
    numbers = {word: int(found[1]) for word in words if (found := XID_NUMBER_PATTERN.fullmatch(word))}
    invalid = tuple(word for word in words if word not in numbers and word not in WORDS_FOR_ALL_XIDS)
    return HealthCheckList(any(word in WORDS_FOR_ALL_XIDS for word in words), frozenset(numbers.values()), invalid)


def overriding_variable(code: str, settings: Settings) -> str:
    """The variable that decides about a fault, by its field of Settings; "" where neither does."""
    number = xid_number(code)
    if number is not None:
        for field in HEALTH_CHECK_VARIABLES:
            listed = parse_health_check_list(getattr(settings, field))
            if listed.all_xids or number in listed.xids:
                return field
    return ""


def effective_entry(code: str, settings: Settings | None, catalogue: FaultCatalogue = FAULTS) -> CatalogueEntry:
    """How a fault is judged: the catalogue's entry, with the overrides of the configuration; None: without any."""
    default = UNKNOWN_FAULT if xid_number(code) is None else UNLISTED_XID
    entry = catalogue.entries.get(code, default)
    if settings is None:
        return entry
    override, variable = settings.faults.get(code), overriding_variable(code, settings)
    if override is not None:
        fields = override.__struct_fields__
        entry = entry.but(**{field: value for field in fields if (value := getattr(override, field)) is not None})
        if override.advice is not None:
            entry = entry.but(commands=())
    return entry.but(severity=HEALTH_CHECK_VARIABLES[variable]) if variable else entry
