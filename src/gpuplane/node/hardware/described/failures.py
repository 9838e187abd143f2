"""What a look shows of a described machine whose driver fails: the faults that the real driver's process would tell.

This follows the order in which that process asks (`nvidia.driver.observation`): a query that fails is a fault, one that
would need an answer that is missing is not made, and a hang or a crash leaves its own fault alone.
"""

from collections.abc import Collection, Sequence

from gpuplane.base.text import matches_pattern
from gpuplane.node.hardware.nvidia.driver.counters import GPM_METRICS, calls_of_request
from gpuplane.node.hardware.nvidia.driver.errors import (
    NO_ANSWER_ERRORS,
    NOT_SAMPLED_REASONS,
    UNKNOWN_PROFILE_FAULT,
    UNSUPPORTED_ERRORS,
    distinct_faults,
    driver_crash_fault,
    driver_fault,
    driver_hang_fault,
    gpu_crash_fault,
    gpu_fault,
    gpu_hang_fault,
)
from gpuplane.node.model.facts import MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault, Gpu, InjectedFailure, Machine, MachineFile, MigDevice
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from gpuplane.node.model.telemetry import SamplingRequest

INIT_CALLS = ("nvmlInit", "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount")
"""The calls without which there is no look, in their order."""

OPTIONAL_HEALTH_CALLS = ("CurrentClocksEventReasons", "CurrPcieLinkWidth", "MaxPcieLinkWidth", "VirtualizationMode")
"""What a GPU is asked about how it does, and need not tell."""


IDENTITY_CALLS = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")
"""The calls without which a GPU is asked nothing else."""

NO_SAMPLING = SamplingRequest(processes=False)


class _ProcessEnded(Exception):
    """The process that asks would hang or be gone now."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class _Subject:
    """A GPU, or a MIG device of it, that is asked about."""

    def __init__(self, failures: Sequence[InjectedFailure]) -> None:
        self.failures, self.faults = failures, list[Fault]()

    def ask(self, function: str, fine: Collection[str] = UNSUPPORTED_ERRORS) -> bool:
        """Whether there is an answer; errors named in `fine` are no faults. Raises _Ended."""
        failure = next((each for each in self.failures if matches_call(each.nvml_function, function)), None)
        if failure is None:
            return True
        if failure.effect != "error":
            raise _ProcessEnded((gpu_hang_fault if failure.effect == "hang" else gpu_crash_fault)(function))
        if failure.error not in fine:
            self.faults.append(gpu_fault(function, failure.error))
        return False


def observed_facts(
    file: MachineFile, name: str, sampling: SamplingRequest = NO_SAMPLING
) -> list[StatusChanged[DriverStatus] | MachineObserved]:
    """What a look at this machine tells while this is sampled: a hang is a hang whoever asks."""
    machine = Machine(**{field: getattr(file, field) for field in Machine.__struct_fields__})
    general = [failure for failure in file.failures if failure.gpu is None]
    if (silent := next((each for each in general if each.effect == "hang"), None)) is not None:
        return _failing(machine, driver_hang_fault(_first(silent.nvml_function)))
    for function in INIT_CALLS:
        failure = next((each for each in general if matches_call(each.nvml_function, function)), None)
        if failure is not None:
            return _failing(
                machine,
                driver_crash_fault(function) if failure.effect == "crash" else driver_fault(function, failure.error),
            )
    seen = sum(_seen(gpu, file) for gpu in machine.gpus or ())
    gpus = machine.gpus and tuple(_shown(gpu, file, seen, sampling) for gpu in machine.gpus)
    return [
        MachineObserved(machine.but(gpus=gpus)),
        StatusChanged(DRIVER_PART, DriverStatus("ok", f"described by {name}")),
    ]


def _failing(machine: Machine, fault: Fault) -> list[StatusChanged[DriverStatus] | MachineObserved]:
    return [
        MachineObserved(machine.but(gpus=None, faults=(*machine.faults, fault))),
        StatusChanged(DRIVER_PART, DriverStatus("failing", fault.message, fault.code)),
    ]


def _shown(gpu: Gpu, file: MachineFile, count: int, sampling: SamplingRequest) -> Gpu:
    failures = [failure for failure in file.failures if failure.gpu == gpu.index]
    if not failures:
        return gpu
    subject = _Subject(failures)
    try:
        gpu = _look(subject, gpu, count)
        if not has_no_handle(gpu, file):
            for function in calls_of_request(sampling, migs=bool(gpu.mig_devices), profiled=is_profiled(gpu, file)):
                _Subject(failures).ask(function)
    except _ProcessEnded as ended:
        return gpu.but(faults=(*gpu.faults, ended.fault))
    return gpu.but(faults=distinct_faults((*gpu.faults, *subject.faults)))


def has_no_handle(gpu: Gpu, file: MachineFile) -> bool:
    """Whether there is nothing to ask this GPU's counters with, by a fault that it shows or by what fails."""
    failures = [failure for failure in file.failures if failure.gpu == gpu.index]
    return any(fault.code in NOT_SAMPLED_REASONS for fault in gpu.faults) or any(
        matches_call(failure.nvml_function, function) for failure in failures for function in IDENTITY_CALLS
    )


def is_profiled(gpu: Gpu, file: MachineFile) -> bool:
    """Whether this GPU supports GPM: its load has a field that only GPM tells."""
    return any(load.gpu == gpu.index and not load.readings.keys().isdisjoint(GPM_METRICS) for load in file.load)


def _seen(gpu: Gpu, file: MachineFile) -> bool:
    """Whether the others are asked how far it is from them: it has a handle, and nothing ends with it."""
    subject = _Subject([failure for failure in file.failures if failure.gpu == gpu.index])
    try:
        _look(subject, gpu, 1)
        return subject.ask("nvmlDeviceGetHandleByIndex") and subject.ask("nvmlDeviceGetUUID")
    except _ProcessEnded:
        return False


def _look(subject: _Subject, gpu: Gpu, count: int) -> Gpu:
    """Ask as the driver's process does: the GPU, its MIG devices with their faults."""
    if not (subject.ask("nvmlDeviceGetHandleByIndex") and subject.ask("nvmlDeviceGetUUID")):
        return gpu
    for thing in ("Name", "MinorNumber", "CudaComputeCapability", "PciInfo"):
        subject.ask(f"nvmlDeviceGet{thing}")
    mig, named = gpu.mig, subject.ask("nvmlDeviceGetMemoryInfo")
    if subject.ask("nvmlDeviceGetMigMode") and mig is not None and mig.enabled:
        mig = mig.but(devices=_look_inside(subject, mig.devices, named))
    if subject.ask("nvmlDeviceGetNvLinkState") and gpu.links:
        typed = subject.ask("nvmlDeviceGetNvLinkRemoteDeviceType")
        if not typed or any(link.peer != "nvswitch" for link in gpu.links):
            subject.ask("nvmlDeviceGetNvLinkRemotePciInfo")
    if count > 1:
        subject.ask("nvmlDeviceGetTopologyCommonAncestor")
    counted = subject.ask("nvmlDeviceGetFieldValues", fine=NO_ANSWER_ERRORS)
    for thing in OPTIONAL_HEALTH_CALLS:
        subject.ask(f"nvmlDeviceGet{thing}", fine=NO_ANSWER_ERRORS)
    joined = subject.ask("nvmlDeviceGetGpuFabricInfoV", fine=NO_ANSWER_ERRORS)
    if subject.ask("nvmlDeviceGetSupportedEventTypes"):
        subject.ask("nvmlDeviceRegisterEvents")
    return gpu.but(
        mig=mig,
        uncorrected_errors=gpu.uncorrected_errors if counted else None,
        fabric=gpu.fabric if joined else None,
    )


def _look_inside(subject: _Subject, devices: tuple[MigDevice, ...], named: bool) -> tuple[MigDevice, ...]:
    if not (subject.ask("nvmlDeviceGetMaxMigDeviceCount") and subject.ask("nvmlDeviceGetMigDeviceHandleByIndex")):
        return devices
    if devices:
        named &= subject.ask("nvmlDeviceGetGpuInstanceProfileInfo")
    return tuple(_part(subject.failures, device, named) for device in devices)


def _part(failures: Sequence[InjectedFailure], device: MigDevice, named: bool) -> MigDevice:
    part = _Subject(failures)
    named &= part.ask("nvmlDeviceGetAttributes")
    instance = part.ask("nvmlDeviceGetGpuInstanceId")
    part.ask("nvmlDeviceGetComputeInstanceId")
    named &= instance and part.ask("nvmlDeviceGetGpuInstanceById") and part.ask("nvmlGpuInstanceGetInfo")
    faults = part.faults or ([] if named else [UNKNOWN_PROFILE_FAULT])
    return device.but(faults=(*device.faults, *faults))


def matches_call(pattern: str, function: str) -> bool:
    """Whether a pattern means a function, whatever version of it the library has."""
    return any(matches_pattern(pattern, function + version) for version in ("", "_v2", "_v3"))


def _first(pattern: str) -> str:
    """The first call about no GPU that a pattern means."""
    return next((function for function in INIT_CALLS if matches_call(pattern, function)), pattern)
