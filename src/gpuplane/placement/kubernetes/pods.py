"""A Pod of the API as a request: what it asks for, as kubelet and the systems that share GPUs count it.

CPU and memory: the sum of the containers and sidecars, or what an init container needs while it runs, whichever is
more, and the pod's overhead (k8s.io/component-helpers/resource, PodRequests). GPUs are counted for each container, as
kubelet gives them out; an init container has those that the pod's containers get later (kubelet's device manager), and
more only where it asks for more.

| asked | means |
|---|---|
| `nvidia.com/gpu: n`, and resources that annotations name | n ids, each of another GPU |
| `nvidia.com/mig-PROFILE: n` | n MIG devices, of one GPU or of several |
| a resource whose ids stand for memory, `aliyun.com/gpu-mem` | that much memory of one GPU |
| `nvidia.com/gpumem`, `gpumem-percentage`, `gpucores` (HAMi) | that much of each `nvidia.com/gpu`; of one by default |

Annotations of HAMi choose among GPUs: `nvidia.com/use-gputype`, `nouse-gputype` (parts of a model's name, in any case),
`use-gpuuuid`, `nouse-gpuuuid` (pkg/device/nvidia/device.go).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuplane.core.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from gpuplane.placement.kubernetes.nodes import ALIYUN_MEMORY, NODE_TAINTS, SHARED_RESOURCE, profile_name
from gpuplane.placement.kubernetes.objects import (
    LARGEST,
    MIB,
    MILLI,
    Affinity,
    ApiPod,
    PodSpec,
    Resources,
    amount_of,
    model_name,
)
from gpuplane.placement.pods import Pod
from gpuplane.placement.requests import WHOLE, GpuRequest, NodeRules, Request

GPU_MEMORY, GPU_MEMORY_PERCENT, GPU_CORES = (
    "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores",
)  # fmt: skip
USE_MODEL, AVOID_MODEL = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_ID, AVOID_ID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NO_SUCH = "no such GPU"
"""What a selector that chooses nothing chooses: the name of no model, the UUID of no GPU."""
KEPT_HERE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
MOST_GPUS = 1024
"""Of one container. What asks for more fits nowhere, and is not counted further."""


class GpusThere(NamedTuple):
    """What names in requests mean in this cluster. `resources`: name → MiB that each id stands for (0: none).

    `models`, `ids`: of its GPUs.
    """

    resources: Mapping[str, int] = {GPU_RESOURCE: 0, SHARED_RESOURCE: 0}
    models: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    aliyun_mib: int = 1024


def read_pod(api: ApiPod, there: GpusThere) -> Pod:
    """What a pod asks for; it has no place yet."""
    spec, metadata = api.spec, api.metadata
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    selection = _selection(metadata.annotations or {}, there)
    asking = [
        (container.name, wanted.but(**selection))
        for container in (*sidecars, *spec.containers)
        for wanted in _gpus(container.amounts(), there)
    ]
    for container in spec.init_containers or ():
        if container.restart_policy != "Always":
            parts = [wanted.but(**selection) for wanted in _gpus(container.amounts(), there)]
            for kind in dict.fromkeys(map(_kind, parts)):
                asking = _with_init(asking, container.name, [each for each in parts if _kind(each) == kind])
    overhead = spec.overhead or {}
    request = Request(
        cpu_milli=_effective(api, lambda each: amount_of(each, "cpu", MILLI)) + amount_of(overhead, "cpu", MILLI),
        memory_mib=_effective(api, lambda each: amount_of(each, "memory", MIB)) + amount_of(overhead, "memory", MIB),
        gpus=tuple(wanted for _, wanted in asking),
        nodes=_node_rules(spec),
    )
    return Pod(
        uid=metadata.uid,
        name=f"{metadata.namespace}/{metadata.name}",
        request=request,
        containers=tuple(name for name, _ in asking),
        priority=spec.priority or 0,
        can_move=_can_move(api),
    )


def _can_move(api: ApiPod) -> bool:
    """Whether a controller would make it anew on another node: not without one, and not for a DaemonSet's. Nor does one
    move that depends on where other pods are: that is not looked at."""
    kinds = {each.kind for each in api.metadata.owner_references or () if each.controller}
    stays = (api.metadata.annotations or {}).get(KEPT_HERE) == "false"
    return bool(kinds) and not kinds & {"DaemonSet", "Node"} and not stays and not _minds_others(api.spec)


def _minds_others(spec: PodSpec) -> bool:
    """Whether other pods decide where it may go."""
    affinity = spec.affinity or Affinity()
    near = [each for each in (affinity.pod_affinity, affinity.pod_anti_affinity) if each is not None and each.required]
    return bool(near) or any(
        each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints or ()
    )


def _node_rules(spec: PodSpec) -> NodeRules:
    """By its selector, its affinity and its tolerations. To tolerate a node that is not ready, or closed, is no use:
    no pod is placed there (nodes.py)."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    tolerations = {
        msgspec.structs.replace(each, toleration_seconds=None)
        for each in spec.tolerations or ()
        if not each.key.startswith(NODE_TAINTS)
    }
    return NodeRules(
        tuple(sorted((spec.node_selector or {}).items())),
        affinity.required if affinity is not None else None,
        tuple(sorted(tolerations, key=lambda each: (each.key, each.operator, each.value, each.effect))),
    )


def _effective(api: ApiPod, measure: Callable[[Resources], int]) -> int:
    """What counts of a resource: what runs at the end, or what is needed on the way there."""
    before = highest = 0
    for each in api.spec.init_containers or ():
        amount = measure(each.amounts())
        if each.restart_policy == "Always":
            before += amount
            highest = max(highest, before)
        else:
            highest = max(highest, before + amount)
    return max(highest, before + sum(measure(each.amounts()) for each in api.spec.containers))


def _gpus(amounts: Resources, there: GpusThere) -> Iterator[GpuRequest]:
    """What one container asks of GPUs; each is a part of the pod's request."""
    memory, percent = amount_of(amounts, GPU_MEMORY), min(amount_of(amounts, GPU_MEMORY_PERCENT), 100)
    milli = min(amount_of(amounts, GPU_CORES), 100) * WHOLE // 100
    if memory or percent or milli:
        count = max(_count(amounts, GPU_RESOURCE), 1)
        whole = 0 if memory else percent or 100  # all of its memory, where only cores are asked for
        yield GpuRequest(count=count, milli=milli, memory_mib=memory, memory_percent=whole)
    for name, mib in there.resources.items():
        if not (count := _count(amounts, name)) or (name == GPU_RESOURCE and (memory or percent or milli)):
            continue
        if mib:
            yield GpuRequest(memory_mib=min(amount_of(amounts, name) * mib, LARGEST), resource=name)
        else:
            yield GpuRequest(count=count, units=1, resource=name)
    for name in sorted(amounts):
        if name.startswith(MIG_RESOURCE_PREFIX) and name not in there.resources and (count := _count(amounts, name)):
            yield from [GpuRequest(profile=profile_name(name))] * count
    if mib := amount_of(amounts, ALIYUN_MEMORY):
        yield GpuRequest(memory_mib=min(mib * there.aliyun_mib, LARGEST))


def _count(amounts: Resources, name: str) -> int:
    return min(amount_of(amounts, name), MOST_GPUS)


def _with_init(
    asking: list[tuple[str, GpuRequest]], name: str, parts: Sequence[GpuRequest]
) -> list[tuple[str, GpuRequest]]:
    """The parts, with what an init container needs beyond them, of one kind: it has the GPUs of the others first."""
    like = [place for place, (_, each) in enumerate(asking) if _kind(each) == _kind(parts[0])]
    missing = sum(each.count for each in parts) - sum(asking[place][1].count for place in like)
    if parts[0].units or parts[0].profile or not like:
        more = [*parts[len(like) :]] if parts[0].profile else [each.but(count=missing) for each in parts]
        return [*asking, *((name, each) for each in more if missing > 0)]
    largest = max(like, key=lambda place: _size(asking[place][1]))
    holder, each = asking[largest]
    for wanted in parts:
        each = each.but(
            count=max(each.count, wanted.count),
            milli=max(each.milli, wanted.milli),
            memory_mib=max(each.memory_mib, wanted.memory_mib),
            memory_percent=max(each.memory_percent, wanted.memory_percent),
        )
    return [*asking[:largest], (holder, each), *asking[largest + 1 :]]


def _kind(wanted: GpuRequest) -> tuple[str, str, int]:
    """What it asks for, but for the amount."""
    return wanted.resource, wanted.profile, wanted.units


def _size(wanted: GpuRequest) -> tuple[int, int, int]:
    return wanted.memory_mib, wanted.memory_percent, wanted.milli


def _selection(annotations: Mapping[str, str], there: GpusThere) -> dict[str, frozenset[str]]:
    """The fields of a request that a pod's annotations decide."""
    found = dict[str, frozenset[str]]()
    use, avoid = _list(annotations, USE_MODEL), _list(annotations, AVOID_MODEL)
    if use or avoid:
        models = {
            model
            for model in there.models
            if (not use or _is_named(model, use)) and not (avoid and _is_named(model, avoid))
        }
        found["models"] = frozenset(models or {NO_SUCH})
    use, avoid = _list(annotations, USE_ID), _list(annotations, AVOID_ID)
    if use or avoid:
        ids = (frozenset(use) if use else there.ids) - frozenset(avoid)
        found["ids"] = ids or frozenset({NO_SUCH})
    return found


def _list(annotations: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in annotations.get(name, "").split(",") if each.strip()]


def _is_named(model: str, parts: Sequence[str]) -> bool:
    return any(model_name(part).casefold() in model.casefold() for part in parts)
