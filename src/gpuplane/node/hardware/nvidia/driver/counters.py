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
LANES = 12
"""NVLinks that have fields of their own in nvml.h. Later ones have those alone that are asked with their number."""

Field: TypeAlias = tuple[int, int]  # NVML_FI_DEV_*, and the NVLink that it is asked of


@dataclass(frozen=True)
class Query:
    """A call about a GPU. `tells`: field → what of the answer it is."""

    function: str
    tells: Mapping[str, Callable[[Any], Any]]
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class Source:
    """Fields of nvmlDeviceGetFieldValues whose sum, times `factor`, is a reading."""

    fields: tuple[Field, ...]
    factor: float = 1


def _whole(answer: Any) -> float:
    return float(answer)


def _thousandth(answer: Any) -> float:
    return float(answer) / 1000


QUERIES = (
    Query("nvmlDeviceGetClockInfo", {"DCGM_FI_DEV_SM_CLOCK": _whole}, (1,)),  # NVML_CLOCK_SM
    Query("nvmlDeviceGetClockInfo", {"DCGM_FI_DEV_MEM_CLOCK": _whole}, (2,)),  # NVML_CLOCK_MEM
    Query("nvmlDeviceGetTemperature", {"DCGM_FI_DEV_GPU_TEMP": _whole}, (0,)),  # NVML_TEMPERATURE_GPU
    Query("nvmlDeviceGetPowerUsage", {"DCGM_FI_DEV_POWER_USAGE": _thousandth}),
    Query(
        "nvmlDeviceGetUtilizationRates",
        {
            "DCGM_FI_DEV_GPU_UTIL": lambda answer: float(answer.gpu),
            "DCGM_FI_DEV_MEM_COPY_UTIL": lambda answer: float(answer.memory),
        },
    ),
    Query("nvmlDeviceGetEncoderUtilization", {"DCGM_FI_DEV_ENC_UTIL": lambda answer: float(answer[0])}),
    Query("nvmlDeviceGetDecoderUtilization", {"DCGM_FI_DEV_DEC_UTIL": lambda answer: float(answer[0])}),
    Query("nvmlDeviceGetPowerManagementLimit", {"DCGM_FI_DEV_POWER_MGMT_LIMIT": _thousandth}),
    Query("nvmlDeviceGetPerformanceState", {"DCGM_FI_DEV_PSTATE": _whole}),
    Query("nvmlDeviceGetFanSpeed", {"DCGM_FI_DEV_FAN_SPEED": _whole}),
    Query(
        "nvmlDeviceGetCurrentClocksEventReasons",
        {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _whole, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": _whole},
    ),
    Query("nvmlDeviceGetCurrPcieLinkGeneration", {"DCGM_FI_DEV_PCIE_LINK_GEN": _whole}),
    Query("nvmlDeviceGetCurrPcieLinkWidth", {"DCGM_FI_DEV_PCIE_LINK_WIDTH": _whole}),
    Query("nvmlDeviceGetMaxPcieLinkGeneration", {"DCGM_FI_DEV_PCIE_MAX_LINK_GEN": _whole}),
    Query("nvmlDeviceGetMaxPcieLinkWidth", {"DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": _whole}),
)

FIELD_VALUES = "nvmlDeviceGetFieldValues"
SOURCES: Mapping[str, tuple[Source, ...]] = {  # the first that is told
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (Source(((83, 0),)),),
    "DCGM_FI_DEV_MEMORY_TEMP": (Source(((82, 0),)),),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (Source(((94, 0),)),),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (Source(((142, 0),)),),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (Source(((143, 0),)),),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": (Source(((144, 0),)),),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (Source(((145, 0),)),),
    "DCGM_FI_DEV_POWER_VIOLATION": (Source(((74, 0),)),),
    "DCGM_FI_DEV_THERMAL_VIOLATION": (Source(((75, 0),)),),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": (Source(((76, 0),)),),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": (Source(((77, 0),)),),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": (Source(((78, 0),)),),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": (Source(((79, 0),)),),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (Source(((3, 0),)),),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (Source(((4, 0),)),),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": (Source(((5, 0),)),),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": (Source(((6, 0),)),),
    "DCGM_FI_DEV_RETIRED_SBE": (Source(((29, 0),)),),
    "DCGM_FI_DEV_RETIRED_DBE": (Source(((30, 0),)),),
    "DCGM_FI_DEV_RETIRED_PENDING": (Source(((31, 0),)),),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (Source(((38, 0),)),),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": (Source(((45, 0),)),),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (Source(((52, 0),)),),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (Source(((59, 0),)),),
    "DCGM_FI_DEV_NVLINK_TX_BYTES": (Source(((138, ALL_LINKS),), 1024),),
    "DCGM_FI_DEV_NVLINK_RX_BYTES": (Source(((139, ALL_LINKS),), 1024),),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (Source(((138, ALL_LINKS), (139, ALL_LINKS))),),  # KiB, both ways
}
UNCORRECTED = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
"""What a look counts too: a described machine says it of its GPU, not in its load."""
LINK_SUMS = ("DCGM_FI_DEV_NVLINK_TX_BYTES", "DCGM_FI_DEV_NVLINK_RX_BYTES")
_LINK_SOURCES: Mapping[
    str, tuple[tuple[tuple[int, float], ...], tuple[int, ...]]
] = {  # (fields asked with the link's number, with factors), (the fields of links 0 and 6)
    "DCGM_FI_DEV_NVLINK_TX_BYTES": (((202, 1), (138, 1024)), ()),
    "DCGM_FI_DEV_NVLINK_RX_BYTES": (((204, 1), (139, 1024)), ()),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (((163, 1),), (32, 96)),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ((), (39, 102)),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (((161, 1),), (46, 108)),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (((162, 1),), (53, 114)),
}


def link_sources(name: str, link: int) -> tuple[Source, ...]:
    """The same for one NVLink; () where nothing tells it."""
    numbered, lanes = _LINK_SOURCES[name]
    half, place = divmod(link, LANES // 2)
    own = [Source(((lanes[half] + place, 0),))] if half < len(lanes) else []
    return (*own, *(Source(((field, link),), factor) for field, factor in numbered))


def add_link_sums(
    readings: dict[str, float], links: Mapping[int, Mapping[str, float]], fields: Collection[str]
) -> None:
    """What only the links of a GPU tell is told of the GPU as their sum. `fields`: those that are asked for."""
    for name in LINK_SUMS:
        told = [link[name] for link in links.values() if name in link]
        if name in fields and name not in readings and told:
            readings[name] = sum(told)


MEMORY = "nvmlDeviceGetMemoryInfo"
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
RATIOS = frozenset(GPM_RATIOS)
GPM = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
MIG_GPM = ("nvmlGpmQueryDeviceSupport", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet")
MIG_FIELDS = MEMORY_FIELDS | RATIOS
"""What a MIG device tells of itself."""

PERCENT = frozenset(f"DCGM_FI_DEV_{name}" for name in ("GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL"))
FRACTIONS = RATIOS | {
    *GPM_METRICS,
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_FB_USED_PERCENT",
}
"""Fields that are no whole numbers."""

BRANDS = (  # nvmlBrandType_t, by the names of NVIDIA's own programs (go-nvlib: pkg/nvlib/device/device.go)
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
    return BRANDS[answer] if 0 <= answer < len(BRANDS) else str(answer)


TEXTS = (  # of the GPU, or of the library where the function is nvmlSystem…
    Query("nvmlSystemGetNVMLVersion", {"DCGM_FI_NVML_VERSION": str}),
    Query("nvmlDeviceGetBrand", {"DCGM_FI_DEV_BRAND": _brand}),
    Query("nvmlDeviceGetSerial", {"DCGM_FI_DEV_SERIAL": str}),
    Query("nvmlDeviceGetVbiosVersion", {"DCGM_FI_DEV_VBIOS_VERSION": str}),
    Query("nvmlDeviceGetInforomVersion", {"DCGM_FI_DEV_OEM_INFOROM_VER": str}, (0,)),  # NVML_INFOROM_OEM
    Query("nvmlDeviceGetInforomVersion", {"DCGM_FI_DEV_ECC_INFOROM_VER": str}, (1,)),  # NVML_INFOROM_ECC
    Query("nvmlDeviceGetInforomVersion", {"DCGM_FI_DEV_POWER_INFOROM_VER": str}, (2,)),  # NVML_INFOROM_POWER
    Query("nvmlDeviceGetInforomImageVersion", {"DCGM_FI_DEV_INFOROM_IMAGE_VER": str}),
)
DRIVER_VERSION = "DCGM_FI_DRIVER_VERSION"
"""No call tells it: it is known since the driver was loaded."""

COMPUTING = "nvmlDeviceGetComputeRunningProcesses"
LISTS = (COMPUTING, "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
"""Who uses a GPU. Clients of MPS may be in a list of their own; who is in several is one process."""
USE = "nvmlDeviceGetProcessUtilization"


def calls(name: str, mig: bool = False) -> tuple[str, ...]:
    """The functions without which a GPU, or a MIG device, does not tell a field, in their order."""
    if name in GPM_METRICS:
        return MIG_GPM if mig else GPM
    if name in MEMORY_FIELDS:
        return (MEMORY,)
    if name in SOURCES:
        return (FIELD_VALUES,)
    return tuple(query.function for query in (*QUERIES, *TEXTS) if name in query.tells)


def order(request: SamplingRequest, *, migs: bool, profiled: bool) -> Sequence[str]:
    """The functions that a request has called about a GPU, in their order.

    `migs`: it has MIG devices. `profiled`: it supports GPM; one that does not is asked no more than that.
    """
    wanted = {call for name in request.fields for call in calls(name)}
    inside = {call for name in request.fields if migs and name in MIG_FIELDS for call in calls(name, mig=True)}
    found = [query.function for query in QUERIES if query.function in wanted]
    found += [call for call in (FIELD_VALUES, MEMORY) if call in wanted]
    found += [call for call in (GPM if profiled else GPM[:1]) if call in wanted]
    found += [call for call in (MIG_GPM if profiled else ()) if call in inside]
    found += (*LISTS, USE) if request.processes else ()
    found += [query.function for query in TEXTS if query.function in wanted]
    return tuple(dict.fromkeys(found))


def period_of(name: str) -> str:
    """How often a field is read; one that is not known is a bug of whoever asks, and read seldom."""
    return SAMPLED_FIELDS[name].period if name in SAMPLED_FIELDS else "slow"
