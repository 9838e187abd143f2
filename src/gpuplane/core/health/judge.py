"""How one fault is judged here: the catalogue, under what the configuration says otherwise.

NVIDIA's environment variables, in their meaning (k8s-device-plugin 0.20, internal/rm/health.go): comma lists of XIDs,
`all` or `xids` for every one. What DP_ENABLE_HEALTHCHECKS lists counts, the ones that are ignored by default too; else
what DP_DISABLE_HEALTHCHECKS lists does not. Two things are as their documentation says and not as their code does:
`all` disabled with one enabled leaves that one, and 0 is no word for all. Both variables are about XIDs alone: what a
look shows counts whatever they say.
"""

from functools import lru_cache

from gpuplane.core.health.catalogue import CATALOGUE, UNKNOWN, UNLISTED
from gpuplane.model.config import Settings
from gpuplane.model.health import Entry

ALL = ("all", "xids")


def entry(code: str, settings: Settings | None) -> Entry:
    """How a fault is judged; None: by the catalogue alone."""
    return _judged(code, settings or Settings())


def xid(code: str) -> int | None:
    """The number of an XID's code; None for another fault's."""
    number = code.removeprefix("xid-")
    return int(number) if number != code and number.isascii() and number.isdecimal() else None


def listed(text: str) -> tuple[bool, frozenset[int], tuple[str, ...]]:
    """(whether all, the XIDs, what is neither) of a list as DP_*_HEALTHCHECKS hold it."""
    words = [word.strip() for word in text.lower().split(",") if word.strip()]
    numbers = frozenset(int(word) for word in words if word.isascii() and word.isdecimal())
    odd = tuple(word for word in words if not (word.isascii() and word.isdecimal()) and word not in ALL)
    return any(word in ALL for word in words), numbers, odd


@lru_cache(maxsize=1024)
def _plain(code: str, disabled: str, enabled: str) -> Entry:
    number = xid(code)
    if number is None:
        return CATALOGUE.get(code, UNKNOWN)
    plain = CATALOGUE.get(code, UNLISTED)
    every, some, _ = listed(enabled)
    if every or number in some:
        return plain.but(severity="unhealthy") if plain.severity == "note" else plain
    every, some, _ = listed(disabled)
    return plain.but(severity="note") if every or number in some else plain


def _said(code: str, settings: Settings) -> bool:
    """Whether NVIDIA's variables, which stand above the file, say whether an XID counts."""
    number = xid(code)
    if number is None:
        return False
    lists = (listed(settings.health_checks_enabled), listed(settings.health_checks_disabled))
    return any(every or number in some for every, some, _ in lists)


def _judged(code: str, settings: Settings) -> Entry:
    plain = _plain(code, settings.health_checks_disabled, settings.health_checks_enabled)
    ruling = settings.faults.get(code)
    if ruling is None:
        return plain
    said = {field: value for field in ruling.__struct_fields__ if (value := getattr(ruling, field)) is not None}
    if _said(code, settings):
        said.pop("severity", None)
    return plain.but(**said)
