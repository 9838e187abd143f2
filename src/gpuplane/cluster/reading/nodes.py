"""A Node of the API as a node to place pods on: by the annotation `gpuplane.io/gpus`, else by HAMi's, else by NVIDIA's
labels.

The labels say how many GPUs of one model there are, and the capacity how many ids a resource has. So of a node without
the annotation these are assumed: all GPUs are alike; each is shared in the same way; where fewer ids are allocatable
than there are, the last GPUs are sick; MIG devices are spread evenly over the GPUs that are not whole; all GPUs reach
each other the same way.

A device that is given out like a GPU counts as one: a MIG device under `nvidia.com/gpu` (the strategy "single") is a
GPU of its own, with its own memory.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.reading.peers import HAMI_DEVICES_ANNOTATION, hami_resources, registered_gpus
from gpuplane.kubernetes.contracts.nodeannotation import ANNOTATION, GIVEN_OUT_STATES, decode_node_gpus
from gpuplane.kubernetes.contracts.nodegpus import NodeGpu, NodeGpus, NodeMigDevice, OfferedResource
from gpuplane.kubernetes.objects import (
    MAX_AMOUNT,
    ONE_THOUSANDTH,
    ApiNode,
    Resources,
    amount_of,
    in_units,
    is_number,
    model_name,
    quantities,
)
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from gpuplane.kubernetes.selectors import BLOCKING

SHARED_SUFFIX = ".shared"
"""Behind the names of resources that are shared, where `renameByDefault` is set."""
SHARED_RESOURCE = GPU_RESOURCE + SHARED_SUFFIX
ALIYUN_MEMORY, ALIYUN_COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
MAX_GIB_PER_GPU = 100
"""A GPU with more units of `aliyun.com/gpu-mem` counts them in MiB (kubectl-inspect-gpushare, cmd/inspect)."""
NODE_TAINT_PREFIX = "node.kubernetes.io/"
"""Taints by which Kubernetes keeps all pods from a node that is not ready, or is closed."""
NOT_OFFERED, NOT_ALLOCATABLE = "not-offered", "not-allocatable"
"""Codes of GPUs: no resource stands for it; fewer ids are allocatable than there are."""
MAX_GPUS_PER_NODE = 256
"""Of one node. What a label or capacity says beyond that is not believed."""


class SeenNode(NamedTuple):
    """A Node that was read. `annotation`: of its GPUs; None: there is none that can be read, and `problem` says why.
    `devices`: the index of a device in the annotation → its place among the node's GPUs."""

    node: Node
    annotation: NodeGpus | None = None
    devices: Mapping[str, int] = {}
    problem: str = ""


def read_node(api: ApiNode) -> SeenNode:
    """What a Node has for pods. It never raises: what cannot be read is as if it were not there."""
    node = _without_gpus(api)
    text = (api.metadata.annotations or {}).get(ANNOTATION)
    problem = ""
    if text:
        try:
            annotation = decode_node_gpus(text)
        except ValueError as error:
            problem = f"{error}"
        else:
            if not {"gpus", "mig"} & set(annotation.cut):
                return _by_annotation(node, annotation)
            problem = f"annotation {ANNOTATION} does not say all GPUs: it would be too long"
    elif text := (api.metadata.annotations or {}).get(HAMI_DEVICES_ANNOTATION):
        try:
            gpus = registered_gpus(text, amount_of(api.status.capacity or {}, GPU_RESOURCE))
            return SeenNode(node.but(gpus=gpus, others={**node.others, **hami_resources(gpus)}))
        except ValueError as error:
            problem = f"{error}"
    return SeenNode(node.but(gpus=_by_labels(api)), problem=problem)


def _without_gpus(api: ApiNode) -> Node:
    have = (api.status.capacity if api.status.allocatable is None else api.status.allocatable) or {}
    taints = [each for each in api.spec.taints or () if each.effect in BLOCKING]
    closing = [each for each in taints if each.key.startswith(NODE_TAINT_PREFIX)]
    return Node(
        name=api.metadata.name,
        cpu_milli=amount_of(have, "cpu", ONE_THOUSANDTH, "down"),
        memory_bytes=amount_of(have, "memory", rounded="down"),
        labels=api.metadata.labels or {},
        is_schedulable=not api.spec.unschedulable and not closing,
        taints=tuple(each for each in taints if each not in closing),
        others=_other_resources(have),
    )


def _other_resources(have: Resources) -> dict[str, int]:
    """What a node has beside CPU and memory. What it does not name it does not have, as kube-scheduler takes it
    (noderesources/fit.go). Every kubelet says how many pods it takes; a file written by hand may leave that out, and
    then it takes any number."""
    found = {"pods": MAX_AMOUNT} if "pods" not in have else {}
    found |= {
        name: in_units(amount, rounded="down")
        for name, amount in quantities(have).items()
        if name not in ("cpu", "memory")
    }
    return {name: amount for name, amount in found.items() if amount}


def profile_name(resource: str) -> str:
    """The profile that a resource stands for: "1g.10gb+me" for "nvidia.com/mig-1g.10gb.me", and for its shares."""
    profile = resource.removeprefix(MIG_RESOURCE_PREFIX).removesuffix(SHARED_SUFFIX)
    size, memory, attributes = profile.partition("gb")
    return size + memory + attributes.replace(".", "+")


def _by_annotation(node: Node, annotation: NodeGpus) -> SeenNode:
    gpus, devices = list[Gpu](), dict[str, int]()
    for each in annotation.gpus:
        singles = [device for device in each.mig if device.resource is not None and _is_offered_as_gpu(device)]
        if singles:
            for device in singles:
                devices[device.index] = len(gpus)
                gpus.append(_mig_device_as_gpu(each, device))
            continue
        devices[each.index] = len(gpus)
        devices |= {device.index: len(gpus) for device in each.mig}
        gpus.append(_gpu(each))
    if annotation.state not in GIVEN_OUT_STATES:
        gpus = [each.but(code=each.code or annotation.code or annotation.state) for each in gpus]
    return SeenNode(node.but(gpus=tuple(gpus)), annotation, devices)


def offered_resources(annotation: NodeGpus) -> Iterator[OfferedResource]:
    """The resource of each device that has one."""
    for gpu in annotation.gpus:
        found = gpu.resource, *(each.resource for each in gpu.mig)
        yield from (each for each in found if each is not None)


def _is_offered_as_gpu(device: NodeMigDevice) -> bool:
    """Whether it is offered as a GPU, and not by its profile."""
    return device.resource is not None and not device.resource.name.startswith(MIG_RESOURCE_PREFIX)


def _code(device: NodeGpu | NodeMigDevice) -> str:
    """Why nobody gets it; "" for no reason."""
    return "" if device.state in GIVEN_OUT_STATES else device.code or device.state


def _gpu(each: NodeGpu) -> Gpu:
    profiles = Counter[str]()
    for device in each.mig:
        if device.resource is not None and not _code(device):
            profiles[device.profile] += device.ids
    resource = each.resource
    is_offered = bool(each.mig) or (resource is not None and each.ids > 0)
    shares_memory = resource is not None and resource.share_mib > 0
    return Gpu(
        id=each.uuid,
        model=model_name(each.model),
        memory_mib=min(resource.share_mib * each.ids, MAX_AMOUNT) if resource and shares_memory else each.memory_mib,
        units=max(each.ids, 1) if not shares_memory else 1,
        is_partitioned=bool(each.mig),
        profiles=dict(profiles),
        resource=resource.name if resource is not None else "",
        code=_code(each) or ("" if is_offered else NOT_OFFERED),
    )


def _mig_device_as_gpu(gpu: NodeGpu, device: NodeMigDevice) -> Gpu:
    """A MIG device that is offered as a GPU, by the name that NVIDIA's tools once had for it."""
    assert device.resource is not None
    return Gpu(
        id=f"MIG-{gpu.uuid}/{device.gpu_instance}/{device.compute_instance}",
        model=f"{model_name(gpu.model)}-MIG-{device.profile}",
        units=max(device.ids, 1),
        resource=device.resource.name,
        code=_code(gpu) or _code(device),
    )


def _by_labels(api: ApiNode) -> tuple[Gpu, ...]:
    labels, name = api.metadata.labels or {}, api.metadata.name
    capacity, allocatable = api.status.capacity or {}, api.status.allocatable
    if not (count := amount_of(capacity, GPU_RESOURCE)) and not amount_of(capacity, SHARED_RESOURCE):
        if shared := amount_of(capacity, ALIYUN_MEMORY):
            return _by_memory(name, labels, shared, capacity)
        if not any(each.startswith(MIG_RESOURCE_PREFIX) for each in capacity):
            return ()
    resource = GPU_RESOURCE if count else SHARED_RESOURCE
    ids = amount_of(capacity, resource)
    well = ids if allocatable is None else min(ids, amount_of(allocatable, resource))
    of_each, whole = _replicas_and_gpus(labels, ids)
    model = model_name(labels.get("nvidia.com/gpu.product", "")).removesuffix("-SHARED")
    memory = _number_of_label(labels, "nvidia.com/gpu.memory")
    units = Gpu("", model, memory, of_each, resource=resource)
    gpus = [
        units.but(id=f"{name}/{place}", code="" if (place + 1) * of_each <= well else NOT_ALLOCATABLE)
        for place in range(whole)
    ]
    profiles = Counter[str]()
    for each in capacity:
        if each.startswith(MIG_RESOURCE_PREFIX):
            profiles[profile_name(each)] += amount_of(allocatable or capacity, each)
    if profiles:
        count = min(max(_number_of_label(labels, "nvidia.com/gpu.count") - whole, 1), MAX_GPUS_PER_NODE)
        for place in range(count):
            mine = {profile: number // count + (place < number % count) for profile, number in profiles.items()}
            gpus.append(Gpu(f"{name}/{whole + place}", model, memory, is_partitioned=True, profiles=mine))
    return tuple(gpus)


def _replicas_and_gpus(labels: Mapping[str, str], ids: int) -> tuple[int, int]:
    """(ids that stand for each GPU, GPUs). `nvidia.com/gpu.count` does not count MIG devices under `nvidia.com/gpu`
    apart: then it is their number."""
    replicas, count = (
        _number_of_label(labels, "nvidia.com/gpu.replicas"),
        _number_of_label(labels, "nvidia.com/gpu.count"),
    )
    if replicas <= 1 and count and ids > count and ids % count == 0:
        replicas = ids // count  # a plugin that shares and does not say so in labels
    replicas = max(replicas, 1)
    return replicas, min(ids // replicas, MAX_GPUS_PER_NODE)


def _by_memory(name: str, labels: Mapping[str, str], shared: int, capacity: Resources) -> tuple[Gpu, ...]:
    """GPUs of gpushare's device plugin, which are all taken for as large as the first.

    Kubelet drops their number when it registers anew, and the plugin writes it only when it starts. Until then the
    extender places nothing there (pkg/utils/node.go); NVIDIA's label says how many they are.
    """
    count = min(_aliyun_gpus(capacity, labels), MAX_GPUS_PER_NODE)
    memory = min(shared // max(count, 1) * _unit_mib(shared, count), MAX_AMOUNT)
    model = model_name(labels.get("nvidia.com/gpu.product", ""))
    code = "" if amount_of(capacity, ALIYUN_COUNT) else NOT_OFFERED
    return tuple(Gpu(f"{name}/{place}", model, memory, resource=ALIYUN_MEMORY, code=code) for place in range(count))


def _aliyun_gpus(capacity: Resources, labels: Mapping[str, str]) -> int:
    return amount_of(capacity, ALIYUN_COUNT) or _number_of_label(labels, "nvidia.com/gpu.count")


def _unit_mib(shared: int, count: int) -> int:
    return 1 if shared // max(count, 1) > MAX_GIB_PER_GPU else 1024


def aliyun_unit_mib(nodes: Iterable[ApiNode]) -> int:
    """MiB in each unit of `aliyun.com/gpu-mem`, as the cluster's nodes count it: as the first that says how many GPUs
    it has."""
    for each in nodes:
        capacity = each.status.capacity or {}
        count = _aliyun_gpus(capacity, each.metadata.labels or {})
        if count and (shared := amount_of(capacity, ALIYUN_MEMORY)):
            return _unit_mib(shared, count)
    return 1024


def _number_of_label(labels: Mapping[str, str], name: str) -> int:
    text = labels.get(name, "")
    return int(text) if is_number(text) else 0
