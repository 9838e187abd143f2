"""Samples: the counters of all GPUs, read on clocks of their own between two looks at the machine.

Fast fields are read for each sample, slow ones seldom, texts hardly ever; what is not read anew keeps its value. Of a
GPU that is skipped, or has just been found lost, nothing is asked. When its partitions change, all is asked anew.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.node.hardware.nvidia.driver.counterqueries import (
    INVALID_VALUE_ERROR,
    LASTING_ERROR_RETRY_INTERVAL,
    LASTING_ERRORS,
    CounterQueries,
    GpuNotAnswering,
    NoAnswer,
    valid_value_or_none,
)
from gpuplane.node.hardware.nvidia.driver.counters import (
    DRIVER_VERSION_FIELD,
    FIELD_QUERIES,
    FIELD_SOURCES,
    GPM_METRICS,
    MEMORY_CALL,
    MEMORY_FIELDS,
    MIB,
    RATIO_FIELDS,
    TEXT_QUERIES,
    FieldQuery,
    add_link_sums,
    memory_readings,
    read_interval_of_field,
)
from gpuplane.node.hardware.nvidia.driver.errors import NOT_SAMPLED_REASONS
from gpuplane.node.hardware.nvidia.driver.fieldvalues import FieldValues
from gpuplane.node.hardware.nvidia.driver.gpm import WHOLE_GPU, GpmRequest, GpmSamples
from gpuplane.node.hardware.nvidia.driver.gpuprocesses import GpuProcesses, ProcessIdentities
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml, Subject
from gpuplane.node.hardware.nvidia.driver.observation import Observer
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.telemetry import (
    LINK_FIELDS,
    GpuSample,
    MigDeviceSample,
    ProcessSample,
    Sample,
    SamplingRequest,
)

MEMORY_VERSION = 0x02000028  # nvmlMemory_v2: only that tells what is reserved
MIN_SAMPLE_INTERVAL = 0.05
"""Seconds between two samples, at the least: whoever asks for more is kept from starving the looks."""

EARLY_SAMPLE_TOLERANCE = 0.002
"""Seconds by which a sample may be taken too soon: the library counts waits in whole milliseconds."""

Readings = dict[str, float]
ReadingsAndErrors = tuple[Readings, dict[str, str]]  # what is told, and what is missing


class _SamplingPlan:
    """What a request means in calls."""

    def __init__(self, request: SamplingRequest) -> None:
        self.request = request
        fields = request.fields
        self.fast_fields = fast = [name for name in fields if read_interval_of_field(name) == "fast"]
        wanted = [query for query in FIELD_QUERIES if any(name in fields for name in query.tells)]
        self.fast = [query for query in wanted if any(name in fast for name in query.tells)]
        self.slow = [query for query in wanted if query not in self.fast]
        self.texts = [query for query in TEXT_QUERIES if any(name in fields for name in query.tells)]
        self.memory = any(name in MEMORY_FIELDS for name in fields)
        self.sources = [name for name in fields if name in FIELD_SOURCES]
        self.link_fields = [name for name in fields if name in LINK_FIELDS]
        metrics = [name for name in fields if name in GPM_METRICS]
        inside = [name for name in metrics if name in RATIO_FIELDS]
        self.metrics = GpmRequest(metrics) if metrics else None
        self.mig_metrics = GpmRequest(inside) if inside else None


@dataclass
class _GpuReadings:
    """What is remembered of one GPU. `key`: what makes it another one."""

    key: object
    asker: CounterQueries
    gpm: GpmSamples
    users: GpuProcesses
    values: FieldValues
    slow_at: float = -math.inf
    texts_at: float = -math.inf
    told: Readings = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    no_texts: dict[str, str] = field(default_factory=dict)  # texts → why they are missing

    def learn(self, found: ReadingsAndErrors) -> None:
        """Remember what was found."""
        self.told |= found[0]
        self.missing |= found[1]


class Sampler:
    """Takes samples of what an observer sees. `due`: when the next one is, on CLOCK_MONOTONIC."""

    def __init__(self, nvml: Nvml, observer: Observer, processes: ProcessIdentities, version: str) -> None:
        self._nvml, self._observer, self._processes, self._version = nvml, observer, processes, version
        self._plan = _SamplingPlan(SamplingRequest(processes=False))
        self._known: dict[str, _GpuReadings] = {}
        self._calls = 0
        self.due = math.inf

    def request(self, request: SamplingRequest) -> None:
        """Sample this from now on; at once, if that is another request than before."""
        if request != self._plan.request:
            self._plan = _SamplingPlan(request)
            self._forget(self._known)
            self.due = 0.0 if request.fields or request.processes else math.inf

    def put_off(self) -> None:
        """The next sample is due one interval later: what is missed is not made up for."""
        now, interval = time.monotonic() + EARLY_SAMPLE_TOLERANCE, max(self._plan.request.interval, MIN_SAMPLE_INTERVAL)
        self.due = now - now % interval + interval

    def take(self) -> Sample:
        """A sample, now."""
        now, before = time.monotonic(), self._nvml.calls
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        gpus = tuple(self._gpu(subject, now) for subject in self._observer.subjects if subject.gpu.uuid)
        self._forget(self._known.keys() - {gpu.uuid for gpu in gpus})
        self._processes.keep(process.pid for gpu in gpus for process in gpu.processes)
        self._calls += self._nvml.calls - before
        return Sample(taken_at=at, gpus=gpus, processes_visible=self._processes.visible(), calls=self._calls)

    def _gpu(self, subject: Subject, now: float) -> GpuSample:
        codes = [fault.code for fault in subject.faults if fault.code in NOT_SAMPLED_REASONS]
        if codes or not subject.handle:
            return self._silent(subject.gpu, NOT_SAMPLED_REASONS[codes[0]] if codes else "UNKNOWN")
        try:
            return self._read(subject, self._remember(subject), now)
        except GpuNotAnswering as lost:
            self._forget([subject.gpu.uuid])
            return self._silent(subject.gpu, lost.error)

    def _silent(self, gpu: Gpu, error: str) -> GpuSample:
        """A GPU that is there, and tells nothing."""
        return GpuSample(uuid=gpu.uuid, missing=dict.fromkeys(self._plan.request.fields, error))

    def _remember(self, subject: Subject) -> _GpuReadings:
        """What is known of a GPU. Nothing, once it has another index, other partitions or other NVLinks."""
        gpu, active = subject.gpu, self._observer.active_links(subject.gpu.uuid)
        parts = tuple((each.uuid, each.gpu_instance, each.profile) for each in gpu.mig_devices)
        key = (gpu.index, gpu.mig_enabled, parts, active)
        known = self._known.get(gpu.uuid)
        if known is None or known.key != key:
            self._forget([gpu.uuid])
            asker = CounterQueries(self._nvml, gpu.index)
            values = FieldValues(asker, self._plan.sources, self._plan.link_fields, active)
            known = _GpuReadings(key, asker, GpmSamples(asker), GpuProcesses(asker, self._processes), values)
            self._known[gpu.uuid] = known
        return known

    def _forget(self, uuids: Iterable[str]) -> None:
        for uuid in list(uuids):
            if (known := self._known.pop(uuid, None)) is not None:
                known.gpm.free()

    def _read(self, subject: Subject, known: _GpuReadings, now: float) -> GpuSample:
        plan, request, handle = self._plan, self._plan.request, subject.handle
        if slow := now - known.slow_at > request.slow_interval - request.interval / 2:
            known.slow_at, known.told, known.missing = now, {}, {}
        for name in plan.fast_fields:
            known.told.pop(name, None)
            known.missing.pop(name, None)
        self._ask(plan.slow if slow else (), known, handle, now, known.told, known.missing)
        self._ask(plan.fast, known, handle, now, known.told, known.missing)
        known.learn(known.values.read(now, handle, slow=slow))
        if plan.memory:
            known.learn(_read_memory(known.asker, "", handle, now))
        if plan.metrics is not None:
            known.learn(known.gpm.read(now, handle, WHOLE_GPU, plan.metrics))
        migs = self._observer.mig_handles(subject.gpu.uuid)
        devices = tuple(self._mig_devices(subject, known, now, migs))
        users: tuple[ProcessSample, ...] = known.users.read(now, handle, migs.values()) if request.processes else ()
        if now - known.texts_at > LASTING_ERROR_RETRY_INTERVAL:
            known.texts_at, known.texts, known.no_texts = now, {DRIVER_VERSION_FIELD: self._version}, {}
            self._ask(plan.texts, known, handle, now, known.texts, known.no_texts)
            if any(error not in LASTING_ERRORS for error in known.no_texts.values()):
                known.texts_at = now - LASTING_ERROR_RETRY_INTERVAL + request.slow_interval
        return self._assemble(subject.gpu, known).but(mig_devices=devices, processes=users)

    def _assemble(self, gpu: Gpu, known: _GpuReadings) -> GpuSample:
        """What is known of it by now, as far as it is asked for and can be true."""
        fields, errors = self._plan.request.fields, {**known.no_texts, **known.missing}
        told, links = dict(known.told), {link: dict(each) for link, each in known.values.links.items() if each}
        add_link_sums(told, links, fields)
        readings, texts = Readings(), dict[str, str]()
        for name in fields:
            if name in told:
                value = valid_value_or_none(name, told[name])
                if value is None:
                    errors[name] = INVALID_VALUE_ERROR
                else:
                    readings[name] = value
            elif known.texts.get(name):
                texts[name] = known.texts[name]
        absent = {
            name: errors.get(name, "NOT_SUPPORTED") for name in fields if name not in readings and name not in texts
        }
        return GpuSample(uuid=gpu.uuid, readings=readings, texts=texts, links=links, missing=absent)

    def _ask(
        self,
        queries: Iterable[FieldQuery],
        known: _GpuReadings,
        handle: Any,
        now: float,
        told: dict[str, Any],
        missing: dict[str, str],
    ) -> None:
        for query in queries:
            about = () if query.function.startswith("nvmlSystem") else (handle,)
            try:
                answer = known.asker.ask(
                    now, (query.function, query.arguments), query.function, *about, *query.arguments
                )
                told.update({name: convert(answer) for name, convert in query.tells.items()})
            except NoAnswer as untold:
                missing.update(dict.fromkeys(query.tells, untold.error))
            except (AttributeError, IndexError, TypeError, ValueError):
                missing.update(dict.fromkeys(query.tells, INVALID_VALUE_ERROR))

    def _mig_devices(
        self, subject: Subject, known: _GpuReadings, now: float, handles: Mapping[str, Any]
    ) -> Iterable[MigDeviceSample]:
        """Each MIG device. Profiling counters are those of its GPU instance."""
        plan, profiled = self._plan, dict[int, Readings]()
        for device in subject.gpu.mig_devices:
            told, handle = Readings(), handles.get(device.uuid)
            if plan.memory and handle is not None:
                told |= _read_memory(known.asker, device.uuid, handle, now)[0]
            if plan.mig_metrics is not None:
                if device.gpu_instance not in profiled:
                    part = known.gpm.read(now, subject.handle, device.gpu_instance, plan.mig_metrics)
                    profiled[device.gpu_instance] = part[0]
                told |= profiled[device.gpu_instance]
            found = {name: valid_value_or_none(name, told[name]) for name in plan.request.fields if name in told}
            yield MigDeviceSample(device.uuid, {name: value for name, value in found.items() if value is not None})


def _read_memory(asker: CounterQueries, whose: str, handle: Any, now: float) -> ReadingsAndErrors:
    """How much memory a GPU, or a MIG device, has and uses. Raises GpuNotAnswering."""
    try:
        return _sizes(asker, whose, handle, now), {}
    except NoAnswer as untold:
        return {}, dict.fromkeys(MEMORY_FIELDS, untold.error)


def _sizes(asker: CounterQueries, whose: str, handle: Any, now: float) -> Readings:
    """Memory by the newest version of the call that this library has. Raises NoAnswer, GpuNotAnswering."""
    try:
        memory = asker.ask(now, (MEMORY_CALL, whose, 2), MEMORY_CALL, handle, MEMORY_VERSION)
        reserved = memory.reserved / MIB
    except NoAnswer:
        memory, reserved = asker.ask(now, (MEMORY_CALL, whose), MEMORY_CALL, handle), None
    if not memory.used + memory.free:  # it tells the whole alone
        raise NoAnswer("NOT_SUPPORTED")
    return memory_readings(memory.total / MIB, memory.used / MIB, memory.free / MIB, reserved)
