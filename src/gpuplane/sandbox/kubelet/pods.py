"""Pods as kubelet's device manager sees them, and what becomes of them."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.model.cdi import ContainerEdits

KEPT_EVENTS = 100


class ResourceHealth(msgspec.Struct, frozen=True):
    """One entry of a pod's allocatedResourcesStatus."""

    resource_id: str
    health: str
    message: str = ""


class ContainerClaim(msgspec.Struct, frozen=True):
    """A claim that a container uses, by the pod's name for it. `request`: "" for all that the claim has."""

    name: str
    request: str = ""


class PodClaim(msgspec.Struct, frozen=True):
    """A claim of a pod. `claim`: the name of the ResourceClaim; "" while nobody has made it of its template."""

    name: str
    claim: str
    is_from_template: bool = False


class Container(msgspec.Struct, frozen=True):
    """A container, and the device-plugin resources and claims that it asks for."""

    name: str
    requests: Mapping[str, int] = {}
    claims: tuple[ContainerClaim, ...] = ()


class Pod(msgspec.Struct, frozen=True):
    """A pod: its init containers run before the others; those that restart always (side-cars) stay beside them.
    `claims` are prepared whether or not a container uses them."""

    name: str
    containers: tuple[Container, ...] = ()
    init: tuple[Container, ...] = ()
    sidecars: frozenset[str] = frozenset()  # names of init containers that restart always
    namespace: str = "default"
    uid: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    claims: tuple[PodClaim, ...] = ()

    @property
    def key(self) -> str:
        """ "namespace/name"."""
        return f"{self.namespace}/{self.name}"

    def all_containers(self) -> Iterator[Container]:
        """Every container, in the order in which kubelet allocates for them."""
        yield from self.init
        yield from self.containers

    def long_running_containers(self) -> Iterator[Container]:
        """The containers that run for as long as the pod does."""
        yield from (each for each in self.init if each.name in self.sidecars)
        yield from self.containers

    def short_lived_containers(self) -> Iterator[Container]:
        """The init containers that end before the others start."""
        yield from (each for each in self.init if each.name not in self.sidecars)


def pod_from_object(found: Mapping[str, Any]) -> Pod:
    """A Pod object of the API, as kubelet has it: with the names of the claims that were made for its templates."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") or "" for each in status.get("resourceClaimStatuses") or ()}
    claims = [
        PodClaim(
            each["name"],
            each.get("resourceClaimName") or made.get(each["name"], ""),
            "resourceClaimTemplateName" in each,
        )
        for each in spec.get("resourceClaims") or ()
    ]
    init = spec.get("initContainers") or ()
    return Pod(
        metadata["name"],
        tuple(map(_container_from_object, spec["containers"])),
        tuple(map(_container_from_object, init)),
        frozenset(each["name"] for each in init if each.get("restartPolicy") == "Always"),
        metadata.get("namespace", "default"),
        metadata["uid"],
        tuple(claims),
    )


def _container_from_object(found: Mapping[str, Any]) -> Container:
    wanted = found.get("resources") or {}
    requests = {
        name: int(count)
        for name, count in {**(wanted.get("limits") or {}), **(wanted.get("requests") or {})}.items()
        if "/" in name
    }
    claims = tuple(ContainerClaim(each["name"], each.get("request", "")) for each in wanted.get("claims") or ())
    return Container(found["name"], requests, claims)


def pod(name: str, *, namespace: str = "default", **requests: int) -> Pod:
    """A pod with one container "main". Keywords are resources: `gpu=2` asks for two of nvidia.com/gpu."""
    wanted = {resource if "/" in resource else f"nvidia.com/{resource}": n for resource, n in requests.items()}
    return Pod(name, (Container("main", wanted),), namespace=namespace)


def requested_resources(pod: Pod) -> Mapping[str, int]:
    """What the scheduler counts for a pod: the sum of what lasts, or more where an init container needs more."""
    lasting: dict[str, int] = {}
    for container in pod.long_running_containers():
        for resource, count in container.requests.items():
            lasting[resource] = lasting.get(resource, 0) + count
    for container in pod.short_lived_containers():
        for resource, count in container.requests.items():
            lasting[resource] = max(lasting.get(resource, 0), count)
    return {resource: count for resource, count in lasting.items() if count}


class PodRejected(Exception):
    """Kubelet refused the pod: phase Failed, with this reason and message. It stays so for ever."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


class Event(msgspec.Struct, frozen=True):
    """What kubelet tells of a pod at the API server. `container`: of which of its containers; "": of the pod."""

    reason: str
    message: str
    container: str = ""
    type: Literal["Normal", "Warning"] = "Warning"


class WaitingReason(NamedTuple):
    """Why a container waits, as its status says it: a code, and a sentence for people."""

    reason: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class RunningPod(msgspec.Struct):
    """An admitted pod. `responses` has what each container got of each resource; `waiting_reasons` why one cannot start
    yet; `created` what each that was started was made with.

    `has_sandbox`: its claims are prepared and its sandbox is made; claims are not prepared again from then on.
    `is_terminating`: it ends, and goes once its claims are unprepared; `unprepare_error` says why that has failed.
    `claim_health`: container → "claim:NAME" → health, as the pod's status shows it since it was last synced.
    """

    pod: Pod
    responses: dict[str, dict[str, pb.ContainerAllocateResponse]] = {}
    waiting_reasons: dict[str, WaitingReason] = {}  # by container
    started: set[str] = set()
    created: dict[str, ContainerEdits] = {}
    has_sandbox: bool = False
    is_terminating: bool = False
    unprepare_error: str = ""
    events: list[Event] = []
    claim_health: dict[str, dict[str, tuple[ResourceHealth, ...]]] = {}

    def tell(self, event: Event) -> None:
        """Where nobody takes them over, the last Events are kept."""
        self.events.append(event)
        del self.events[:-KEPT_EVENTS]

    def response(self, container: str = "main") -> pb.ContainerAllocateResponse:
        """What kubelet passes to the runtime for a container."""
        return merge_responses(self.responses.get(container, {}).values())


def merge_responses(responses: Iterable[pb.ContainerAllocateResponse]) -> pb.ContainerAllocateResponse:
    """The answers of a container's resources in one. Of two that collide the first holds
    (devicemanager/pod_devices.go, deviceRunContainerOptions)."""
    whole = pb.ContainerAllocateResponse()
    for answer in responses:
        for name, value in {**answer.envs, **whole.envs}.items():
            whole.envs[name] = value
        for name, value in {**answer.annotations, **whole.annotations}.items():
            whole.annotations[name] = value
        mounted = {each.container_path for each in whole.mounts}
        whole.mounts.extend(each for each in answer.mounts if each.container_path not in mounted)
        there = {each.container_path for each in whole.devices}
        whole.devices.extend(each for each in answer.devices if each.container_path not in there)
        named = {each.name for each in whole.cdi_devices}
        whole.cdi_devices.extend(each for each in answer.cdi_devices if each.name not in named)
    return whole
