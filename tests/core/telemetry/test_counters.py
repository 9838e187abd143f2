"""Lists of DCGM fields, in dcgm-exporter's format."""

import pytest

from gpuplane.core.telemetry.counters import DEFAULT_COUNTERS, SHOWN_FIELDS, parse_counters
from gpuplane.model.telemetry import SAMPLED_FIELDS

DEFAULT_LIST = """\
# Format
# If line starts with a '#' it is considered a comment
# DCGM FIELD, Prometheus metric type, help message

# Clocks
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy consumption since boot (in mJ).
DCGM_FI_DEV_XID_ERRORS,              gauge,   Value of the last XID error encountered, or so.
DCGM_FI_DRIVER_VERSION,        label, Driver Version
"""


def test_a_list_of_theirs_is_read_unchanged() -> None:
    """Comments, blanks, and a help with commas in it."""
    found = parse_counters(DEFAULT_LIST, "counters.csv")

    assert [(each.field, each.kind) for each in found.counters] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge"),
        ("DCGM_FI_DRIVER_VERSION", "label"),
    ]
    assert f"{found.counters[2].help}" == "Value of the last XID error encountered, or so."
    assert not found.problems


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("DCGM_FI_DEV_SM_CLOK, gauge, x", "did you mean DCGM_FI_DEV_SM_CLOCK?"),
        ("DCGM_FI_PROF_SM_CYCLES_ELAPSED, gauge, x", "without DCGM"),
        ("DCGM_EXP_XID_ERRORS_COUNT, counter, x", "gpuplane_fault_events_total"),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x", "'histogram'"),
        ("DCGM_FI_DEV_GPU_TEMP, label, x", "is a number"),
        ("DCGM_FI_DRIVER_VERSION, gauge, x", "is a text"),
        ("DCGM_FI_DEV_GPU_TEMP", "field, type, help"),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, again", "listed twice"),
        ("\x00\xff, , ", "is not shown"),
    ],
)
def test_a_row_that_cannot_be_served_is_named_with_its_line(row: str, named: str) -> None:
    """And the others are served."""
    found = parse_counters(f"{DEFAULT_LIST}{row}\n", "counters.csv")

    assert len(found.counters) == 4
    [problem] = found.problems
    assert f"{problem}".startswith("counters.csv:10: ")
    assert named in f"{problem}"


def test_the_default_list_can_be_served() -> None:
    """Each of its fields is sampled, as what it is shown, or told by events."""
    assert {each.field for each in DEFAULT_COUNTERS} <= set(SHOWN_FIELDS)
    for each in DEFAULT_COUNTERS:
        sampled = SAMPLED_FIELDS.get(each.field)
        assert sampled is None or sampled.kind == each.kind, each.field
