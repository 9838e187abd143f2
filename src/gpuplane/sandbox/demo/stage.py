"""What the scenes of the demo share: the stage on which they play, what they give, and how they fail."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.machine import Gpu, MachineFile
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected, RunningPod

GPU, MEMORY, KVM = "nvidia.com/gpu", "nvidia.com/gpu.mem", "gpuplane.io/kvm"
TRAIN, REST, BOTH = "default/train", "default/rest", "default/both"
"""Pods that outlive the scene in which they start."""


class Scene(msgspec.Struct, frozen=True):
    """What happened: a title, lines for people (name → value), and the same for machines."""

    title: str
    lines: Mapping[str, str]
    data: Mapping[str, Any] = {}


class SceneFailed(Exception):
    """Something did not hold."""


class Stage(msgspec.Struct, frozen=True):
    """An agent and a kubelet on a described machine. `machine` and `config` are files, which scenes edit.

    `name`: that of the machine file. `root`: a directory for what a scene needs besides.
    """

    root: Path
    name: str
    machine: Path
    config: Path
    described: MachineFile
    kubelet: Kubelet
    agent: Agent

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs."""
        return self.described.gpus or ()

    @property
    def whole_gpus(self) -> list[Gpu]:
        """The GPUs that are offered whole."""
        return [gpu for gpu in self.gpus if not gpu.mig_enabled]

    @property
    def count(self) -> int:
        """How many GPUs are offered whole."""
        return len(self.whole_gpus)

    @property
    def train_count(self) -> int:
        """How many GPUs the pod "train" asks for: another pod can have the rest."""
        return 2 if self.count > 2 else 1

    async def until_shown(self, resource: str, capacity: int, allocatable: int) -> None:
        """Wait until the node shows these figures. Raises SceneFailed."""
        try:
            await self.kubelet.until_capacity(resource, capacity, allocatable)
        except TimeoutError as error:
            raise SceneFailed(f"{error}\nthe agent's log:\n" + "\n".join(self.agent.log[-20:])) from None

    async def until_listed(self, before: int) -> None:
        """Wait until kubelet has listed its pods, which it had done so often before."""
        await self.kubelet.until(lambda: self.kubelet.manager.list_count > before)

    async def until_created(self, running: RunningPod) -> ContainerEdits:
        """What a pod's container is made with, once it is. Raises SceneFailed."""
        try:
            await self.kubelet.until(lambda: "main" in running.started)
        except TimeoutError:
            raise SceneFailed(f"pod {running.pod.key} waits: {running.waiting_reasons}") from None
        return running.created["main"]

    async def until_rejected(self, pod: Pod) -> str:
        """Why kubelet rejects a pod. Raises SceneFailed where it does not."""
        try:
            await self.kubelet.run(pod)
        except PodRejected as rejected:
            return str(rejected)
        raise SceneFailed(f"{pod.name} was admitted")


def check(holds: bool, otherwise: str) -> None:
    """Raise SceneFailed where something does not hold."""
    if not holds:
        raise SceneFailed(otherwise)


def pod_with(name: str, resource: str, count: int) -> Pod:
    """A pod whose container asks for so many of a resource."""
    return Pod(name, (Container("main", {resource: count}),))


def shorten_uuid(uuid: str) -> str:
    """A GPU's UUID, cut to what tells those of one machine apart."""
    return f"GPU-…{uuid[-4:]}"


def replace_file(path: Path, content: bytes) -> None:
    """Change a file in one step: the agent never reads half of it."""
    aside = path.with_suffix(".new")
    aside.write_bytes(content)
    aside.replace(path)
