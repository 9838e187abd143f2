"""Which fault codes a configuration may name, and which code a mistyped one probably means.

NVIDIA adds ten to twenty XIDs a year (the last one in the driver's nverror.h: 121 in 2021, 153 in 2024), and a driver
may be newer than the catalogue. So a number up to 255 that the catalogue does not list may be an XID; a higher number
is a typing mistake. (DP_DISABLE_HEALTHCHECKS accepts any number.)
"""

from collections.abc import Iterator

from gpuplane.base.strict import closest_match
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.core.kinds.table import FAULTS

MAX_XID = 255


def is_valid_fault_code(code: str) -> bool:
    """Whether the code is in the catalogue, or may be an XID that the catalogue does not list yet."""
    number = xid_number(code)
    return code in FAULTS.entries or (number is not None and number <= MAX_XID and code == f"xid-{number}")


def closest_fault_code(code: str) -> str:
    """The fault code that a wrong one probably means, or ""."""
    bare = code.lower().removeprefix("xid").lstrip("-_ 0")
    if not bare.isdecimal():
        return closest_match(code, FAULTS.entries)
    if code != f"xid-{bare}" and is_valid_fault_code(f"xid-{bare}"):
        return f"xid-{bare}"
    listed = (f"xid-{each}" for each in _numbers_one_typo_away(bare))
    return next((each for each in listed if each in FAULTS.entries), "")


def _numbers_one_typo_away(digits: str) -> Iterator[str]:
    """The numbers that differ by a common typing mistake: two neighbouring digits exchanged, or one digit too many."""
    for i in range(len(digits) - 1):
        yield digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]
    for i in range(len(digits)):
        yield digits[:i] + digits[i + 1 :]
