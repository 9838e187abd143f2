"""Lists of DCGM fields, in dcgm-exporter's format."""

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.telemetry.counters import (
    ADVICE,
    DEFAULT_COUNTERS,
    FIELDS_BY_FORMER_NAME,
    LONGEST_ROW,
    MAX_LINES,
    MOST_WARNINGS,
    SHOWN_FIELDS,
    ParsedCounters,
    parse_counters,
)
from gpuplane.node.model.telemetry import SAMPLED_FIELDS
from tests.node.core.telemetry import dcgmlists

MORE_ROWS = MAX_LINES - 8
LIST = """\
# Format
# DCGM FIELD, Prometheus metric type, help message

# Clocks,,
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy consumption since boot (in mJ).
DCGM_FI_DEV_XID_ERRORS,              gauge,   Value of the last XID error encountered, or so.
DCGM_FI_DRIVER_VERSION,        label, Driver Version
"""


def parse(text: str) -> ParsedCounters:
    """What is read of a list."""
    return parse_counters(text.encode(errors="surrogateescape"), "counters.csv")


def test_a_list_of_theirs_is_read_unchanged() -> None:
    """Comments, blanks, and a help with commas in it."""
    found = parse(LIST)

    assert [(each.name, each.kind) for each in found.counters] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge"),
        ("DCGM_FI_DRIVER_VERSION", "label"),
    ]
    assert f"{found.counters[2].help}" == "Value of the last XID error encountered, or so."
    assert not found.warnings


NOT_SHOWN = {
    "DEFAULT": ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"],
    "DCP_BEFORE": ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"],
    "DEFAULT_BEFORE": [
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    ],
    "OF_1_X": ["dcgm_pcie_tx_throughput", "dcgm_pcie_rx_throughput"],
    "OPTIONAL": [
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_TOTAL",
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_EXP_XID_ERRORS_TOTAL",
        "DCGM_EXP_GPU_HEALTH_STATUS",
        "DCGM_EXP_P2P_STATUS",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
        "DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL",
        "DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL",
    ],
}
"""Rows of the lists that dcgm-exporter ships which this agent cannot serve."""


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_every_list_that_they_ship_is_served(name: str) -> None:
    """Each row with its own name, type and help, but those that this agent cannot serve: a warning for each."""
    text: str = getattr(dcgmlists, name)
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in text.splitlines()]
    found = parse(text)

    assert [[each.name, each.kind, f"{each.help}"] for each in found.counters] == [
        row for row in rows if row[0] not in NOT_SHOWN[name]
    ]
    lines = [number for number, (field, _, _) in enumerate(rows, 1) if field in NOT_SHOWN[name]]
    told = [f"{each}".split(" ") for each in found.warnings if f"{each}".startswith("line ")]
    assert [each[1:3] for each in told] == [
        [f"{line}:", field] for line, field in zip(lines, NOT_SHOWN[name], strict=True)
    ]


def test_a_list_of_theirs_may_list_fields_twice() -> None:
    """Then dcgm-exporter shows their series twice, and Prometheus refuses the page. Here the first row counts."""
    found = parse(dcgmlists.OF_1_X_LATER)

    assert len(found.counters) == 20
    assert [f"{each}".partition(": ")[2] for each in found.warnings] == [
        f"dcgm_fi_prof_pcie_{way}_bytes is listed twice; the first row counts" for way in ("tx", "rx")
    ]


@pytest.mark.parametrize(
    ("row", "kind", "help"),
    [
        ('"DCGM_FI_DEV_GPU_TEMP","gauge","GPU temperature, in ""C"""', "gauge", 'GPU temperature, in "C"'),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "GPU temperature, in C"', "gauge", "GPU temperature, in C"),
        ("DCGM_FI_DEV_GPU_TEMP,gauge,\r", "gauge", ""),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, t", "untyped", "t"),
        ("DCGM_FI_DEV_GPU_TEMP, summary, t", "untyped", "t"),
        ("DCGM_FI_DEV_GPU_TEMP, untyped, t", "untyped", "t"),
        ("DCGM_FI_DEV_GPU_TEMP, label, t", "label", "t"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, \x1b[31m\x00°C", "gauge", "�[31m�°C"),
    ],
)
def test_what_dcgm_exporter_takes_is_taken(row: str, kind: str, help: str) -> None:
    """Quoted cells, and its types. What a terminal would obey is in no help."""
    found = parse(f"\ufeff{LIST}{row}\n")

    assert not found.warnings
    assert (found.counters[-1].name, found.counters[-1].kind) == ("DCGM_FI_DEV_GPU_TEMP", kind)
    assert f"{found.counters[-1].help}" == help


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("DCGM_FI_DEV_SM_CLOK, gauge, x", "did you mean DCGM_FI_DEV_SM_CLOCK?"),
        ("dcgm_gpu_utilisation, gauge, x", "did you mean dcgm_gpu_utilization?"),
        ("DCGM_FI_DEV_GPU_TEMP, Gauge, x", "'Gauge'"),
        ("DCGM_FI_DRIVER_VERSION, gauge, x", "is a text"),
        ("DCGM_FI_DEV_GPU_TEMP", "field, type, help"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "field, type, help"),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, again", "listed twice"),
        ("\x00\x1b[31m, , ", "is not shown"),
        (", , ", "is not shown"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "quotes that never end', "not CSV"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "quotes" and more', "not CSV"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, x\rDCGM_FI_DEV_FB_USED, gauge, x", "not CSV"),
        (f"DCGM_FI_DEV_GPU_TEMP, gauge, {'x' * 1_000_000}", f"the limit is {LONGEST_ROW}"),
        ('"' * 1_000_000, f"the limit is {LONGEST_ROW}"),
        (f"{'x' * 900}, gauge, x", "is not shown"),
        (f"DCGM_FI_DEV_GPU_TEMP, {'x' * 900}, x", "has the type"),
    ],
)
def test_a_row_that_cannot_be_served_is_a_warning_with_its_line(row: str, named: str) -> None:
    """Short and printable, whatever the row is. The others are served, also those behind it."""
    found = parse(f"{LIST}{row}\nDCGM_FI_DEV_FB_FREE, gauge, x\n")

    assert [each.name for each in found.counters[4:]] == ["DCGM_FI_DEV_FB_FREE"]
    [warning] = found.warnings
    assert f"{warning}".startswith("line 9: ")
    assert named in f"{warning}"
    assert warning.isprintable()
    assert len(warning) < 300


def test_what_to_do_is_said_once() -> None:
    """Behind the rows that it is about, and only where a row is not shown at all."""
    fields = ("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_NVLINK_BANDWIDTH_L17")
    found = parse(LIST + "".join(f"{field}, gauge, x\n" for field in (*fields, *fields)) + "DCGM_FI_PROF_SM_ACTIVE,,\n")

    assert [each for each in found.warnings if not f"{each}".startswith("line ")] == [
        ADVICE["DCGM_EXP_"],
        ADVICE["DCGM_FI_DEV_NVLINK_BANDWIDTH_L"],
    ]
    assert len(found.warnings) == 2 * len(fields) + 1 + 2


@pytest.mark.parametrize("row", ["DCGM_FI_DEV_SM_CLOCK, gauge, x", "DCGM_FI_DEV_SM_CLOCX, gauge, x", 'x, "'])
def test_of_many_rows_that_cannot_be_served_some_are_named(row: str) -> None:
    """And the others are counted; no spelling is looked up for these."""
    found = parse(LIST + f"{row}\n" * (MORE_ROWS))

    assert len(found.counters) == 4
    assert len(found.warnings) == MOST_WARNINGS + 1
    assert f"{found.warnings[-1]}".startswith(f"{MORE_ROWS - MOST_WARNINGS} further rows")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no row that can be served"),
        (b"# only a comment\n", "no row that can be served"),
        (b"DCGM_FI_DEV_NONSENSE, gauge, x\n", "line 1: DCGM_FI_DEV_NONSENSE"),
        (LIST.encode() + b"DCGM_FI_DEV_GPU_TEMP, gauge, \xb0C\n", "counters.csv:9: a byte that is not UTF-8"),
        (LIST.encode("utf-16"), "counters.csv:1: a byte that is not UTF-8"),
        (LIST.encode() + b"DCGM_FI_DEV_GPU_TEMP, gauge, x\n" * 100_000, "more than 10000 lines"),
        (b'"\n' * 1_000_000, "more than 10000 lines"),
        (b"\x00" * 1_000_000, "no row that can be served"),
    ],
)
def test_what_is_no_list_at_all_is_an_error(content: bytes, named: str) -> None:
    """The last list then stays."""
    with pytest.raises(InvalidInput) as found:
        parse_counters(content, "counters.csv")

    assert named in str(found.value)
    assert len(str(found.value)) < 300


def test_the_default_list_can_be_served() -> None:
    """Each of its fields is sampled, as what it is shown, or told by events."""
    assert {each.field for each in DEFAULT_COUNTERS} <= set(SHOWN_FIELDS)
    for each in DEFAULT_COUNTERS:
        sampled = SAMPLED_FIELDS.get(each.field)
        assert sampled is None or sampled.kind == each.kind, each.field


def test_each_former_name_is_that_of_another_field() -> None:
    """All but two of these fields are read."""
    assert len(set(FIELDS_BY_FORMER_NAME.values())) == len(FIELDS_BY_FORMER_NAME)
    assert {*FIELDS_BY_FORMER_NAME.values()} - {*SHOWN_FIELDS} == {
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    }
