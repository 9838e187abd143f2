"""GPM, the profiling counters of Hopper and later: shares and rates of the time between two samples of the library's.

A pair of samples is kept for each GPU and each GPU instance. nvml.h: nvmlGpmMetricsGet_t.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.nvidia.driver.counterqueries import CounterQueries, GpuNotAnswering, NoAnswer
from gpuplane.node.hardware.nvidia.driver.counters import GPM_METRICS, MIB, RATIO_FIELDS
from gpuplane.node.hardware.nvidia.driver.errors import ERROR_NAMES, GPU_FAULT_CODES

METRIC_STRUCT = struct.Struct("@IId3P")  # nvmlGpmMetric_t: id, error, value, and three names
WHOLE_GPU = None
"""The GPU itself, where a GPU instance could stand."""
FIRST_SAMPLE_ERROR = "NO_DATA"
"""What is missing after the first sample: there is no time between yet."""


class GpmRequest:
    """The question of one set of fields, as the library wants it; made once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.question = pynvml.c_nvmlGpmMetricsGet_t()
        self.question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self.question.numMetrics = len(names)
        for place, name in enumerate(names):
            self.question.metrics[place].metricId = GPM_METRICS[name]
        begin = type(self.question).metrics.offset
        self._answers = memoryview(self.question).cast("B")[begin : begin + len(names) * METRIC_STRUCT.size]

    def read(self) -> tuple[dict[str, float], dict[str, str]]:
        """What the library answered: (readings, what is missing)."""
        told, missing = dict[str, float](), dict[str, str]()
        for name, (_, error, value, *_) in zip(self.names, METRIC_STRUCT.iter_unpack(self._answers), strict=True):
            if error:
                missing[name] = ERROR_NAMES.get(error, str(error))
                if missing[name] in GPU_FAULT_CODES:
                    raise GpuNotAnswering(missing[name])
            else:
                told[name] = value / 100 if name in RATIO_FIELDS else value * MIB
        return told, missing


class GpmSamples:
    """The samples of one GPU."""

    def __init__(self, asker: CounterQueries) -> None:
        self._asker = asker
        self._pairs: dict[int | None, list[Any]] = {}  # of a GPU instance: the older sample, and the newer one
        self._filled: dict[int | None, bool] = {}

    def read(
        self, now: float, handle: Any, instance: int | None, wanted: GpmRequest
    ) -> tuple[dict[str, float], dict[str, str]]:
        """What happened since the last time: (readings, what is missing). Raises GpuNotAnswering."""
        try:
            return self._read(now, handle, instance, wanted)
        except NoAnswer as missing:
            self._filled.pop(instance, None)
            return {}, dict.fromkeys(wanted.names, missing.error)

    def _read(
        self, now: float, handle: Any, instance: int | None, wanted: GpmRequest
    ) -> tuple[dict[str, float], dict[str, str]]:
        ask = self._asker.ask
        if instance not in self._pairs:
            if not ask(now, "gpm", "nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
                self._asker.give_up(now, "gpm", "NOT_SUPPORTED")
            pair = [ask(now, "gpm-alloc", "nvmlGpmSampleAlloc") for _ in range(2)]
            self._pairs[instance] = pair
        pair = self._pairs[instance]
        if instance is WHOLE_GPU:
            ask(now, "gpm-get", "nvmlGpmSampleGet", handle, pair[0])
        else:
            ask(now, ("gpm-get", instance), "nvmlGpmMigSampleGet", handle, instance, pair[0])
        pair.reverse()
        if not self._filled.get(instance):
            self._filled[instance] = True
            return {}, dict.fromkeys(wanted.names, FIRST_SAMPLE_ERROR)
        wanted.question.sample1, wanted.question.sample2 = pair
        ask(now, "gpm-metrics", "nvmlGpmMetricsGet", wanted.question)
        return wanted.read()

    def free(self) -> None:
        """Give the samples back: the GPU, or its partitions, are others."""
        for pair in self._pairs.values():
            for sample in pair:
                with suppress(NoAnswer, GpuNotAnswering):
                    self._asker.ask(0.0, None, "nvmlGpmSampleFree", sample)
        self._pairs.clear()
        self._filled.clear()
