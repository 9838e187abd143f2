"""The table of NVIDIA's immediate actions on docs/faults.md, against NVIDIA's catalogue and against ours."""

import re
from pathlib import Path

import pytest

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.model.health import CatalogueEntry

PAGE = (Path(__file__).parents[2] / "docs/faults.md").read_text()

NVIDIA = {
    "RESTART_APP": "8, 11, 13, 25, 31, 32, 39 to 41, 60, 68 to 72, 75 to 77, 80, 82 to 86, 88, 89, 94, 96 to 105, "
    "126 to 135, 139",
    "IGNORE": "14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106 to 108, 121, 137, 141, 152, 153, 157, 160, 161",
    "RESET_GPU": "46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158",
    "RESTART_BM": "79",
    "RESTART_VM": "151",
    "CHECK_MECHANICALS": "54",
    "WORKFLOW_XID_45": "45",
    "WORKFLOW_XID_48": "48",
    "WORKFLOW_NVLINK_ERR": "74",
    "WORKFLOW_NVLINK5_ERR": "144 to 150",
    "XID_154": "154",
    "UPDATE_SWFW": "78",
    "CHECK_UVM": "159",
    "CONTACT_SUPPORT": "1 to 7, 9, 10, 12, 15 to 24, 26 to 30, 33 to 36, 42, 47, 49 to 53, 55 to 59, 61, 65, 73, 81, "
    "87, 90, 91, 111 to 118, 122 to 125, 138, 142",
    "none": "162 to 172",
}
"""Immediate action → XIDs (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, "Xids", 1 to 172)."""


def numbers(text: str) -> set[int]:
    """The numbers of "8, 39 to 41"."""
    found = re.findall(r"(\d+)(?: to (\d+))?", text)
    return {number for first, last in found for number in range(int(first), int(last or first) + 1)}


def rows(after: str) -> list[list[str]]:
    """The cells of the table after a line, without its head."""
    table = PAGE.split(after)[1].split("\n\n")[1]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


OURS = {number for code in CATALOGUE if (number := xid_number(code)) is not None}
ACTIONS = {number: action for action, text in NVIDIA.items() for number in numbers(text)}


def is_as_nvidia_says(entry: CatalogueEntry, action: str) -> bool:
    """Whether a fault ends with the action, and leaves no GPU given out that needs it."""
    match action:
        case "RESTART_APP":
            return entry.clear_when == "process-ended"
        case "IGNORE" | "none" | "XID_154" | "WORKFLOW_XID_45":
            return entry.severity == "note" or entry.clear_when == "process-ended"
        case "RESTART_BM" | "RESTART_VM" | "CHECK_MECHANICALS":
            return (entry.severity, entry.clear_when) == ("unhealthy", "node-rebooted")
    return (entry.severity, entry.clear_when) == ("unhealthy", "gpu-reset")


def test_every_xid_of_nvidias_catalogue_is_there_once() -> None:
    assert sorted(ACTIONS) == list(range(1, 173))
    assert sum(len(numbers(text)) for text in NVIDIA.values()) == 172


def test_the_page_shows_the_action_of_each_xid_with_a_row() -> None:
    shown = {action: numbers(xids) for action, xids, _ in rows("nobody has to do anything about the GPU.")}

    assert shown == {action: found for action, text in NVIDIA.items() if (found := numbers(text) & OURS)}


@pytest.mark.parametrize("number", sorted(OURS))
def test_a_fault_that_ends_otherwise_is_explained(number: int) -> None:
    """And no other, but 74: its row explains what of NVIDIA's action is left out."""
    explained = {int(cells[0]): cells[1] for cells in rows("Where the two differ, and why:") if cells[0] != "74"}
    entry, action = CATALOGUE[f"xid-{number}"], ACTIONS[number]

    assert explained.get(number) == (None if is_as_nvidia_says(entry, action) else action)


def test_an_xid_without_a_row_may_wait_for_a_reset() -> None:
    """No GPU of the catalogue has 14, 152 and 153; 78 is one of a host of vGPUs; 159 needs a reset where memory is
    managed; 166 to 172 have no action, and are errors of memory, of PCIe and of encrypted links."""
    without = {number for number, action in ACTIONS.items() if number not in OURS and action != "CONTACT_SUPPORT"}

    assert without == {14, 78, 152, 153, 159, *range(166, 173)}
