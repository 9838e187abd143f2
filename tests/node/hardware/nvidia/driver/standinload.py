"""A machine file's load as the stand-in's library reads it: the inverse of what the driver's process makes of NVML."""

import time
from collections.abc import Iterator

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.described.load import evaluate_curve
from gpuplane.node.model.machine import MigDevice
from gpuplane.node.model.telemetry import DescribedLoad

MIB = 1 << 20
ALL_LINKS = 0xFFFFFFFF
PLAIN = {  # key → (field, what it is multiplied with)
    "clock.1": ("DCGM_FI_DEV_SM_CLOCK", 1),
    "clock.2": ("DCGM_FI_DEV_MEM_CLOCK", 1),
    "temperature.0": ("DCGM_FI_DEV_GPU_TEMP", 1),
    "power": ("DCGM_FI_DEV_POWER_USAGE", 1000),
    "power.limit": ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 1000),
    "encoder": ("DCGM_FI_DEV_ENC_UTIL", 1),
    "decoder": ("DCGM_FI_DEV_DEC_UTIL", 1),
    "pstate": ("DCGM_FI_DEV_PSTATE", 1),
    "fan": ("DCGM_FI_DEV_FAN_SPEED", 1),
    "clocks": ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1),
    "generation": ("DCGM_FI_DEV_PCIE_LINK_GEN", 1),
    "generation.max": ("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", 1),
    "width": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 1),
    "width.max": ("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 1),
}
FIELDS = {  # field → NVML_FI_DEV_*
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    "DCGM_FI_DEV_MEMORY_TEMP": pynvml.NVML_FI_DEV_MEMORY_TEMP,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": pynvml.NVML_FI_DEV_REMAPPED_COR,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": pynvml.NVML_FI_DEV_REMAPPED_UNC,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    "DCGM_FI_DEV_POWER_VIOLATION": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    "DCGM_FI_DEV_THERMAL_VIOLATION": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION,
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    "DCGM_FI_DEV_RETIRED_SBE": pynvml.NVML_FI_DEV_RETIRED_SBE,
    "DCGM_FI_DEV_RETIRED_DBE": pynvml.NVML_FI_DEV_RETIRED_DBE,
    "DCGM_FI_DEV_RETIRED_PENDING": pynvml.NVML_FI_DEV_RETIRED_PENDING,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
}
BYTES = {
    "DCGM_FI_DEV_NVLINK_TX_BYTES": (
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
    ),
    "DCGM_FI_DEV_NVLINK_RX_BYTES": (
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
    ),
}
OF_LINKS = {  # field → the name of those of one NVLink each, and the one that later NVLinks have
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("CRC_FLIT_ERROR_COUNT_L", "ERROR_DL_CRC"),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("CRC_DATA_ERROR_COUNT_L", ""),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("REPLAY_ERROR_COUNT_L", "ERROR_DL_REPLAY"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("RECOVERY_ERROR_COUNT_L", "ERROR_DL_RECOVERY"),
}
METRICS = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 100),
    "DCGM_FI_PROF_SM_ACTIVE": (pynvml.NVML_GPM_METRIC_SM_UTIL, 100),
    "DCGM_FI_PROF_SM_OCCUPANCY": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 100),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 100),
    "DCGM_FI_PROF_DRAM_ACTIVE": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 100),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": (pynvml.NVML_GPM_METRIC_FP64_UTIL, 100),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": (pynvml.NVML_GPM_METRIC_FP32_UTIL, 100),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": (pynvml.NVML_GPM_METRIC_FP16_UTIL, 100),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, 1 / MIB),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, 1 / MIB),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, 1 / MIB),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, 1 / MIB),
}
TEXTS = {
    "serial": "DCGM_FI_DEV_SERIAL",
    "vbios": "DCGM_FI_DEV_VBIOS_VERSION",
    "inforom.0": "DCGM_FI_DEV_OEM_INFOROM_VER",
    "inforom.1": "DCGM_FI_DEV_ECC_INFOROM_VER",
    "inforom.2": "DCGM_FI_DEV_POWER_INFOROM_VER",
    "image": "DCGM_FI_DEV_INFOROM_IMAGE_VER",
}
BRANDS = {"Tesla": pynvml.NVML_BRAND_TESLA, "Nvidia": pynvml.NVML_BRAND_NVIDIA, "GeForce": pynvml.NVML_BRAND_GEFORCE}


def told_as(load: DescribedLoad, device: MigDevice | None) -> Iterator[tuple[str, str | int]]:
    """The keys of a GPU, and their values now, for one entry of its load. `device`: its MIG device, if it is of one."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    said = {name: evaluate_curve(reading, now) for name, reading in load.readings.items()}
    if load.nvlink is not None:
        yield from _link(load.nvlink, said)
    elif load.mig:
        if device is not None:
            yield from _memory(f"mig.{device.mig_index}.", said)
            yield from _metrics(f"gi.{device.gpu_instance}.", said)
    else:
        yield from ((key, round(said[name] * factor)) for key, (name, factor) in PLAIN.items() if name in said)
        if "DCGM_FI_DEV_GPU_UTIL" in said:
            yield "utilization", f"{int(said['DCGM_FI_DEV_GPU_UTIL'])} {int(said['DCGM_FI_DEV_MEM_COPY_UTIL'])}"
        yield from ((f"field.{field}.0", int(said[name])) for name, field in FIELDS.items() if name in said)
        for name, (kibibytes, _) in BYTES.items():
            if name in said:
                yield f"field.{kibibytes}.{ALL_LINKS}", int(said[name] / 1024)
        yield from _memory("", said)
        yield from _metrics("", said)
        yield from ((key, load.texts[name]) for key, name in TEXTS.items() if name in load.texts)
        if "DCGM_FI_DEV_BRAND" in load.texts:
            yield "brand", BRANDS[load.texts["DCGM_FI_DEV_BRAND"]]


def _memory(whose: str, said: dict[str, float]) -> Iterator[tuple[str, str | int]]:
    if "DCGM_FI_DEV_FB_USED" in said:
        yield f"{whose}memory.used", int(said["DCGM_FI_DEV_FB_USED"] * MIB)
    if "DCGM_FI_DEV_FB_RESERVED" in said:
        yield f"{whose}memory.reserved", int(said["DCGM_FI_DEV_FB_RESERVED"] * MIB)


def _metrics(whose: str, said: dict[str, float]) -> Iterator[tuple[str, str | int]]:
    for name, (metric, factor) in METRICS.items():
        if name in said:
            yield "gpm", 1
            yield f"{whose}gpm.{metric}", repr(said[name] * factor)


def _link(link: int, said: dict[str, float]) -> Iterator[tuple[str, str | int]]:
    for name, (_, exact) in BYTES.items():
        if name in said:
            yield f"field.{exact}.{link}", int(said[name])
    for name, (own, later) in OF_LINKS.items():
        if name in said and link < 12:
            yield f"field.{getattr(pynvml, f'NVML_FI_DEV_NVLINK_{own}{link}')}.0", int(said[name])
        elif name in said and later:
            yield f"field.{getattr(pynvml, f'NVML_FI_DEV_NVLINK_{later}')}.{link}", int(said[name])
