"""Which of NVML's functions tells which DCGM field: a table, and the one place that knows units of both.

Sources: nvml.h and dcgm_fields.h. NVML counts power in mW, memory in bytes, GPM's shares in percent and its rates in
MiB a second; DCGM tells W, MiB, ratios and bytes a second. Whole numbers stay whole, as DCGM's are.

A described machine follows this table too: what fails of its driver's calls takes away the same fields.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpuplane.node.model.telemetry import SAMPLED_FIELDS, SamplingRequest

MIB = 1 << 20
ALL_LINKS = 0xFFFFFFFF
LINKS_WITH_OWN_FIELDS = 12
"""NVLinks that have fields of their own in nvml.h. Later ones have those alone that are asked with their number."""

FieldOfLink: TypeAlias = tuple[int, int]  # NVML_FI_DEV_*, and the NVLink that it is asked of


@dataclass(frozen=True)
class FieldQuery:
    """A call about a GPU. `tells`: field → what of the answer it is."""

    function: str
    tells: Mapping[str, Callable[[Any], Any]]
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class FieldSource:
    """Fields of nvmlDeviceGetFieldValues whose sum, times `factor`, is a reading."""

    fields: tuple[FieldOfLink, ...]
    factor: float = 1


def _whole(answer: Any) -> float:
    return float(answer)


def _thousandth(answer: Any) -> float:
    return float(answer) / 1000


FIELD_QUERIES = (
    FieldQuery("nvmlDeviceGetClockInfo", {"DCGM_FI_DEV_SM_CLOCK": _whole}, (1,)),  # NVML_CLOCK_SM
    FieldQuery("nvmlDeviceGetClockInfo", {"DCGM_FI_DEV_MEM_CLOCK": _whole}, (2,)),  # NVML_CLOCK_MEM
    FieldQuery("nvmlDeviceGetTemperature", {"DCGM_FI_DEV_GPU_TEMP": _whole}, (0,)),  # NVML_TEMPERATURE_GPU
    FieldQuery("nvmlDeviceGetPowerUsage", {"DCGM_FI_DEV_POWER_USAGE": _thousandth}),
    FieldQuery(
        "nvmlDeviceGetUtilizationRates",
        {
            "DCGM_FI_DEV_GPU_UTIL": lambda answer: float(answer.gpu),
            "DCGM_FI_DEV_MEM_COPY_UTIL": lambda answer: float(answer.memory),
        },
    ),
    FieldQuery("nvmlDeviceGetEncoderUtilization", {"DCGM_FI_DEV_ENC_UTIL": lambda answer: float(answer[0])}),
    FieldQuery("nvmlDeviceGetDecoderUtilization", {"DCGM_FI_DEV_DEC_UTIL": lambda answer: float(answer[0])}),
    FieldQuery("nvmlDeviceGetPowerManagementLimit", {"DCGM_FI_DEV_POWER_MGMT_LIMIT": _thousandth}),
    FieldQuery("nvmlDeviceGetPerformanceState", {"DCGM_FI_DEV_PSTATE": _whole}),
    FieldQuery("nvmlDeviceGetFanSpeed", {"DCGM_FI_DEV_FAN_SPEED": _whole}),
    FieldQuery(
        "nvmlDeviceGetCurrentClocksEventReasons",
        {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _whole, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": _whole},
    ),
    FieldQuery("nvmlDeviceGetCurrPcieLinkGeneration", {"DCGM_FI_DEV_PCIE_LINK_GEN": _whole}),
    FieldQuery("nvmlDeviceGetCurrPcieLinkWidth", {"DCGM_FI_DEV_PCIE_LINK_WIDTH": _whole}),
    FieldQuery("nvmlDeviceGetMaxPcieLinkGeneration", {"DCGM_FI_DEV_PCIE_MAX_LINK_GEN": _whole}),
    FieldQuery("nvmlDeviceGetMaxPcieLinkWidth", {"DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": _whole}),
)

FIELD_VALUES_CALL = "nvmlDeviceGetFieldValues"
FIELD_SOURCES: Mapping[str, tuple[FieldSource, ...]] = {  # the first that is told
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (FieldSource(((83, 0),)),),
    "DCGM_FI_DEV_MEMORY_TEMP": (FieldSource(((82, 0),)),),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (FieldSource(((94, 0),)),),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (FieldSource(((142, 0),)),),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (FieldSource(((143, 0),)),),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": (FieldSource(((144, 0),)),),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (FieldSource(((145, 0),)),),
    "DCGM_FI_DEV_POWER_VIOLATION": (FieldSource(((74, 0),)),),
    "DCGM_FI_DEV_THERMAL_VIOLATION": (FieldSource(((75, 0),)),),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": (FieldSource(((76, 0),)),),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": (FieldSource(((77, 0),)),),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": (FieldSource(((78, 0),)),),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": (FieldSource(((79, 0),)),),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (FieldSource(((3, 0),)),),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (FieldSource(((4, 0),)),),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": (FieldSource(((5, 0),)),),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": (FieldSource(((6, 0),)),),
    "DCGM_FI_DEV_RETIRED_SBE": (FieldSource(((29, 0),)),),
    "DCGM_FI_DEV_RETIRED_DBE": (FieldSource(((30, 0),)),),
    "DCGM_FI_DEV_RETIRED_PENDING": (FieldSource(((31, 0),)),),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (FieldSource(((38, 0),)),),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": (FieldSource(((45, 0),)),),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (FieldSource(((52, 0),)),),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (FieldSource(((59, 0),)),),
    "DCGM_FI_DEV_NVLINK_TX_BYTES": (FieldSource(((138, ALL_LINKS),), 1024),),
    "DCGM_FI_DEV_NVLINK_RX_BYTES": (FieldSource(((139, ALL_LINKS),), 1024),),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (FieldSource(((138, ALL_LINKS), (139, ALL_LINKS))),),  # KiB, both ways
}
UNCORRECTED_ERRORS_FIELD = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
"""What a look counts too: a described machine says it of its GPU, not in its load."""
LINK_SUM_FIELDS = ("DCGM_FI_DEV_NVLINK_TX_BYTES", "DCGM_FI_DEV_NVLINK_RX_BYTES")
_LINK_FIELD_SOURCES: Mapping[
    str, tuple[tuple[tuple[int, float], ...], tuple[int, ...]]
] = {  # (fields asked with the link's number, with factors), (the fields of links 0 and 6)
    "DCGM_FI_DEV_NVLINK_TX_BYTES": (((202, 1), (138, 1024)), ()),
    "DCGM_FI_DEV_NVLINK_RX_BYTES": (((204, 1), (139, 1024)), ()),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (((163, 1),), (32, 96)),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ((), (39, 102)),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (((161, 1),), (46, 108)),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (((162, 1),), (53, 114)),
}


def link_sources(name: str, link: int) -> tuple[FieldSource, ...]:
    """The same for one NVLink; () where nothing tells it."""
    numbered, lanes = _LINK_FIELD_SOURCES[name]
    half, place = divmod(link, LINKS_WITH_OWN_FIELDS // 2)
    own = [FieldSource(((lanes[half] + place, 0),))] if half < len(lanes) else []
    return (*own, *(FieldSource(((field, link),), factor) for field, factor in numbered))


def add_link_sums(
    readings: dict[str, float], links: Mapping[int, Mapping[str, float]], fields: Collection[str]
) -> None:
    """What only the links of a GPU tell is told of the GPU as their sum. `fields`: those that are asked for."""
    for name in LINK_SUM_FIELDS:
        told = [link[name] for link in links.values() if name in link]
        if name in fields and name not in readings and told:
            readings[name] = sum(told)


MEMORY_CALL = "nvmlDeviceGetMemoryInfo"
MEMORY_FIELDS = frozenset(f"DCGM_FI_DEV_FB_{name}" for name in ("FREE", "USED", "RESERVED", "TOTAL", "USED_PERCENT"))


def memory_readings(total: float, used: float, free: float, reserved: float | None) -> dict[str, float]:
    """What memory is told as, from sizes in MiB. `reserved`: None where the library does not tell it."""
    told: dict[str, float] = {
        "DCGM_FI_DEV_FB_TOTAL": total // 1,
        "DCGM_FI_DEV_FB_USED": used // 1,
        "DCGM_FI_DEV_FB_FREE": free // 1,
    }
    if reserved is not None:
        told["DCGM_FI_DEV_FB_RESERVED"] = reserved // 1
    if (usable := total - (reserved or 0)) > 0:
        told["DCGM_FI_DEV_FB_USED_PERCENT"] = used / usable  # a ratio, whatever its name says
    return told


GPM_RATIOS: Mapping[str, int] = {  # NVML_GPM_METRIC_* that are percentages
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1,
    "DCGM_FI_PROF_SM_ACTIVE": 2,
    "DCGM_FI_PROF_SM_OCCUPANCY": 3,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 5,
    "DCGM_FI_PROF_DRAM_ACTIVE": 10,
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 11,
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 12,
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 13,
}
GPM_RATES: Mapping[str, int] = {  # those that are MiB a second
    "DCGM_FI_PROF_PCIE_TX_BYTES": 20,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 21,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": 60,
    "DCGM_FI_PROF_NVLINK_TX_BYTES": 61,
}
GPM_METRICS: Mapping[str, int] = {**GPM_RATIOS, **GPM_RATES}
RATIO_FIELDS = frozenset(GPM_RATIOS)
GPM_CALLS = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
MIG_GPM_CALLS = ("nvmlGpmQueryDeviceSupport", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet")
MIG_FIELDS = MEMORY_FIELDS | RATIO_FIELDS
"""What a MIG device tells of itself."""

PERCENT_FIELDS = frozenset(f"DCGM_FI_DEV_{name}" for name in ("GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL"))
FRACTIONAL_FIELDS = RATIO_FIELDS | {
    *GPM_METRICS,
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_FB_USED_PERCENT",
}
"""Fields that are no whole numbers."""

BRAND_NAMES = (  # nvmlBrandType_t, by the names of NVIDIA's own programs (go-nvlib: pkg/nvlib/device/device.go)
    "Unknown",
    "Quadro",
    "Tesla",
    "NVS",
    "Grid",
    "GeForce",
    "Titan",
    "NvidiaVApps",
    "NvidiaVPC",
    "NvidiaVCS",
    "NvidiaVWS",
    "NvidiaCloudGaming",
    "QuadroRTX",
    "NvidiaRTX",
    "Nvidia",
    "GeForceRTX",
    "TitanRTX",
)


def _brand(answer: Any) -> str:
    return BRAND_NAMES[answer] if 0 <= answer < len(BRAND_NAMES) else str(answer)


TEXT_QUERIES = (  # of the GPU, or of the library where the function is nvmlSystem…
    FieldQuery("nvmlSystemGetNVMLVersion", {"DCGM_FI_NVML_VERSION": str}),
    FieldQuery("nvmlDeviceGetBrand", {"DCGM_FI_DEV_BRAND": _brand}),
    FieldQuery("nvmlDeviceGetSerial", {"DCGM_FI_DEV_SERIAL": str}),
    FieldQuery("nvmlDeviceGetVbiosVersion", {"DCGM_FI_DEV_VBIOS_VERSION": str}),
    FieldQuery("nvmlDeviceGetInforomVersion", {"DCGM_FI_DEV_OEM_INFOROM_VER": str}, (0,)),  # NVML_INFOROM_OEM
    FieldQuery("nvmlDeviceGetInforomVersion", {"DCGM_FI_DEV_ECC_INFOROM_VER": str}, (1,)),  # NVML_INFOROM_ECC
    FieldQuery("nvmlDeviceGetInforomVersion", {"DCGM_FI_DEV_POWER_INFOROM_VER": str}, (2,)),  # NVML_INFOROM_POWER
    FieldQuery("nvmlDeviceGetInforomImageVersion", {"DCGM_FI_DEV_INFOROM_IMAGE_VER": str}),
)
DRIVER_VERSION_FIELD = "DCGM_FI_DRIVER_VERSION"
"""No call tells it: it is known since the driver was loaded."""

COMPUTE_PROCESSES_CALL = "nvmlDeviceGetComputeRunningProcesses"
PROCESS_LIST_CALLS = (
    COMPUTE_PROCESSES_CALL,
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)
"""Who uses a GPU. Clients of MPS may be in a list of their own; who is in several is one process."""
PROCESS_UTILIZATION_CALL = "nvmlDeviceGetProcessUtilization"


def calls_of_field(name: str, mig: bool = False) -> tuple[str, ...]:
    """The functions without which a GPU, or a MIG device, does not tell a field, in their order."""
    if name in GPM_METRICS:
        return MIG_GPM_CALLS if mig else GPM_CALLS
    if name in MEMORY_FIELDS:
        return (MEMORY_CALL,)
    if name in FIELD_SOURCES:
        return (FIELD_VALUES_CALL,)
    return tuple(query.function for query in (*FIELD_QUERIES, *TEXT_QUERIES) if name in query.tells)


def calls_of_request(request: SamplingRequest, *, migs: bool, profiled: bool) -> Sequence[str]:
    """The functions that a request has called about a GPU, in their order.

    `migs`: it has MIG devices. `profiled`: it supports GPM; one that does not is asked no more than that.
    """
    wanted = {call for name in request.fields for call in calls_of_field(name)}
    inside = {call for name in request.fields if migs and name in MIG_FIELDS for call in calls_of_field(name, mig=True)}
    found = [query.function for query in FIELD_QUERIES if query.function in wanted]
    found += [call for call in (FIELD_VALUES_CALL, MEMORY_CALL) if call in wanted]
    found += [call for call in (GPM_CALLS if profiled else GPM_CALLS[:1]) if call in wanted]
    found += [call for call in (MIG_GPM_CALLS if profiled else ()) if call in inside]
    found += (*PROCESS_LIST_CALLS, PROCESS_UTILIZATION_CALL) if request.processes else ()
    found += [query.function for query in TEXT_QUERIES if query.function in wanted]
    return tuple(dict.fromkeys(found))


def read_interval_of_field(name: str) -> str:
    """How often a field is read; one that is not known is a bug of whoever asks, and read seldom."""
    return SAMPLED_FIELDS[name].period if name in SAMPLED_FIELDS else "slow"
