"""Which codes of faults a configuration may name, and what a mistyped one was meant to be.

NVIDIA numbers XIDs one after the other, some ten to twenty a year (the last in the driver's nverror.h: 121 in 2021, 153
in 2024), and a driver may be newer than the catalogue. So a number that the catalogue does not list may be one, up to
255; what is above that is mistyped. (DP_DISABLE_HEALTHCHECKS takes any number.)
"""

from collections.abc import Iterator

from gpuplane.core.faults.catalogue import CATALOGUE
from gpuplane.core.faults.overrides import xid_number
from gpuplane.core.strict import closest_match

MAX_XID = 255


def is_possible_code(code: str) -> bool:
    """Whether there is such a fault, or may be one: of the catalogue, or an XID that it does not list yet."""
    number = xid_number(code)
    return code in CATALOGUE or (number is not None and number <= MAX_XID)


def closest_code(code: str) -> str:
    """The fault that was probably meant, or ""."""
    bare = code.lower().removeprefix("xid").lstrip("-_ 0")
    if not bare.isdecimal():
        return closest_match(code, CATALOGUE)
    if code != f"xid-{bare}" and is_possible_code(f"xid-{bare}"):
        return f"xid-{bare}"
    listed = (f"xid-{each}" for each in _typing_corrections(bare))
    return next((each for each in listed if each in CATALOGUE), "")


def _typing_corrections(digits: str) -> Iterator[str]:
    """What was typed, if two neighbours were exchanged or one digit was typed too much."""
    for i in range(len(digits) - 1):
        yield digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]
    for i in range(len(digits)):
        yield digits[:i] + digits[i + 1 :]
