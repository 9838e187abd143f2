"""Which DCGM fields are shown: NVIDIA's default list, or a list of the admin's in the format of dcgm-exporter.

A row of that format (dcgm-exporter: etc/default-counters.csv, internal/pkg/counters) is `field, type, help`. Lines that
begin with # and blank lines count for nothing. dcgm-exporter ends over a row that it cannot serve. Here such a row
costs itself: it is a warning with its line. A row is one line, so that quotes which never end cost no other row.
"""

import csv
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from gpuplane.base.strict import InvalidInput, closest_match
from gpuplane.base.text import Text, clip, format_count
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, DcgmCounter

XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"
"""The last XID. It is told by events, not sampled."""

SHOWN_FIELDS = (*SAMPLED_FIELDS, XID_FIELD)

MOST_WARNINGS = 10
"""Rows that are named; of more only their number is told."""

MAX_LINES = 10_000  # DCGM has some hundreds of fields
LONGEST_ROW = 1000  # characters
LONGEST_NAME = 80
AS_ALIKE = 0.9
"""How alike a name has to be to a field for a typing error: DCGM has many fields that differ by one word."""

KINDS: Mapping[str, Literal["gauge", "counter", "untyped", "label"]] = {
    "gauge": "gauge",
    "counter": "counter",
    "untyped": "untyped",
    "label": "label",
    "histogram": "untyped",
    "summary": "untyped",
}
"""Type of a row → how its series are shown. dcgm-exporter took the last two until 4.8.2, and wrote one number of them:
that is neither a histogram nor a summary. Later it refuses them, and takes `untyped`."""

FIELDS_BY_FORMER_NAME: Mapping[str, str] = {
    "dcgm_sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    "dcgm_memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "dcgm_memory_temp": "DCGM_FI_DEV_MEMORY_TEMP",
    "dcgm_gpu_temp": "DCGM_FI_DEV_GPU_TEMP",
    "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "dcgm_pcie_tx_throughput": "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
    "dcgm_pcie_rx_throughput": "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    "dcgm_pcie_replay_counter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_mem_copy_utilization": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "dcgm_enc_utilization": "DCGM_FI_DEV_ENC_UTIL",
    "dcgm_dec_utilization": "DCGM_FI_DEV_DEC_UTIL",
    "dcgm_xid_errors": "DCGM_FI_DEV_XID_ERRORS",
    "dcgm_power_violation": "DCGM_FI_DEV_POWER_VIOLATION",
    "dcgm_thermal_violation": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "dcgm_sync_boost_violation": "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    "dcgm_board_limit_violation": "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    "dcgm_low_util_violation": "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "dcgm_reliability_violation": "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    "dcgm_fb_free": "DCGM_FI_DEV_FB_FREE",
    "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
    "dcgm_ecc_sbe_volatile_total": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "dcgm_ecc_dbe_volatile_total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "dcgm_ecc_sbe_aggregate_total": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "dcgm_ecc_dbe_aggregate_total": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_retired_pages_sbe": "DCGM_FI_DEV_RETIRED_SBE",
    "dcgm_retired_pages_dbe": "DCGM_FI_DEV_RETIRED_DBE",
    "dcgm_retired_pages_pending": "DCGM_FI_DEV_RETIRED_PENDING",
    "dcgm_nvlink_flit_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_data_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_replay_error_count_total": "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_recovery_error_count_total": "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_bandwidth_total": "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "dcgm_fi_prof_gr_engine_active": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "dcgm_fi_prof_sm_active": "DCGM_FI_PROF_SM_ACTIVE",
    "dcgm_fi_prof_sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY",
    "dcgm_fi_prof_pipe_tensor_active": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "dcgm_fi_prof_dram_active": "DCGM_FI_PROF_DRAM_ACTIVE",
    "dcgm_fi_prof_pcie_tx_bytes": "DCGM_FI_PROF_PCIE_TX_BYTES",
    "dcgm_fi_prof_pcie_rx_bytes": "DCGM_FI_PROF_PCIE_RX_BYTES",
}
"""Name of dcgm-exporter 1.x → the field that it shows under that name (go-dcgm: pkg/dcgm/legacy_fields.csv)."""


ADVICE: Mapping[str, str] = {
    "DCGM_FI_PROF_": "other profiling counters need DCGM: let a dcgm-exporter show them",
    "DCGM_EXP_": "instead of DCGM_EXP_… see gpuplane_fault_events_total, gpuplane_fault and gpuplane_device_health",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L": "for each NVLink see gpuplane_nvlink_transmit_bytes_total and …receive…",
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": "for PCIe see DCGM_FI_PROF_PCIE_TX_BYTES and …RX_BYTES",
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": "for PCIe see DCGM_FI_PROF_PCIE_TX_BYTES and …RX_BYTES",
}
"""Beginning of a field that is not shown → what to do."""


class ParsedCounters(NamedTuple):
    """The rows that can be served, and what is wrong with the others, each with its line; then what to do."""

    counters: tuple[DcgmCounter, ...]
    warnings: tuple[Text, ...]


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


def parse_counters(content: bytes, file: str) -> ParsedCounters:
    """The rows of a list. `file`: its name, for people. Raises InvalidInput for what is no list."""
    rows = _rows(content, file)
    counters: dict[str, DcgmCounter] = {}
    warnings: list[str] = []
    advice: dict[str, None] = {}  # said once
    for number, line in rows:
        try:
            row = _parse_row(line)
            if row.name in counters:
                raise ValueError(f"{row.name} is listed twice; the first row counts")
            counters[row.name] = row
        except ValueError as error:
            if len(warnings) < MOST_WARNINGS:
                warnings.append(f"line {number}: {error}{_did_you_mean(line)}")
                advice |= dict.fromkeys(_advice(line))
    if more := len(rows) - len(counters) - len(warnings):
        warnings.append(f"{format_count(more, 'further row')} cannot be served")
    if not counters:
        raise InvalidInput([f"{file} has no row that can be served", *warnings, *advice])
    return ParsedCounters(tuple(counters.values()), (*warnings, *advice))


def _rows(content: bytes, file: str) -> list[tuple[int, str]]:
    """The number and the text of each line that counts. Raises InvalidInput."""
    if content.count(b"\n") > MAX_LINES:
        raise InvalidInput([f"{file} has more than {MAX_LINES} lines"])
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput([f"{file}:{number}: a byte that is not UTF-8"]) from None
    return [
        (number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]


def _parse_row(line: str) -> DcgmCounter:
    """What a row shows. Raises ValueError, whose text is for people."""
    name, kind, help = _cells(line)
    field = FIELDS_BY_FORMER_NAME.get(name, name)
    if field not in SHOWN_FIELDS:
        raise ValueError(f"{clip(name, LONGEST_NAME)} is not shown by this agent")
    if kind not in KINDS:
        raise ValueError(f"{name} has the type {clip(kind, LONGEST_NAME)!r}; known types: {', '.join(KINDS)}")
    if field in SAMPLED_FIELDS and SAMPLED_FIELDS[field].kind == "label" != kind:
        raise ValueError(f"{name} is a text: its type is label")
    return DcgmCounter(
        field=field, kind=KINDS[kind], help=clip(help, LONGEST_ROW), former_name=name if name != field else ""
    )


def _cells(line: str) -> tuple[str, str, str]:
    """Name, type and help; a help may have commas without quotes. Raises ValueError."""
    if len(line) > LONGEST_ROW:
        raise ValueError(f"the row has {len(line)} characters; the limit is {LONGEST_ROW}")
    try:
        [cells] = csv.reader([line.strip()], skipinitialspace=True, strict=True)
    except csv.Error as error:
        raise ValueError(f"the row is not CSV: {error}") from None
    if len(cells) < 3:
        raise ValueError("write a row as: field, type, help")
    name, kind, *help = (cell.strip() for cell in cells)
    return name, kind, ", ".join(help)


def _name(line: str) -> str:
    return line.split(",", 1)[0].strip()


def _advice(line: str) -> Iterator[str]:
    field = FIELDS_BY_FORMER_NAME.get(_name(line), _name(line))
    if field not in SHOWN_FIELDS:
        yield from (text for prefix, text in ADVICE.items() if field.startswith(prefix))


def _did_you_mean(line: str) -> str:
    known = (*SHOWN_FIELDS, *FIELDS_BY_FORMER_NAME)
    close = closest_match(_name(line), known, AS_ALIKE) if _name(line) not in known and not any(_advice(line)) else ""
    return f"; did you mean {close}?" if close else ""
