"""What of a device each container uses, by its processes.

The driver tells for each process its memory, and the part of the multiprocessors' time that it had. A process is its
container's by its cgroup. What no container can be named for is the rest: processes outside of containers, the driver
itself, and processes that this node's records do not name. So the parts and the rest are together what the device
tells, and nothing is told of two containers at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuplane.kubernetes.podref import ContainerId, PodMetadata, PodRef
from gpuplane.node.core.telemetry.cgroups import container_of
from gpuplane.node.core.telemetry.devices import DeviceKey, SeriesDevice, readings_of
from gpuplane.node.model.telemetry import GpuSample, Sample


class Usage(NamedTuple):
    """None: the driver does not tell it of these processes."""

    memory_mib: float | None = None
    sm_percent: float | None = None

    def plus(self, memory_mib: float | None, sm_percent: float | None) -> "Usage":
        """This and what another process uses."""
        return Usage(_sum(self.memory_mib, memory_mib), _sum(self.sm_percent, sm_percent))


class DeviceUsage(NamedTuple):
    """What each container uses of one device, and the rest."""

    by_container: Mapping[PodRef, Usage]
    unattributed: Usage


def containers_of(sample: Sample) -> frozenset[ContainerId]:
    """The containers of all processes of a sample."""
    found = (container_of(process.cgroups) for gpu in sample.gpus for process in gpu.processes)
    return frozenset(each for each in found if each is not None)


def with_names_of_pods(
    names: Mapping[ContainerId, PodRef], containers: Iterable[ContainerId], pods: Mapping[str, PodMetadata] | None
) -> Mapping[ContainerId, PodRef]:
    """These names, and for containers without one those of their pods, where the API server has told them."""
    found = dict(names)
    for each in containers:
        pod = (pods or {}).get(each.pod_uid)
        if each not in found and pod is not None:
            found[each] = PodRef(namespace=pod.namespace, name=pod.name, uid=each.pod_uid)
    return found


def usage_by_device(
    sample: GpuSample, devices: Sequence[SeriesDevice], names: Mapping[ContainerId, PodRef]
) -> Mapping[DeviceKey, DeviceUsage]:
    """What is used of one GPU and of its instances. `devices`: these. A process counts on exactly one of them."""
    parts: dict[DeviceKey, dict[PodRef, Usage]] = {each.key: {} for each in devices}
    rest = dict.fromkeys(parts, Usage())
    for process in sample.processes:
        key = DeviceKey(sample.uuid, process.gpu_instance)
        key = key if key in parts else DeviceKey(sample.uuid)
        if key not in parts:
            continue
        container = container_of(process.cgroups)
        known = names.get(container) if container is not None else None
        if known is None or not known.name:
            rest[key] = rest[key].plus(process.memory_mib, process.sm_percent)
        else:
            holder = PodRef(namespace=known.namespace, name=known.name, container=known.container)
            parts[key][holder] = parts[key].get(holder, Usage()).plus(process.memory_mib, process.sm_percent)
    in_instances = len(devices) > 1  # then the GPU's own memory is that of its instances
    return {
        each.key: DeviceUsage(
            parts[each.key],
            rest[each.key]
            if in_instances and each.key.gpu_instance is None
            else _with_unnamed_memory(rest[each.key], parts[each.key], readings_of(sample, each)),
        )
        for each in devices
    }


def _with_unnamed_memory(rest: Usage, parts: Mapping[PodRef, Usage], readings: Mapping[str, float]) -> Usage:
    """The rest of a device. Of its memory that is all that is used beyond what containers use."""
    used = readings.get("DCGM_FI_DEV_FB_USED")
    if used is None:
        return rest
    return rest._replace(memory_mib=max(0.0, used - sum(each.memory_mib or 0.0 for each in parts.values())))


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
