"""A Pod of the API as a request: what it asks for, as kubelet and the systems that share GPUs count it.

Of CPU, memory and all that is no GPU: the sum of the containers and sidecars, or what an init container needs while it
runs beside the sidecars before it, whichever is more; what the pod asks for as a whole instead of that; and its
overhead (k8s.io/component-helpers/resource, PodRequests). GPUs are counted for each container, as kubelet gives them
out: those of an init container are given again to the containers after it, and only what it has beyond them counts
(pkg/kubelet/cm/devicemanager, devicesToReuse). So there are as many as kube-scheduler counts.

| asked | means |
|---|---|
| `nvidia.com/gpu: n`, and resources that annotations name | n ids, each of another GPU |
| `nvidia.com/mig-PROFILE: n` | n MIG devices, of one GPU or of several |
| a resource whose ids stand for memory | that much memory of one GPU |
| `aliyun.com/gpu-mem` | what all containers ask for together, of one GPU (gpushare-scheduler-extender) |
| `nvidia.com/gpumem`, `gpumem-percentage`, `gpucores` (HAMi) | that much of each `nvidia.com/gpu`; of one by default |

Annotations of HAMi choose among GPUs: `nvidia.com/use-gputype`, `nouse-gputype` (parts of a model's name, in any case),
`use-gpuuuid`, `nouse-gpuuuid` (pkg/device/nvidia/device.go).
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

import msgspec

from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, NodeRules, Request
from gpuplane.cluster.reading.nodes import (
    ALIYUN_MEMORY,
    NODE_TAINT_PREFIX,
    SHARED_RESOURCE,
    profile_name,
)
from gpuplane.cluster.reading.peers import GPU_CORES, GPU_MEMORY, GPU_MEMORY_PERCENT, HAMI_MODEL_PREFIX
from gpuplane.kubernetes.objects import (
    HUGE_PAGES,
    MAX_AMOUNT,
    ONE_THOUSANDTH,
    ZERO_QUANTITY,
    Affinity,
    ApiPod,
    Container,
    PodSpec,
    Resources,
    added,
    amount_of,
    in_units,
    larger,
    model_name,
    quantities,
)
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX

HAMI_RESOURCES = {GPU_MEMORY, GPU_MEMORY_PERCENT, GPU_CORES}
"""Resources that no node offers, and that kube-scheduler leaves to HAMi (`ignoredByScheduler` of its extender)."""
HAMI_PRIORITY = "nvidia.com/priority"
"""Another of these, which is no amount of anything."""
USE_MODEL, AVOID_MODEL = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_ID, AVOID_ID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NO_SUCH_GPU = "no such GPU"
"""What a selector that chooses nothing chooses: the name of no model, the UUID of no GPU."""
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
"""Which kubelet writes on the Pod of a static pod."""
SAFE_TO_EVICT_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
MAX_GPUS_PER_CONTAINER = 1024
"""Of one container. What asks for more fits nowhere, and is not counted further."""


class GpusThere(NamedTuple):
    """What names in requests mean in this cluster. `resources`: name → MiB that each id stands for (0: none).

    `models`, `ids`: of its GPUs. `has_hami`: whether it has nodes of HAMi.
    """

    resources: Mapping[str, int] = {GPU_RESOURCE: 0, SHARED_RESOURCE: 0}
    models: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    aliyun_mib: int = 1024
    has_hami: bool = False


def read_pod(api: ApiPod, there: GpusThere) -> Pod:
    """What a pod asks for; it has no place yet. A pod without a UID, as a file may have it, gets its name for one."""
    spec, metadata = api.spec, api.metadata
    total = total_resources(api)
    asking = _gpu_requests(api, there)
    if mib := min(in_units(total.get(ALIYUN_MEMORY, ZERO_QUANTITY)) * _aliyun_mib(there), MAX_AMOUNT):
        names = [each.name for each in _containers(spec) if amount_of(each.amounts(), ALIYUN_MEMORY)]
        asking.append((names[0] if names else "", GpuRequest(memory_mib=mib, resource=ALIYUN_MEMORY)))
    selection = _selection(metadata.annotations or {}, there)
    name = f"{metadata.namespace or 'default'}/{metadata.name}"
    return Pod(
        uid=metadata.uid or name,
        name=name,
        request=Request(
            cpu_milli=in_units(total.pop("cpu", ZERO_QUANTITY), ONE_THOUSANDTH),
            memory_bytes=in_units(total.pop("memory", ZERO_QUANTITY)),
            gpus=tuple(wanted.but(**selection) for _, wanted in asking),
            nodes=_node_rules(spec),
            others=_other_resources(total, api, there),
        ),
        containers=tuple(name for name, _ in asking),
        priority=spec.priority or 0,
        can_move=_can_move(api),
        can_end=MIRROR_POD_ANNOTATION not in (metadata.annotations or {}) and "Node" not in _controller_kinds(api),
        comes_back="DaemonSet" in _controller_kinds(api),
        may_preempt=spec.preemption_policy != "Never",
    )


def _can_move(api: ApiPod) -> bool:
    """Whether a controller would make it anew on another node: not without one, and not for a DaemonSet's. Nor does one
    move that ends already, or whose place depends on where other pods are, or on its claims: that is not looked at."""
    kinds, annotations = _controller_kinds(api), api.metadata.annotations or {}
    stays = (
        MIRROR_POD_ANNOTATION in annotations
        or annotations.get(SAFE_TO_EVICT_ANNOTATION) == "false"
        or api.metadata.deletion_timestamp
    )
    comes_again = bool(kinds) and not kinds & {"DaemonSet", "Node"}
    return comes_again and not stays and not api.has_claims and not _depends_on_other_pods(api.spec)


def _controller_kinds(api: ApiPod) -> set[str]:
    return {each.kind for each in api.metadata.owner_references or () if each.controller}


def _depends_on_other_pods(spec: PodSpec) -> bool:
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
        if not each.key.startswith(NODE_TAINT_PREFIX)
    }
    return NodeRules(
        tuple(sorted((spec.node_selector or {}).items())),
        affinity.required if affinity is not None else None,
        tuple(sorted(tolerations, key=lambda each: (each.key, each.operator, each.value, each.effect))),
    )


def _containers(spec: PodSpec) -> list[Container]:
    return [*(spec.init_containers or ()), *spec.containers]


def total_resources(api: ApiPod) -> dict[str, Decimal]:
    """What counts of each resource: what runs at the end, or what is needed on the way there. Claims are no part."""
    running, highest = dict[str, Decimal](), dict[str, Decimal]()
    amounts = api.amounts()
    for each in api.spec.init_containers or ():
        beside = added(running, amounts(each))
        highest = larger(highest, beside)
        if each.is_sidecar:
            running = beside
    for each in api.spec.containers:
        running = added(running, amounts(each))
    total = larger(running, highest)
    if (whole := api.spec.resources) is not None:
        total = _of_pod(whole.limits) | total | _of_pod(whole.requests)  # a limit where no container says it
    total = added(total, quantities(api.spec.overhead))
    claimed = api.claimed
    return {name: amount for name, amount in total.items() if name not in claimed}


def _of_pod(resources: Resources | None) -> dict[str, Decimal]:
    """What a pod can ask for as a whole (IsSupportedPodLevelResource)."""
    return {
        name: amount
        for name, amount in quantities(resources).items()
        if name in ("cpu", "memory") or name.startswith(HUGE_PAGES)
    }


def _other_resources(total: Mapping[str, Decimal], api: ApiPod, there: GpusThere) -> tuple[tuple[str, int], ...]:
    """What it takes of its node beside CPU and memory: a place among its pods, what it asks for, and host ports."""
    left_out = {HAMI_PRIORITY} if there.has_hami else {HAMI_PRIORITY, *HAMI_RESOURCES}
    counted = {name: in_units(amount) for name, amount in total.items() if name not in left_out}
    return tuple(sorted({**counted, **dict.fromkeys(api.host_ports, 1), "pods": 1}.items()))


def _gpu_requests(api: ApiPod, there: GpusThere) -> list[tuple[str, GpuRequest]]:
    """(container, what it asks of GPUs), of all that it has at once."""
    asking, before = list[tuple[str, GpuRequest]](), list[tuple[int, str, list[GpuRequest]]]()
    claimed, inits = api.claimed, len(api.spec.init_containers or ())
    for place, container in enumerate(_containers(api.spec)):
        amounts = {name: amount for name, amount in container.amounts().items() if name not in claimed}
        parts = [*_gpu_requests_of_container(amounts, there)]
        if place < inits and not container.is_sidecar:
            before.append((len(asking), container.name, parts))
        else:
            asking += [(container.name, each) for each in parts]
    for beside, name, parts in before:
        for kind in dict.fromkeys(map(_resource_asked, parts)):
            asking = _with_init(asking, beside, name, [each for each in parts if _resource_asked(each) == kind])
    return asking


def _aliyun_mib(there: GpusThere) -> int:
    return there.resources.get(ALIYUN_MEMORY, 0) or there.aliyun_mib


def _gpu_requests_of_container(amounts: Resources, there: GpusThere) -> Iterator[GpuRequest]:
    """What one container asks of GPUs; each is a part of the pod's request."""
    memory, percent = amount_of(amounts, GPU_MEMORY), min(amount_of(amounts, GPU_MEMORY_PERCENT), 100)
    milli = min(amount_of(amounts, GPU_CORES), 100) * MILLI_PER_GPU // 100
    if memory or percent or milli:
        count = max(_count(amounts, GPU_RESOURCE), 1)
        whole = 0 if memory else percent or 100  # all of its memory, where only cores are asked for
        yield GpuRequest(count=count, milli=milli, memory_mib=memory, memory_percent=whole, resource=GPU_RESOURCE)
    for name, mib in there.resources.items():
        if name == ALIYUN_MEMORY:
            continue  # of all containers together
        if not (count := _count(amounts, name)) or (name == GPU_RESOURCE and (memory or percent or milli)):
            continue
        if mib:
            yield GpuRequest(memory_mib=min(amount_of(amounts, name) * mib, MAX_AMOUNT), resource=name)
        else:
            yield GpuRequest(count=count, units=1, resource=name)
    for name in sorted(amounts):
        if name.startswith(MIG_RESOURCE_PREFIX) and name not in there.resources and (count := _count(amounts, name)):
            yield from [GpuRequest(profile=profile_name(name))] * count


def _count(amounts: Resources, name: str) -> int:
    return min(amount_of(amounts, name), MAX_GPUS_PER_CONTAINER)


def _with_init(
    asking: list[tuple[str, GpuRequest]], beside: int, name: str, parts: Sequence[GpuRequest]
) -> list[tuple[str, GpuRequest]]:
    """The parts, with what an init container needs beyond them, of one kind. The first `beside` of them run at the same
    time; it has the GPUs of those after it."""
    like = [
        place
        for place, (_, each) in enumerate(asking)
        if place >= beside and _resource_asked(each) == _resource_asked(parts[0])
    ]
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


def _resource_asked(wanted: GpuRequest) -> tuple[str, str, int]:
    """What it asks for, but for the amount."""
    return wanted.resource, wanted.profile, wanted.units


def _size(wanted: GpuRequest) -> tuple[int, int, int]:
    return wanted.memory_mib, wanted.memory_percent, wanted.milli


def _selection(annotations: Mapping[str, str], there: GpusThere) -> dict[str, frozenset[str]]:
    """The fields of a request that a pod's annotations decide."""
    found = dict[str, frozenset[str]]()
    use, avoid = _comma_separated(annotations, USE_MODEL), _comma_separated(annotations, AVOID_MODEL)
    if use or avoid:
        models = {
            model
            for model in there.models
            if (not use or _is_named(model, use)) and not (avoid and _is_named(model, avoid))
        }
        found["models"] = frozenset(models or {NO_SUCH_GPU})
    use, avoid = _comma_separated(annotations, USE_ID), _comma_separated(annotations, AVOID_ID)
    if use or avoid:
        ids = (frozenset(use) if use else there.ids) - frozenset(avoid)
        found["ids"] = ids or frozenset({NO_SUCH_GPU})
    return found


def _comma_separated(annotations: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in annotations.get(name, "").split(",") if each.strip()]


def _is_named(model: str, parts: Sequence[str]) -> bool:
    """Whether one of these is a part of the name that HAMi has for a model."""
    return any(model_name(part).casefold() in f"{HAMI_MODEL_PREFIX}{model}".casefold() for part in parts)
