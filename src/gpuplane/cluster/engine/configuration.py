"""By which policy pods are placed, and which requests it expects: the configuration of placement (docs/placement.md).

    policy: waste-price:1+spread:0.1
    expected:
    - {gpus: 1, milli: 500, cpuMilli: 4000, weight: 30}
    - {gpus: 8, models: [NVIDIA-A100-SXM4-80GB], cpuMilli: 64000}
    arrivals: 1000

Nothing here needs NumPy: a command line is checked before anything large is imported.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from gpuplane.base.strict import DocumentPath, load_yaml_as
from gpuplane.base.value import Value
from gpuplane.cluster.engine.policies import UnknownPolicy, parse_policy
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Request
from gpuplane.kubernetes.migprofilenames import parse_profile

MAX_BYTES = 1 << 20
"""Of a configuration file."""


class ExpectedRequest(Value, rename="camel"):
    """Pods that are expected: GPUs, what is asked of each (milli-GPU, MiB, or a MIG profile), and the pod's CPU.

    `weight`: how often it is made, beside the others.
    """

    gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 1
    milli: Annotated[int, msgspec.Meta(ge=0, le=MILLI_PER_GPU)] = 0
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = msgspec.field(default=0, name="memoryMiB")
    profile: Annotated[str, msgspec.Meta(max_length=96)] = ""
    models: tuple[str, ...] = ()
    cpu_milli: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    weight: Annotated[float, msgspec.Meta(gt=0, le=10**9)] = 1.0

    def request(self) -> Request:
        """As a pod would make it; whole GPUs where nothing else is asked of them."""
        if not self.gpus:
            return Request(self.cpu_milli)
        milli = self.milli or (0 if self.memory_mib or self.profile else MILLI_PER_GPU)
        wanted = GpuRequest(self.gpus, milli, self.memory_mib, profile=self.profile, models=frozenset(self.models))
        return Request(self.cpu_milli, 0, (wanted,))


class PlacementConfig(Value):
    """`policy`: a name, or names with weights. `arrivals`: as how many pods all that is expected counts beside those
    that come; 0: as many as the sum of the weights."""

    policy: str = "waste-price"
    expected: tuple[ExpectedRequest, ...] = ()
    arrivals: Annotated[float, msgspec.Meta(ge=0, le=10**9)] = 0.0

    def workload(self) -> Workload:
        """What a policy expects, before the first pod comes."""
        if not self.expected:
            return Workload(weight=self.arrivals)
        weights = dict[Request, float]()
        for each in self.expected:
            weights[each.request()] = weights.get(each.request(), 0.0) + each.weight
        return Workload(weights, self.arrivals)


def load_config(data: bytes, file: str) -> PlacementConfig:
    """The configuration of a YAML document. Raises InvalidInput."""
    return load_yaml_as(data, PlacementConfig, file, _problems)


def _problems(config: PlacementConfig) -> Iterator[tuple[DocumentPath, str]]:
    try:
        parse_policy(config.policy)
    except UnknownPolicy as error:
        yield ("policy",), f"policy: {error}"
    for index, each in enumerate(config.expected):
        path = ("expected", index)
        if not each.gpus and (each.milli or each.memory_mib or each.profile or each.models):
            yield path, f"expected[{index}] asks for no GPU, and for something of each GPU"
        if not each.gpus and not each.cpu_milli:
            yield path, f"expected[{index}] asks for nothing: give it gpus or cpuMilli"
        if each.profile and (each.milli or each.memory_mib):
            yield path, f"expected[{index}]: a MIG device has a profile, and neither milli nor memoryMiB"
        if each.profile:
            try:
                parse_profile(each.profile)
            except ValueError as error:
                yield (*path, "profile"), f"expected[{index}].profile: {error}"
