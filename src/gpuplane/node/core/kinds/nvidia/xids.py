"""Codes of XIDs in the fault catalogue: "xid-79"."""

import re

from gpuplane.node.model.health import NONFATAL

XID_CODE_PATTERN = re.compile(rf"xid-([1-9][0-9]{{0,4}})(?:{NONFATAL})?")


def xid_number(code: str) -> int | None:
    """The number of an XID, by its code, which may say that it is not fatal; None for the code of another fault."""
    found = XID_CODE_PATTERN.fullmatch(code)
    return int(found[1]) if found else None
