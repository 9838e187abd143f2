"""Which DCGM fields are shown: NVIDIA's default list, or a list of the admin's in the format of dcgm-exporter.

A row of that format (dcgm-exporter: etc/default-counters.csv) is `field, type, help`. Lines that begin with # and blank
lines count for nothing. What this agent cannot tell is named, and the other rows are served.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from gpuplane.core.strict import closest_match
from gpuplane.model.telemetry import SAMPLED_FIELDS, DcgmCounter
from gpuplane.model.text import Text

XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"
"""The last XID. It is told by events, not sampled."""

SHOWN_FIELDS = (*SAMPLED_FIELDS, XID_FIELD)


KINDS: Mapping[str, Literal["gauge", "counter", "label"]] = {
    "gauge": "gauge",
    "counter": "counter",
    "label": "label",
}


class ParsedCounters(NamedTuple):
    """The rows that can be served, and what is wrong with the others, each with its line."""

    counters: tuple[DcgmCounter, ...]
    problems: tuple[Text, ...]


DEFAULT_COUNTERS = (
    DcgmCounter("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency in MHz"),
    DcgmCounter("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency in MHz"),
    DcgmCounter("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature in °C"),
    DcgmCounter("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature in °C"),
    DcgmCounter("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw in W"),
    DcgmCounter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy used since the driver was loaded, in mJ"),
    DcgmCounter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Number of PCIe retries"),
    DcgmCounter("DCGM_FI_DEV_GPU_UTIL", "gauge", "Part of the time in which a kernel ran, in %"),
    DcgmCounter("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Part of the time in which memory was read or written, in %"),
    DcgmCounter("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization in %"),
    DcgmCounter("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization in %"),
    DcgmCounter(XID_FIELD, "gauge", "Number of the last XID since boot, 0 for none"),
    DcgmCounter("DCGM_FI_DEV_FB_FREE", "gauge", "Free memory in MiB"),
    DcgmCounter("DCGM_FI_DEV_FB_USED", "gauge", "Used memory in MiB"),
    DcgmCounter("DCGM_FI_DEV_FB_RESERVED", "gauge", "Memory that the driver reserves, in MiB"),
    DcgmCounter("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Data over all NVLinks, in KiB"),
    DcgmCounter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped because of uncorrectable errors"),
    DcgmCounter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped because of correctable errors"),
    DcgmCounter("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 if a row could not be remapped"),
    DcgmCounter("DCGM_FI_DRIVER_VERSION", "label", "Driver version"),
    DcgmCounter(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time in which the graphics or compute engine was active"
    ),
    DcgmCounter("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles in which the tensor pipe was active"),
    DcgmCounter("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles in which the memory interface was active"),
    DcgmCounter("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "Data sent over PCIe, in bytes per second"),
    DcgmCounter("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "Data received over PCIe, in bytes per second"),
)
"""NVIDIA's default list (dcgm-exporter: etc/default-counters.csv), without the license status of vGPU guests."""


def parse_counters(text: str, file: str) -> ParsedCounters:
    """The rows of a list. `file`: its name, for people."""
    counters: dict[str, DcgmCounter] = {}
    problems: list[Text] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row, wrong = _parse_row(line)
        if row is None:
            problems.append(f"{file}:{number}: {wrong}")
        elif row.field in counters:
            problems.append(f"{file}:{number}: {row.field} is listed twice; the first row counts")
        else:
            counters[row.field] = row
    return ParsedCounters(tuple(counters.values()), tuple(problems))


def _parse_row(line: str) -> tuple[DcgmCounter | None, Text]:
    """A row, or None and what is wrong with it."""
    cells = [cell.strip() for cell in line.split(",", 2)]
    if len(cells) < 3:
        return None, "write a row as: field, type, help"
    field, kind, help = cells
    problem = next(_field_problems(field), "")
    if problem:
        return None, problem
    if kind not in KINDS:
        return None, f"{field} has the type {kind!r}; known types: {', '.join(KINDS)}"
    sampled = SAMPLED_FIELDS.get(field)
    if (sampled is not None and sampled.kind == "label") != (kind == "label"):
        return None, f"{field} is a {'text: its type is' if kind != 'label' else 'number: its type cannot be'} label"
    return DcgmCounter(field=field, kind=KINDS[kind], help=help.strip('"')), ""


def _field_problems(field: str) -> Iterator[Text]:
    if field in SHOWN_FIELDS:
        return
    if field.startswith("DCGM_FI_PROF_"):
        yield f"{field} cannot be read without DCGM: let a dcgm-exporter show it"
    elif field.startswith("DCGM_EXP_"):
        yield f"{field} is dcgm-exporter's own: the agent shows gpuplane_fault_events_total and gpuplane_device_health"
    else:
        close = closest_match(field, SHOWN_FIELDS)
        yield f"{field} is not shown by this agent" + (f"; did you mean {close}?" if close else "")
