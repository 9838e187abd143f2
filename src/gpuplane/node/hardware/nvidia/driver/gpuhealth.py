"""How a GPU does: what it tells of its own health, beside whether it answers at all.

Fields, states and reasons are numbered as in nvml.h. What decides whether a GPU may be given out is asked at every
look, in one call for all of it; the rest at every thorough look, and told again until the next. What a GPU does not
tell is no fault. No message has a number that moves: looks that show the same have to be equal.

NVLinks recover from errors by themselves, and now and then one does. They are erroring when their counters were seen to
grow at `LINK_ERROR_GROWTHS` thorough looks of the last `LINK_ERROR_WINDOW`: again and again, whatever the amount.
"""

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.nvidia.driver.errors import (
    ERROR_NAMES,
    GPU_FAULT_CODES,
    NO_ANSWER_ERRORS,
    describe_error,
    gpu_fault,
)
from gpuplane.node.hardware.nvidia.driver.nvml import Subject
from gpuplane.node.model.machine import FabricClique, Fault

LINK_ERROR_GROWTHS, LINK_ERROR_WINDOW = 3, 60.0  # seconds
RETIRABLE_PAGES = 64
"""Pages that a GPU without row remapping can retire (NVIDIA: Dynamic Page Retirement)."""

FieldOfLink: TypeAlias = tuple[int, int]  # NVML_FI_DEV_*, and the NVLink that it is asked of

UNCORRECTED_ERRORS_FIELD = (4, 0)  # ECC_DBE_VOL_TOTAL
RETIRED_PAGES_FIELDS = ((29, 0), (30, 0))  # RETIRED_SBE, RETIRED_DBE
FAULT_OF_FIELD_VALUE: Mapping[FieldOfLink, Mapping[int, Fault]] = {
    (230, 0): {  # GET_GPU_RECOVERY_ACTION
        1: Fault(code="recovery-reset", message="the driver asks for a reset of the GPU"),
        2: Fault(code="recovery-reboot", message="the driver asks for a reboot of the node"),
        3: Fault(code="recovery-drain", message="the driver asks to stop all peer-to-peer traffic"),
        4: Fault(code="recovery-drain", message="the driver asks for a drain and a reset of the GPU"),
        5: Fault(code="recovery-fabric", message="the driver asks to recover the IMEX domain"),
        6: Fault(code="recovery-reset", message="the driver asks for a reset of the GPU's bus"),
        7: Fault(code="recovery-reboot", message="the driver asks for a reboot of the system"),
    },
    # REMAPPED_PENDING, REMAPPED_FAILURE, PENDING_BANK_REMAPPING, RETIRED_PENDING
    (144, 0): {1: Fault(code="remap-pending", message="a memory row needs a GPU reset before it can be remapped")},
    (145, 0): {1: Fault(code="remap-failed", message="a row could not be remapped")},
    (307, 0): {1: Fault(code="remap-pending", message="a memory bank needs a GPU reset before it can be remapped")},
    (31, 0): {1: Fault(code="pages-pending", message="a memory page needs a GPU reset before it can be retired")},
}
PAGES_EXHAUSTED_FAULT = Fault(code="pages-exhausted", message=f"all {RETIRABLE_PAGES} retirable pages are retired")
THOROUGH_FIELDS = ((307, 0), *RETIRED_PAGES_FIELDS)
FREQUENT_FIELDS = (UNCORRECTED_ERRORS_FIELD, *(field for field in FAULT_OF_FIELD_VALUE if field not in THOROUGH_FIELDS))

CLOCK_EVENT_REASONS = (  # nvmlClocksEventReason*
    (0x20 | 0x40, Fault(code="thermal-slowdown", message="its clocks are reduced because of its temperature")),
    (0x80, Fault(code="power-slowdown", message="its clocks are reduced by the power brake")),
)
FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 1, 2, 3  # NVML_GPU_FABRIC_STATE_*
GPU_LINK_ERROR_FIELDS = ((52, 0), (59, 0))  # NVLINK_REPLAY_ERROR_COUNT_TOTAL, NVLINK_RECOVERY_ERROR_COUNT_TOTAL
LINK_ERROR_FIELDS = (161, 162, 215)  # of one NVLink: ERROR_DL_REPLAY, ERROR_DL_RECOVERY, COUNT_LINK_RECOVERY_EVENTS
NVLINK_ERRORS_FAULT = Fault(code="nvlink-errors", message="its NVLinks have repeated errors")

FIELD_VALUE_STRUCT = struct.Struct("<IIqqIIQ")  # nvmlFieldValue_t: field, scope, time, latency, type, error, value
BITS_OF_VALUE_TYPE = {1: 32, 2: 64, 3: 64, 4: 63, 5: 31, 6: 16}
"""How many bits of a value count, by nvmlValueType_t; what is asked here is never negative, nor a fraction."""


@dataclass(frozen=True)
class _ErrorCounter:
    """A counter of errors: what it was last, and when it was seen to grow."""

    count: int
    at: tuple[float, ...] = ()

    def after(self, count: int, now: float) -> "_ErrorCounter":
        at = tuple(each for each in self.at if now - each <= LINK_ERROR_WINDOW)
        return _ErrorCounter(count, (*at, now) if count > self.count else at)


class GpuHealth:
    """What is remembered from one look to the next."""

    def __init__(self) -> None:
        self._seldom: dict[str, tuple[FabricClique | None, tuple[Fault, ...]]] = {}
        self._growth: dict[str, _ErrorCounter] = {}

    def observe(self, subject: Subject, links: Sequence[int], now: float, thorough: bool) -> None:
        """Tell a GPU how it does. `links`: its active NVLinks. `now` counts seconds."""
        told = _fields(subject, FREQUENT_FIELDS)
        subject.gpu = subject.gpu.but(uncorrected_errors=told.get(UNCORRECTED_ERRORS_FIELD))
        subject.faults += _signs(told)
        function = "nvmlDeviceGetCurrentClocksEventReasons"
        reasons = subject.ask(0, function, subject.handle, fine=NO_ANSWER_ERRORS)
        subject.faults += [fault for reason, fault in CLOCK_EVENT_REASONS if reasons & reason]
        clique, faults = self._kept(subject, links, now, thorough)
        subject.gpu = subject.gpu.but(fabric=clique)
        subject.faults += faults

    def _kept(
        self, subject: Subject, links: Sequence[int], now: float, thorough: bool
    ) -> tuple[FabricClique | None, Sequence[Fault]]:
        """What is asked at thorough looks alone, and again for as long as a part of it fails."""
        uuid = subject.gpu.uuid
        known = self._seldom.get(uuid)
        if known is not None and not thorough:
            return known
        part = subject.part(subject.handle)
        signs = (*_signs(_fields(part, THOROUGH_FIELDS)), *_width(part), *_license(part))
        clique, fabric = _fabric(part)
        found = (*signs, *fabric, *self._links(part, links, now))
        self._seldom.pop(uuid, None)
        if not part.faults:
            self._seldom[uuid] = clique, found
        return clique, (*part.faults, *found)

    def _links(self, subject: Subject, links: Sequence[int], now: float) -> Iterator[Fault]:
        if not links:
            return
        uuid = subject.gpu.uuid
        told = _fields(
            subject, (*GPU_LINK_ERROR_FIELDS, *((field, link) for link in links for field in LINK_ERROR_FIELDS))
        )
        count = sum(told.values())
        growth = self._growth.get(uuid, _ErrorCounter(count)).after(count, now)
        if told:
            self._growth[uuid] = growth
        if len(growth.at) >= LINK_ERROR_GROWTHS:
            yield NVLINK_ERRORS_FAULT


def _fields(subject: Subject, fields: Sequence[FieldOfLink]) -> dict[FieldOfLink, int]:
    """What is told of these. Which there are differs by GPU and driver, and so does how an absent one is said."""
    function = "nvmlDeviceGetFieldValues"
    values = subject.ask(b"", function, subject.handle, fields, fine=NO_ANSWER_ERRORS)
    told: dict[FieldOfLink, int] = {}
    for field, link, _, _, kind, error, value in FIELD_VALUE_STRUCT.iter_unpack(bytes(values)):
        if error == pynvml.NVML_SUCCESS and kind in BITS_OF_VALUE_TYPE:
            told[field, link] = value & (1 << BITS_OF_VALUE_TYPE[kind]) - 1
        elif (name := ERROR_NAMES.get(error)) in GPU_FAULT_CODES:
            subject.faults.append(gpu_fault(function, str(name)))
    return told


def _signs(told: Mapping[FieldOfLink, int]) -> Iterator[Fault]:
    for field, value in told.items():
        if (sign := FAULT_OF_FIELD_VALUE.get(field, {}).get(value)) is not None:
            yield sign
    if sum(told.get(field, 0) for field in RETIRED_PAGES_FIELDS) >= RETIRABLE_PAGES:
        yield PAGES_EXHAUSTED_FAULT


def _width(subject: Subject) -> Iterator[Fault]:
    now, most = (
        subject.ask(0, f"nvmlDeviceGet{which}PcieLinkWidth", subject.handle, fine=NO_ANSWER_ERRORS)
        for which in ("Curr", "Max")
    )
    if 0 < now < most:
        yield Fault(code="pcie-degraded", message=f"its PCIe link has {now} of {most} lanes")


def _license(subject: Subject) -> Iterator[Fault]:
    """Whether a virtual GPU has a license; only the driver of a guest asks for one (NVIDIA vGPU: Licensing Guide)."""
    mode = subject.ask(None, "nvmlDeviceGetVirtualizationMode", subject.handle, fine=NO_ANSWER_ERRORS)
    if mode != pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
        return
    told = subject.ask(None, "nvmlDeviceGetGridLicensableFeatures_v4", subject.handle, fine=NO_ANSWER_ERRORS)
    if told is None or not told.isGridLicenseSupported:
        return
    features = told.gridLicensableFeatures[: told.licensableFeaturesCount]
    if features and not any(each.featureState for each in features):
        yield Fault(code="vgpu-unlicensed", message="it is a virtual GPU, and its license is not granted")


def _fabric(subject: Subject) -> tuple[FabricClique | None, tuple[Fault, ...]]:
    """Where it is in the NVLink fabric, and what is wrong with its registration; GPUs without a fabric tell neither.

    An NVLink domain that is no larger than the node has no UUID, and is no fabric here (go-nvlib: IsFabricAttached).
    """
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if (
        subject.ask(None, "nvmlDeviceGetGpuFabricInfoV", subject.handle, ctypes.byref(info), fine=NO_ANSWER_ERRORS)
        is None
    ):
        return None, ()
    if info.state in (FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS):
        how = "has not begun" if info.state == FABRIC_NOT_STARTED else "is under way"
        return None, (Fault(code="fabric-pending", message=f"its registration with the NVLink fabric {how}"),)
    if info.state == FABRIC_COMPLETED and info.status != pynvml.NVML_SUCCESS:
        failed = describe_error(
            "its registration with the NVLink fabric failed", ERROR_NAMES.get(info.status, str(info.status))
        )
        return None, (Fault(code="fabric-failed", message=failed),)
    cluster = ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, 16)  # the field ends at a zero
    if info.state != FABRIC_COMPLETED or not any(cluster):
        return None, ()
    digits = cluster.hex()
    groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return FabricClique(cluster="-".join(groups), clique=info.cliqueId), ()
