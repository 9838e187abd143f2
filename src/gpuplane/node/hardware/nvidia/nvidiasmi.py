"""nvidia-smi, for what NVML cannot change: how long the time slices of a GPU are, and a reset.

    nvidia-smi compute-policy -i <UUID> --set-timeslice 0|1|2|3
    nvidia-smi --gpu-reset -i <UUID>

It is a client of the driver as our own processes are (`driverprocess`): it may hang, it is killed and never waited for,
and it ends with the agent. Else one that a dead agent left would undo what the next one does. It is refused where the
GPU has no length to set (those before Pascal, and some of Pascal), and to whoever has not CAP_SYS_ADMIN, as root in an
ordinary container has not (`os_is_administrator` of NVIDIA's open kernel modules).

Its library is loaded before it, as NVIDIA's DRA driver does it (cmd/gpu-kubelet-plugin/nvlib.go): by a library path it
would get the C library of the driver root, too.
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gpuplane.base.diewithparent import die_with_parent
from gpuplane.base.files import untrusted_reason
from gpuplane.base.text import clip
from gpuplane.node.hardware.nvidia.driver.callpage import AnnouncedCall
from gpuplane.node.hardware.nvidia.driver.driverroot import find_library, find_program
from gpuplane.node.hardware.nvidia.driver.errors import ERROR_NAMES
from gpuplane.node.hardware.nvidia.process import Process, start_process
from gpuplane.node.model.config import TimeSlice

PROGRAM_NAME = "nvidia-smi"
TIME_SLICE_VALUES: dict[TimeSlice, str] = {"default": "0", "short": "1", "medium": "2", "long": "3"}
MAX_OUTPUT_SIZE = 1 << 16  # bytes for what it says


class NvidiaSmi(Process):
    """One run of nvidia-smi, about one GPU. What it says goes to memory, so that it never waits for us; there is room
    for so much and no more."""

    def __init__(
        self, driver_root: str, index: int | None, arguments: Sequence[str], library_folders: tuple[str, ...] = ()
    ) -> None:
        """`index`: of the GPU that it is about. `library_folders`: where its library is looked for first. Raises
        OSError."""
        self._index, self._does = index, arguments[0]
        self._output = os.memfd_create(PROGRAM_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._output, MAX_OUTPUT_SIZE)
            fcntl.fcntl(self._output, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
            command = die_with_parent([str(_find(driver_root)), *arguments])
            environment = {**os.environ, **_preloaded(driver_root, library_folders)}
            super().__init__(start_process(command, stdout=self._output, stderr=self._output, env=environment))
        except OSError:
            os.close(self._output)
            raise

    def announced(self) -> AnnouncedCall:
        """What it does, as a driver's process says it."""
        return AnnouncedCall(since=self.started, function=f"{PROGRAM_NAME} {self._does}", gpu=self._index)

    def error(self) -> str:
        """The NVML error by whose number it ended (nvidia-smi(1), RETURN VALUE); "" for none."""
        return ERROR_NAMES.get(self.status() or 0, "")

    def outcome(self) -> tuple[str, bool]:
        """Why it did not do what it should, "" if it did; and whether it may have done it all the same.

        To be asked once, when it has ended or cannot be ended.
        """
        output = os.pread(self._output, MAX_OUTPUT_SIZE, 0)
        os.close(self._output)
        said = clip(output.rstrip(b"\0").decode(errors="replace"))
        if output[-1]:
            said += f" (its output has more than {MAX_OUTPUT_SIZE >> 10} KiB)"
        match self.status():
            case 0:
                return "", False
            case int(status) if status > 0 and said:
                return f"{PROGRAM_NAME}: {said}", False
            case status:
                return f"{PROGRAM_NAME} ended: {self.end_reason()}", status is None or status < 0


def _find(driver_root: str) -> Path:
    found = find_program(driver_root, PROGRAM_NAME) or shutil.which(PROGRAM_NAME)
    if found is None:
        raise FileNotFoundError(None, f"not found under {driver_root} or on PATH", PROGRAM_NAME)
    return Path(_roots(found))


def time_slice_arguments(gpu: str, length: TimeSlice) -> tuple[str, ...]:
    """What sets how long the time slices of a GPU (its UUID) are."""
    return "compute-policy", "-i", gpu, "--set-timeslice", TIME_SLICE_VALUES[length]


def reset_arguments(gpu: str) -> tuple[str, ...]:
    """What resets a GPU (its UUID)."""
    return "--gpu-reset", "-i", gpu


def _preloaded(driver_root: str, library_folders: tuple[str, ...]) -> dict[str, str]:
    """The environment in which it finds its library."""
    path = find_library(driver_root, library_folders)
    if path is None:
        return {}
    return {"LD_PRELOAD": " ".join(filter(None, (_roots(path), os.environ.get("LD_PRELOAD"))))}


def _roots(path: str) -> str:
    """What root may run, for nobody else can change it. Raises PermissionError."""
    if reason := untrusted_reason(path, follow=True):
        raise PermissionError(None, f"not run, because {reason}", path)
    return path
