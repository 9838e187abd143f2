"""Samples of described machines."""

import math

from gpuplane.node.hardware.described.failures import observed_facts
from gpuplane.node.hardware.described.load import take_sample
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, GpuSample, Sample, SamplingRequest

ALL = SamplingRequest(fields=tuple(sorted(SAMPLED_FIELDS)))


def sample(text: str, request: SamplingRequest = ALL, at: float = 0.0, slow_at: float = math.nan) -> Sample:
    """What the machine of a file tells at a moment."""
    file = read_machine(text.encode(), "m.yaml")
    facts = observed_facts(file, "m.yaml", request)
    shown = next((fact.machine for fact in facts if isinstance(fact, MachineObserved)), Machine())
    return take_sample(file, shown, request, at, at if math.isnan(slow_at) else slow_at)


def only(taken: Sample) -> GpuSample:
    """The one GPU."""
    [gpu] = taken.gpus
    return gpu
