"""Telemetry: what the machine's counters say at one moment. It stays beside the snapshot.

A reading has the name and the unit of a DCGM field (NVIDIA: dcgm_fields.h; dcgm-exporter: etc/default-counters.csv),
because dashboards and alerts are written with these: clocks in MHz, temperatures in °C, power in W, energy in mJ,
memory in MiB, utilisation in percent (DEV) or as a ratio (PROF). What the machine does not tell has no reading.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value

ReadingPeriod = Literal["fast", "slow"]
"""How often a field is read: at each sample, or only at each one of the slower clock."""


class SampledDcgmField(Value):
    """A DCGM field that can be read without DCGM. `kind`: as Prometheus counts it; "label" is a text of the GPU."""

    kind: Literal["gauge", "counter", "label"]
    period: ReadingPeriod = "slow"


def _fields(
    kind: Literal["gauge", "counter", "label"], period: ReadingPeriod, names: str
) -> dict[str, SampledDcgmField]:
    return dict.fromkeys(names.split(), SampledDcgmField(kind=kind, period=period))


SAMPLED_FIELDS: Mapping[str, SampledDcgmField] = {
    **_fields(
        "gauge",
        "fast",
        """DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_GPU_TEMP DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_GPU_UTIL
        DCGM_FI_DEV_MEM_COPY_UTIL DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_RESERVED DCGM_FI_DEV_FB_TOTAL
        DCGM_FI_DEV_FB_USED_PERCENT
        DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_SM_ACTIVE DCGM_FI_PROF_SM_OCCUPANCY DCGM_FI_PROF_PIPE_TENSOR_ACTIVE
        DCGM_FI_PROF_DRAM_ACTIVE DCGM_FI_PROF_PIPE_FP64_ACTIVE DCGM_FI_PROF_PIPE_FP32_ACTIVE
        DCGM_FI_PROF_PIPE_FP16_ACTIVE DCGM_FI_PROF_PCIE_TX_BYTES DCGM_FI_PROF_PCIE_RX_BYTES
        DCGM_FI_PROF_NVLINK_TX_BYTES DCGM_FI_PROF_NVLINK_RX_BYTES""",
    ),
    **_fields("counter", "fast", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    **_fields(
        "gauge",
        "slow",
        """DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL DCGM_FI_DEV_ROW_REMAP_FAILURE
        DCGM_FI_DEV_ROW_REMAP_PENDING DCGM_FI_DEV_POWER_MGMT_LIMIT DCGM_FI_DEV_PSTATE DCGM_FI_DEV_FAN_SPEED
        DCGM_FI_DEV_CLOCK_THROTTLE_REASONS DCGM_FI_DEV_CLOCKS_EVENT_REASONS
        DCGM_FI_DEV_RETIRED_PENDING DCGM_FI_DEV_PCIE_LINK_GEN DCGM_FI_DEV_PCIE_LINK_WIDTH
        DCGM_FI_DEV_PCIE_MAX_LINK_GEN DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH""",
    ),
    **_fields(
        "counter",
        "slow",
        """DCGM_FI_DEV_PCIE_REPLAY_COUNTER DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL
        DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS
        DCGM_FI_DEV_POWER_VIOLATION DCGM_FI_DEV_THERMAL_VIOLATION DCGM_FI_DEV_SYNC_BOOST_VIOLATION
        DCGM_FI_DEV_BOARD_LIMIT_VIOLATION DCGM_FI_DEV_LOW_UTIL_VIOLATION DCGM_FI_DEV_RELIABILITY_VIOLATION
        DCGM_FI_DEV_ECC_SBE_VOL_TOTAL DCGM_FI_DEV_ECC_DBE_VOL_TOTAL DCGM_FI_DEV_ECC_SBE_AGG_TOTAL
        DCGM_FI_DEV_ECC_DBE_AGG_TOTAL DCGM_FI_DEV_RETIRED_SBE DCGM_FI_DEV_RETIRED_DBE
        DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
        DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
        DCGM_FI_DEV_NVLINK_TX_BYTES DCGM_FI_DEV_NVLINK_RX_BYTES""",
    ),
    **_fields(
        "label",
        "slow",
        """DCGM_FI_DRIVER_VERSION DCGM_FI_NVML_VERSION DCGM_FI_DEV_BRAND DCGM_FI_DEV_SERIAL DCGM_FI_DEV_VBIOS_VERSION
        DCGM_FI_DEV_OEM_INFOROM_VER DCGM_FI_DEV_ECC_INFOROM_VER DCGM_FI_DEV_POWER_INFOROM_VER
        DCGM_FI_DEV_INFOROM_IMAGE_VER""",
    ),
}
"""Every field that is read from NVML or, on Hopper and later, from GPM. What an event tells (XIDs) is none of them."""

LINK_FIELDS = frozenset(
    {
        "DCGM_FI_DEV_NVLINK_TX_BYTES",
        "DCGM_FI_DEV_NVLINK_RX_BYTES",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    }
)
"""Fields that are also told for each NVLink by itself."""


class DcgmCounter(Value):
    """A DCGM field that is shown, how Prometheus counts it (a label is added to every series), and its help."""

    field: str
    kind: Literal["gauge", "counter", "untyped", "label"]
    help: Text
    former_name: str = ""  # of dcgm-exporter 1.x, where it is shown by that

    @property
    def name(self) -> str:
        """Of its series, or of its label."""
        return self.former_name or self.field


class ProcessSample(Value):
    """A process that uses a GPU, and where the kernel counts it.

    `started` (clock ticks since boot, proc(5) stat field 22) tells two processes of one number apart. `cgroups`: the
    different paths of /proc/PID/cgroup. Both are empty where that could not be read: without hostPID there is no such
    process here.
    """

    pid: int
    started: int = 0
    cgroups: tuple[str, ...] = ()
    memory_mib: float | None = None
    sm_percent: float | None = None  # of the time of all SMs, since the sample before
    gpu_instance: int | None = None
    compute_instance: int | None = None


class MigDeviceSample(Value):
    """What one MIG device tells. `readings`: name of a DCGM field → its value."""

    uuid: str
    readings: Mapping[str, float] = {}


class GpuSample(Value):
    """What one GPU tells. `texts`: the fields of the kind "label". `links`: number of an NVLink → its readings.

    `missing`: each requested field that it does not tell → NVML's name of the reason, "NOT_SUPPORTED".
    """

    uuid: str
    readings: Mapping[str, float] = {}
    texts: Mapping[str, str] = {}
    links: Mapping[int, Mapping[str, float]] = {}
    mig_devices: tuple[MigDeviceSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    missing: Mapping[str, str] = {}


class Sample(Value, tag=True):
    """One reading of all GPUs. A slow field keeps its last value until it is read again.

    `taken_at`: seconds of CLOCK_BOOTTIME. `processes_visible`: False where the driver's process cannot see the
    processes of containers (no hostPID), so that their use can be told of nobody. `calls`: calls of the driver's
    library that all samples of this process took so far.
    """

    taken_at: float
    gpus: tuple[GpuSample, ...] = ()
    processes_visible: bool = True
    calls: int = 0


class SamplingRequest(Value):
    """Which fields are to be sampled, and how often. Without fields nothing is."""

    fields: tuple[str, ...] = ()  # names of SAMPLED_FIELDS, sorted
    processes: bool = True  # who uses the GPUs, too
    interval: float = 1.0  # seconds between two samples
    slow_interval: float = 5.0  # seconds between two readings of a slow field


class Curve(Value):
    """A reading of a described machine that changes over time: from `low` to `high` and back each `period` seconds."""

    curve: Literal["sine", "triangle", "square", "sawtooth", "counter"]
    low: float = 0.0
    high: float = 100.0  # of a counter: what it grows by in a period
    period: float = 60.0


class DescribedLoad(Value):
    """What a described GPU, a MIG device of it or one of its NVLinks tells."""

    gpu: int  # its index
    mig: str = ""  # the UUID of a MIG device of it
    nvlink: int | None = None
    readings: Mapping[str, float | Curve] = {}
    texts: Mapping[str, str] = {}
