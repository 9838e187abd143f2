"""The driver's library: where it is, whether it can be used, and what would make another try worth while."""

import ctypes
import os
import sys
from typing import TypeAlias

from gpuplane.base.files import open_regular_file, untrusted_reason
from gpuplane.node.hardware.nvidia.driver.channel import DriverOptions
from gpuplane.node.hardware.nvidia.driver.driverroot import (
    NVML_SONAME,
    describe_search,
    find_library,
    library_candidates,
)
from gpuplane.node.hardware.nvidia.driver.errors import CallFailed, driver_fault
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml
from gpuplane.node.model.machine import Driver, Fault

ELF_MACHINES = {0x03: "x86", 0x28: "arm", 0x3E: "x86-64", 0xB7: "aarch64", 0xF3: "RISC-V"}  # ELF's e_machine

INSTALL_HINT = "is NVIDIA's driver installed, and mounted into this container?"

LibraryState: TypeAlias = tuple[object, ...]


class DriverUnusable(Exception):
    """The driver cannot be used at all, by the fault that says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def load_library(nvml: Nvml, options: DriverOptions, files: KernelFiles) -> Driver:
    """Load the library and initialize it. Raises DriverUnusable."""
    path = _path(options)
    try:
        _load(path, options)
        nvml.call("nvmlInit")
        return Driver(version=nvml.call("nvmlSystemGetDriverVersion"), cuda=_cuda(nvml))
    except CallFailed as failed:
        fault = driver_fault(failed.function, failed.error)
        if fault.code == "driver-mismatch":
            version = files.kernel_version() or "unknown"
            ours = os.path.basename(os.path.realpath(path)) if path else NVML_SONAME
            fault = fault.but(message=f"{fault.message}: the kernel has {version}, the library is {ours}")
        raise DriverUnusable(fault) from None


def library_state(options: DriverOptions, files: KernelFiles) -> LibraryState:
    """What decides whether the library can be used: another try is worth while when it changes."""
    return (
        tuple(map(_stat, [options.library] if options.library else _candidates(options))),
        *kernel_driver_state(files),
    )


def kernel_driver_state(files: KernelFiles) -> LibraryState:
    """What a library that is in use cannot see change: the kernel's driver, and the GPUs that it has."""
    return (files.kernel_version(), files.gpus(), files.nodes.exists("/dev/nvidiactl"))


def _path(options: DriverOptions) -> str | None:
    """The library's file; None where the dynamic linker shall find it."""
    return options.library or find_library(options.driver_root, options.library_folders)


def _candidates(options: DriverOptions) -> list[str]:
    return library_candidates(options.driver_root, options.library_folders)


def _load(path: str | None, options: DriverOptions) -> None:
    # nvidia-ml-py loads by soname, and the dynamic linker answers with what is loaded under that name.
    if path is not None:
        _check_file(path, options.root_chosen)
    try:
        ctypes.CDLL(path or NVML_SONAME)
    except OSError as error:
        if "No such file" in str(error):
            searched = describe_search(options.driver_root, options.library_folders)
            raise DriverUnusable(_missing(f"{error}; {searched}", options.root_chosen)) from None
        raise DriverUnusable(Fault(code="driver-unusable", message=f"the library cannot be loaded: {error}")) from None


def _check_file(path: str, chosen: str) -> None:
    """The dynamic linker says "no such file" of a library for another machine; this says what it is.

    And one that somebody else could change would have the agent do what they want.
    """
    try:
        if reason := untrusted_reason(path, follow=True):
            raise DriverUnusable(Fault(code="driver-unusable", message=f"{path} is not loaded: {reason}"))
        header, own = _header(path), _header(sys.executable)
    except FileNotFoundError:
        raise DriverUnusable(_missing(f"{path}: no such file", chosen)) from None
    except OSError as error:
        raise DriverUnusable(Fault(code="driver-unusable", message=f"{path}: {error.strerror}")) from None
    if header[:4] != b"\x7fELF":
        raise DriverUnusable(Fault(code="driver-unusable", message=f"{path} is not a shared library"))
    if (header[4], header[18:20]) != (own[4], own[18:20]):
        message = f"{path} is a library for {_machine(header)}, but this agent runs on {_machine(own)}"
        raise DriverUnusable(Fault(code="driver-unusable", message=message))


def _missing(what: str, chosen: str) -> Fault:
    return Fault(code="driver-missing", message="; ".join(filter(None, (what, INSTALL_HINT, chosen))))


def _header(path: str) -> bytes:
    with open_regular_file(path) as file:
        return os.read(file, 20).ljust(20, b"\0")


def _machine(header: bytes) -> str:
    number = int.from_bytes(header[18:20], "little")
    return f"{ELF_MACHINES.get(number, f'ELF machine {number}')} ({32 if header[4] == 1 else 64} bits)"


def _stat(path: str) -> object:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _cuda(nvml: Nvml) -> str:
    for function in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        try:
            version: int = nvml.call(function)
        except CallFailed:
            continue
        return f"{version // 1000}.{version % 1000 // 10}"
    return ""
