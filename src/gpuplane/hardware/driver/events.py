"""NVML's events: an XID, an ECC error, a GPU that wants a reset. Here they only end the wait for the next look."""

import time
from contextlib import suppress
from typing import Any

from gpuplane.hardware.driver.errors import Failed
from gpuplane.hardware.driver.nvml import Nvml, Subject

WANTED = (  # nvmlEventType*; changes of clocks, power state and power source are no news about health
    0x1  # SingleBitEccError
    | 0x2  # DoubleBitEccError
    | 0x8  # XidCriticalError
    | 0x200  # SingleBitEccErrorStorm
    | 0x400  # DramRetirementEvent
    | 0x800  # DramRetirementFailure
    | 0x1000  # NonFatalPoisonError
    | 0x2000  # FatalPoisonError
    | 0x4000  # GpuUnavailableError
    | 0x8000  # GpuRecoveryAction
)
PAUSE = 0.01  # seconds
AT_ONCE = 64  # events taken together: a storm must not keep us from looking


class Events:
    """One event set, to which each GPU is added when it is first seen."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._registered: set[str] = set()

    def register(self, subject: Subject) -> None:
        """Receive what this GPU can tell; a GPU that can tell nothing is no fault, one that fails to is."""
        if subject.gpu.uuid in self._registered:
            return
        before = len(subject.faults)
        supported = subject.ask(0, "nvmlDeviceGetSupportedEventTypes", subject.handle) & WANTED
        if supported and self._created():
            subject.ask(None, "nvmlDeviceRegisterEvents", subject.handle, supported, self._set)
        if len(subject.faults) == before:
            self._registered.add(subject.gpu.uuid)

    def wait(self, seconds: float) -> bool:
        """Whether something happened within the time."""
        if self._set is None:
            time.sleep(seconds)
            return False
        began = time.monotonic()
        try:
            self._nvml.call("nvmlEventSetWait", self._set, int(seconds * 1000))
        except Failed as failed:
            if failed.error != "TIMEOUT":
                self._drop()
                time.sleep(seconds)
            elif time.monotonic() - began < seconds / 2:  # it may return early, and must not keep us busy
                time.sleep(min(seconds, PAUSE))
            return False
        self._drain()
        return True

    def _drain(self) -> None:
        with suppress(Failed):
            for _ in range(AT_ONCE):
                self._nvml.call("nvmlEventSetWait", self._set, 0)

    def _created(self) -> bool:
        if self._set is None:
            try:
                self._set = self._nvml.call("nvmlEventSetCreate")
            except Failed:
                return False
        return True

    def _drop(self) -> None:
        """A set that fails is of no more use: the next look makes another."""
        with suppress(Failed):
            self._nvml.call("nvmlEventSetFree", self._set)
        self._set = None
        self._registered.clear()
