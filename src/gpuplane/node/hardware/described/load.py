"""What a described machine's counters say at a moment: pure, as the driver's process would tell it of such a machine.

A reading that the file does not say is missing, as one that a GPU does not support. A call that the file has fail takes
away what it would tell (`nvidia.driver.counters`), and is no fault of the GPU.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuplane.node.hardware.described.failures import has_no_handle, is_profiled, matches_call
from gpuplane.node.hardware.nvidia.driver.counters import (
    COMPUTE_PROCESSES_CALL,
    DRIVER_VERSION_FIELD,
    FRACTIONAL_FIELDS,
    MEMORY_FIELDS,
    MIG_FIELDS,
    PROCESS_UTILIZATION_CALL,
    UNCORRECTED_ERRORS_FIELD,
    add_link_sums,
    calls_of_field,
    calls_of_request,
    memory_readings,
    read_interval_of_field,
)
from gpuplane.node.hardware.nvidia.driver.errors import GPU_FAULT_CODES, NOT_SAMPLED_REASONS
from gpuplane.node.model.machine import Gpu, InjectedFailure, Machine, MachineFile, MigDevice
from gpuplane.node.model.telemetry import (
    SAMPLED_FIELDS,
    Curve,
    DescribedLoad,
    GpuSample,
    MigDeviceSample,
    ProcessSample,
    Sample,
    SamplingRequest,
)

MISSING_FIELD_ERROR = "NOT_SUPPORTED"


def evaluate_curve(reading: float | Curve, at: float) -> float:
    """What a reading is at a moment of CLOCK_BOOTTIME. Every curve begins at `low`, with the boot."""
    if not isinstance(reading, Curve):
        return reading
    periods = at / reading.period
    phase = periods % 1
    match reading.curve:
        case "counter":
            part = periods
        case "sine":
            part = (1 - math.cos(2 * math.pi * phase)) / 2
        case "triangle":
            part = 1 - abs(2 * phase - 1)
        case "square":
            part = float(phase >= 0.5)
        case "sawtooth":
            part = phase
    grown = reading.high if reading.curve == "counter" else reading.high - reading.low
    return reading.low + grown * part


def take_sample(file: MachineFile, shown: Machine, request: SamplingRequest, at: float, slow_at: float) -> Sample:
    """The sample of a moment. `shown`: what a look shows of the file. `slow_at`: when slow fields were read last."""
    moment = _Moment(file, request, at, slow_at)
    version = shown.driver.version if shown.driver is not None else ""
    return Sample(taken_at=at, gpus=tuple(moment.gpu(gpu, version) for gpu in shown.gpus or () if gpu.uuid))


@dataclass(frozen=True)
class _Moment:
    file: MachineFile
    request: SamplingRequest
    at: float
    slow_at: float

    def gpu(self, gpu: Gpu, version: str) -> GpuSample:
        """What a GPU tells."""
        fields = self.request.fields
        codes = [fault.code for fault in gpu.faults if fault.code in NOT_SAMPLED_REASONS]
        if has_no_handle(gpu, self.file):
            return _silent(gpu, fields, NOT_SAMPLED_REASONS[codes[0]] if codes else "UNKNOWN")
        failing = [failure for failure in self.file.failures if failure.gpu in (None, gpu.index)]
        errors = dict(self._errors(failing, gpu))
        if (ended := next((error for error in errors.values() if error in GPU_FAULT_CODES), None)) is not None:
            return _silent(gpu, fields, ended)
        there = {"", *(device.uuid for device in gpu.mig_devices)}
        own = [load for load in self.file.load if load.gpu == gpu.index and load.mig in there]
        links = dict(self._links(own, errors))
        readings = self._readings(
            [load for load in own if not load.mig and load.nvlink is None], gpu.memory_mib, errors
        )
        if (
            UNCORRECTED_ERRORS_FIELD in fields
            and gpu.uncorrected_errors is not None
            and not _error(UNCORRECTED_ERRORS_FIELD, errors)
        ):
            readings[UNCORRECTED_ERRORS_FIELD] = gpu.uncorrected_errors
        add_link_sums(readings, links, fields)
        texts = {name: text for load in own for name, text in load.texts.items()} | {DRIVER_VERSION_FIELD: version}
        texts = {name: texts[name] for name in fields if texts.get(name) and not _error(name, errors)}
        untold = (name for name in fields if name not in readings and name not in texts)
        return GpuSample(
            uuid=gpu.uuid,
            readings=readings,
            texts=texts,
            links=links,
            mig_devices=tuple(self._mig(device, own, errors) for device in gpu.mig_devices),
            processes=self._processes(gpu, errors) if self.request.processes else (),
            missing={name: _error(name, errors) or MISSING_FIELD_ERROR for name in untold},
        )

    def _errors(self, failures: Iterable[InjectedFailure], gpu: Gpu) -> Iterator[tuple[str, str]]:
        """Each function that fails → its error."""
        for function in calls_of_request(
            self.request, migs=bool(gpu.mig_devices), profiled=is_profiled(gpu, self.file)
        ):
            index = None if function.startswith("nvmlSystem") else gpu.index
            for failure in failures:
                if failure.gpu == index and matches_call(failure.nvml_function, function):
                    yield function, failure.error
                    break

    def _readings(
        self, loads: Iterable[DescribedLoad], memory: int, errors: Mapping[str, str], mig: bool = False
    ) -> dict[str, float]:
        said = {name: self._value(name, each) for load in loads for name, each in load.readings.items()}
        told = _memory(said, memory) | {name: value for name, value in said.items() if name not in MEMORY_FIELDS}
        wanted = (name for name in self.request.fields if not mig or name in MIG_FIELDS)
        return {name: told[name] for name in wanted if name in told and not _error(name, errors, mig)}

    def _value(self, name: str, reading: float | Curve) -> float:
        value = evaluate_curve(reading, self.at if read_interval_of_field(name) == "fast" else self.slow_at)
        return value if name in FRACTIONAL_FIELDS else math.floor(value)

    def _links(
        self, loads: Iterable[DescribedLoad], errors: Mapping[str, str]
    ) -> Iterator[tuple[int, Mapping[str, float]]]:
        for load in loads:
            told = {name: self._value(name, each) for name, each in load.readings.items()}
            wanted = {name: told[name] for name in self.request.fields if name in told and not _error(name, errors)}
            if load.nvlink is not None and wanted:
                yield load.nvlink, wanted

    def _mig(self, device: MigDevice, loads: Iterable[DescribedLoad], errors: Mapping[str, str]) -> MigDeviceSample:
        own = [load for load in loads if load.mig == device.uuid]
        return MigDeviceSample(device.uuid, self._readings(own, device.memory_mib, errors, mig=True))

    def _processes(self, gpu: Gpu, errors: Mapping[str, str]) -> tuple[ProcessSample, ...]:
        if COMPUTE_PROCESSES_CALL in errors:
            return ()
        own = [process for process in self.file.processes if process.gpu == gpu.index]
        counted = PROCESS_UTILIZATION_CALL not in errors and any(process.sm_percent is not None for process in own)
        told = (
            ProcessSample(
                pid=process.pid,
                started=process.started,
                cgroups=process.cgroups,
                memory_mib=process.memory_mib,
                sm_percent=math.floor(process.sm_percent or 0) if counted else None,  # who uses nothing is not listed
                gpu_instance=process.gpu_instance,
                compute_instance=process.compute_instance,
            )
            for process in own
        )
        return tuple(sorted(told, key=lambda process: process.pid))


def _memory(said: Mapping[str, float], memory: int) -> dict[str, float]:
    """What the driver would tell of memory: nothing where the file says neither what is used nor what is free."""
    own = {name: value for name, value in said.items() if name in MEMORY_FIELDS}
    used, free, reserved, total = (said.get(f"DCGM_FI_DEV_FB_{name}") for name in ("USED", "FREE", "RESERVED", "TOTAL"))
    whole, kept = total or memory, reserved or 0.0
    if used is not None and free is None and whole:
        free = max(0.0, whole - kept - used)
    elif free is not None and used is None and whole:
        used = max(0.0, whole - kept - free)
    if used is None or free is None:
        return own
    return memory_readings(whole or used + free + kept, used, free, reserved) | own


def _error(name: str, errors: Mapping[str, str], mig: bool = False) -> str:
    """The error because of which a field is not told; "" where nothing fails."""
    known = name in SAMPLED_FIELDS
    return next((errors[call] for call in calls_of_field(name, mig) if call in errors), "") if known else ""


def _silent(gpu: Gpu, fields: Iterable[str], error: str) -> GpuSample:
    """A GPU that is there, and tells nothing."""
    return GpuSample(uuid=gpu.uuid, missing=dict.fromkeys(fields, error))
