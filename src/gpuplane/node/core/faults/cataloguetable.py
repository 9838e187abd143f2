"""The fault catalogue as a table for people."""

from gpuplane.node.core.commands import advise
from gpuplane.node.core.kinds.nvidia.faults import UNKNOWN_FAULT, UNLISTED_XID
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.model.health import CatalogueEntry

TABLE_HEAD = """\
| fault | seen | scope | severity | cleared when | grace period | what to do |
|---|---|---|---|---|---|---|
"""

FALLBACK_ENTRIES = (("xid-N", UNLISTED_XID), ("any other", UNKNOWN_FAULT))


def catalogue_table() -> str:
    """The table in Markdown: a row for each fault, in the catalogue's order; XIDs that are alike share one."""
    return TABLE_HEAD + "".join(
        f"| {' | '.join(_table_cells(codes, entry))} |\n" for codes, entry in _grouped_codes_with_entry()
    )


def _grouped_codes_with_entry() -> list[tuple[list[str], CatalogueEntry]]:
    """(codes, entry): XIDs that follow each other and are judged alike are together."""
    rows: list[tuple[list[str], CatalogueEntry]] = []
    for code, entry in (*FAULTS.entries.items(), *FALLBACK_ENTRIES):
        if rows and rows[-1][1] == entry and _is_next_xid(rows[-1][0][-1], code):
            rows[-1][0].append(code)
        else:
            rows.append(([code], entry))
    return rows


def _is_next_xid(code: str, other: str) -> bool:
    number = xid_number(code)
    return number is not None and xid_number(other) == number + 1


def _table_cells(codes: list[str], entry: CatalogueEntry) -> list[str]:
    code = f"`{codes[0]}`" if len(codes) == 1 else f"`{codes[0]}` to `{codes[-1]}`"
    clear_after = f" ({entry.clear_after:g} s)" if entry.clear_when == "time-passed" else ""
    grace_period = f"{entry.grace_period:g} s" if entry.grace_period else ""
    return [
        f"{code}: {entry.title}",
        entry.detected_by,
        entry.scope,
        entry.severity,
        entry.clear_when + clear_after,
        grace_period,
        f"{advise(entry.advice, entry.commands)}".replace("|", "\\|"),
    ]
