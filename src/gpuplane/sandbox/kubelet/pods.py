"""Pods as kubelet's device manager sees them, and what becomes of them."""

import uuid
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.model.cdi import ContainerEdits


class Container(msgspec.Struct, frozen=True):
    """A container and the device-plugin resources that it asks for."""

    name: str
    requests: Mapping[str, int] = {}


class Pod(msgspec.Struct, frozen=True):
    """A pod: its init containers run before the others; those that restart always (side-cars) stay beside them."""

    name: str
    containers: tuple[Container, ...] = ()
    init: tuple[Container, ...] = ()
    sidecars: frozenset[str] = frozenset()  # names of init containers that restart always
    namespace: str = "default"
    uid: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def key(self) -> str:
        """ "namespace/name"."""
        return f"{self.namespace}/{self.name}"

    def all(self) -> Iterator[Container]:
        """Every container, in the order in which kubelet allocates for them."""
        yield from self.init
        yield from self.containers

    def long_running(self) -> Iterator[Container]:
        """The containers that run for as long as the pod does."""
        yield from (each for each in self.init if each.name in self.sidecars)
        yield from self.containers

    def short_lived(self) -> Iterator[Container]:
        """The init containers that end before the others start."""
        yield from (each for each in self.init if each.name not in self.sidecars)


def pod(name: str, *, namespace: str = "default", **requests: int) -> Pod:
    """A pod with one container "main". Keywords are resources: `gpu=2` asks for two of nvidia.com/gpu."""
    wanted = {resource if "/" in resource else f"nvidia.com/{resource}": n for resource, n in requests.items()}
    return Pod(name, (Container("main", wanted),), namespace=namespace)


def requested_resources(pod: Pod) -> Mapping[str, int]:
    """What the scheduler counts for a pod: the sum of what lasts, or more where an init container needs more."""
    lasting: dict[str, int] = {}
    for container in pod.long_running():
        for resource, count in container.requests.items():
            lasting[resource] = lasting.get(resource, 0) + count
    for container in pod.short_lived():
        for resource, count in container.requests.items():
            lasting[resource] = max(lasting.get(resource, 0), count)
    return {resource: count for resource, count in lasting.items() if count}


class PodRejected(Exception):
    """Kubelet refused the pod: phase Failed, with this reason and message. It stays so for ever."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


class RunningPod(msgspec.Struct):
    """An admitted pod. `answers` has what each container got of each resource; `waiting` why one cannot start yet;
    `made` what each that was started was made with."""

    pod: Pod
    responses: dict[str, dict[str, pb.ContainerAllocateResponse]] = {}
    waiting_reasons: dict[str, str] = {}  # container → "CreateContainerConfigError: …"
    started: set[str] = set()
    created: dict[str, ContainerEdits] = {}

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
