"""NVML's events: an XID, a memory error, a GPU that is bound to the driver. Each is told the moment that it comes.

NVML tells no event twice, and none that occurred on a GPU before it was registered here. Which processes an XID
affected is asked of a GPU that just had one: it may never answer. So the XID is told before, and once more with them.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.nvidia.driver.computeprocesses import compute_process_ids
from gpuplane.node.hardware.nvidia.driver.errors import CallFailed
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml, Subject
from gpuplane.node.model.facts import FaultOccurred
from gpuplane.node.model.health import NONFATAL, XIDS_WITH_SEVERITY_IN_TEXT

XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
EVENT_CODES = {  # nvmlEventType*; changes of clocks, power state and power source are no news about health
    0x1: "ecc-single-bit",
    0x2: "ecc-double-bit",
    0x100: "mig-changed",
    0x200: "ecc-storm",
    0x400: "dram-retired",
    0x800: "dram-retirement-failed",
    0x1000: "poison-nonfatal",
    0x2000: "poison-fatal",
    0x4000: "gpu-unavailable",
    0x8000: "recovery-changed",
}
EVENT_MASK = sum(EVENT_CODES) | XID_EVENT
SYSTEM_EVENT_CODES = {1: "gpu-unbound", 2: "gpu-bound"}  # nvmlSystemEventTypeGpuDriver*
NO_INSTANCE = 0xFFFFFFFF  # of an instance's id
XIDS_WITHOUT_ANSWER = (79, 119, 120)
"""XIDs after which a GPU may not answer: it is off the bus, or its system processor is. Nothing is asked of it then."""
RETRY_PAUSE = 0.01  # seconds
SHORT_WAIT_MS = 1  # milliseconds; of none at all it is not written what it means
MAX_EVENTS_AT_ONCE = 64  # events taken together: a storm must not keep us from looking


class EventSet:
    """One event set, to which each GPU is added when it is first seen."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._registered: dict[str, Subject] = {}

    def register(self, subject: Subject) -> None:
        """Receive what this GPU can tell; a GPU that can tell nothing is no fault, one that fails to is."""
        if subject.gpu.uuid in self._registered:
            return
        before = len(subject.faults)
        supported = subject.ask(0, "nvmlDeviceGetSupportedEventTypes", subject.handle) & EVENT_MASK
        if supported and self._created():
            subject.ask(None, "nvmlDeviceRegisterEvents", subject.handle, supported, self._set)
        if len(subject.faults) == before:
            self._registered[subject.gpu.uuid] = Subject(self._nvml, subject.gpu, subject.handle)

    def wait(self, seconds: float) -> Iterator[FaultOccurred]:
        """What happens within the time: the first that does, and what has come with it."""
        if self._set is None:
            time.sleep(seconds)
            return
        began = time.monotonic()
        try:
            event = self._nvml.call("nvmlEventSetWait", self._set, int(seconds * 1000))
        except CallFailed as failed:
            if failed.error != "TIMEOUT":
                self._drop()
                time.sleep(seconds)
            elif time.monotonic() - began < seconds / 2:  # it may return early, and must not keep us busy
                time.sleep(min(seconds, RETRY_PAUSE))
            return
        yield from self._happened(event)
        with suppress(CallFailed):
            for _ in range(MAX_EVENTS_AT_ONCE - 1):
                yield from self._happened(self._nvml.call("nvmlEventSetWait", self._set, 0))

    def _happened(self, event: Any) -> Iterator[FaultOccurred]:
        at, kind = time.clock_gettime(time.CLOCK_BOOTTIME), event.eventType
        code = _xid_code(event.eventData) if kind == XID_EVENT else EVENT_CODES.get(kind)
        subject = next((each for each in self._registered.values() if _same(each.handle, event.device)), None)
        if code is None or subject is None:
            return
        instance = _instance(event.gpuInstanceId), _instance(event.computeInstanceId)
        happened = FaultOccurred(
            code=code,
            gpu=subject.gpu.uuid,
            message="",
            at=at,
            gpu_instance=instance[0],
            compute_instance=instance[1],
        )
        yield happened
        if kind == XID_EVENT and event.eventData not in XIDS_WITHOUT_ANSWER:
            pids = compute_process_ids(subject.part(subject.handle), (subject.handle,), instance)
            if pids:
                yield happened.but(pids=pids)

    def _created(self) -> bool:
        if self._set is None:
            try:
                self._set = self._nvml.call("nvmlEventSetCreate")
            except CallFailed:
                return False
        return True

    def _drop(self) -> None:
        """A set that fails is of no more use: the next look makes another."""
        with suppress(CallFailed):
            self._nvml.call("nvmlEventSetFree", self._set)
        self._set = None
        self._registered.clear()


class DriverBindings:
    """GPUs that were bound to the kernel's driver, or unbound. Older libraries tell none; a look shows it too."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._buffer = (pynvml.c_nvmlSystemEventData_v1_t * MAX_EVENTS_AT_ONCE)()
        self._set: Any = None
        with suppress(CallFailed):
            created = nvml.call("nvmlSystemEventSetCreate", pynvml.nvmlSystemEventSetCreateRequest_v1)
            version = pynvml.nvmlSystemRegisterEventRequest_v1
            nvml.call("nvmlSystemRegisterEvents", version, sum(SYSTEM_EVENT_CODES), created)
            self._set = created

    def take(self) -> Iterator[FaultOccurred]:
        """Those that there were since the last time."""
        if self._set is None:
            return
        version = pynvml.nvmlSystemEventSetWaitRequest_v1
        try:
            events = self._nvml.call(
                "nvmlSystemEventSetWait", version, self._set, SHORT_WAIT_MS, self._buffer, MAX_EVENTS_AT_ONCE
            )
        except CallFailed:
            self._set = None
            return
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        for event in events:
            code, place = SYSTEM_EVENT_CODES.get(event["eventType"]), event["gpuId"]
            if code is not None:
                yield FaultOccurred(code=code, gpu=_address(place), message="", at=at)


def _address(place: int) -> str:
    """The PCI address in a GPU's id: domain, bus and device, of 16, 8 and 8 bits."""
    return f"{place >> 16:04x}:{place >> 8 & 0xFF:02x}:{place & 0xFF:02x}.0"


def _instance(number: int) -> int | None:
    return None if number == NO_INSTANCE else number


def _same(one: Any, other: Any) -> bool:
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _xid_code(number: int) -> str:
    """The code of an XID. One whose gravity only its text tells counts as not fatal: the library gives no text.

    The line of the kernel log follows, and the next look tells the recovery action.
    """
    return f"xid-{number}{NONFATAL if number in XIDS_WITH_SEVERITY_IN_TEXT else ''}"
