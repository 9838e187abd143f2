"""The main job, played end to end: a described machine, the agent as a process, an embedded kubelet.

Each scene does something real and checks what came of it; a scene that does not hold raises `Broken`.
"""

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.base.text import join_first_names
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.machine import MachineFile
from gpuplane.sandbox import claimscene, migscene
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected, pod
from gpuplane.sandbox.kubelet.runtime import read_registry
from gpuplane.sandbox.scratch import Scratch

GPU, MEMORY, KVM = "nvidia.com/gpu", "nvidia.com/gpu.mem", "gpuplane.io/kvm"


class Scene(msgspec.Struct, frozen=True):
    """What happened: a title, lines for people (name → value), and the same for machines."""

    title: str
    lines: Mapping[str, str]
    data: Mapping[str, Any] = {}


MIN_MIB = 4096
"""MiB of a GPU of which the demo gives parts to several pods."""


class Broken(Exception):
    """A scene did not hold."""


class Demo:
    """One play on a machine file, of which it edits a copy. Raises Broken where it has too few GPUs."""

    def __init__(self, name: str, content: bytes, described: MachineFile) -> None:
        self.name, self.content, self.described = name, content, described
        self.offered = [gpu for gpu in described.gpus or () if not gpu.mig_enabled]
        self.count = len(self.offered)
        self.wanted = 2 if self.count > 2 else 1
        self.scratch = Scratch()
        too_few = f"{name} has {self.count} whole GPUs, and the demo needs two; try --profile dgx-a100"
        check(self.count >= 2, too_few.replace("1 whole GPUs", "1 whole GPU"))
        small = [f"{gpu.uuid} with {gpu.memory_mib} MiB" for gpu in self.offered if gpu.memory_mib < MIN_MIB]
        check(
            not small,
            (f"{name} has {join_first_names(small, 3)} of memory, but the demo needs GPUs with {MIN_MIB} MiB or more"),
        )

    async def scenes(self) -> AsyncIterator[Scene]:
        """The scenes, as they happen. Raises Broken."""
        with self.scratch as self.root:
            self.machine = self.root / "machine" / self.name
            self.machine.parent.mkdir()
            self.machine.write_bytes(self.content)
            self.config = self.root / "config.yaml"
            self.config.write_text("version: v1\n")
            yield self.the_machine()
            self.cdi = self.root / "cdi"
            async with Kubelet(self.root / "kubelet", cdi_dirs=self.cdi) as self.kubelet:
                self.agent = Agent(
                    "--machine", self.machine, "--config", self.config, "--kubelet-root", self.root / "kubelet",
                    "--state-dir", self.root / "state", "--cdi-dir", self.cdi,
                )  # fmt: skip
                async with self.agent:
                    yield await self.registration()
                    yield await self.a_pod()
                    yield await self.nothing_left()
                    yield await self.a_fault_elsewhere()
                    yield await self.kubelet_restarts()
                    yield await self.another_name()
                    yield await self.memory_is_shared()
                    yield await self.time_is_shared()
                    yield await self.a_device_that_is_no_gpu()
                    if (gpu := migscene.find_gpu(self.described.gpus or ())) is not None:
                        yield await self.a_gpu_is_partitioned(gpu)
                    if self.described.driver and self.described.driver.files:
                        yield await self.a_claim()
                        yield await self.cdi_devices()
                    yield await self.the_end()

    def the_machine(self) -> Scene:
        gpus, driver = self.described.gpus or (), self.described.driver
        models = {gpu.model: sum(each.model == gpu.model for each in gpus) for gpu in gpus}
        lines = {model: f"{count} × {_memory(gpus, model)}" for model, count in models.items()}
        if driver:
            lines["driver"] = f"{driver.version}, CUDA {driver.cuda}"
        lines["topology"] = _topology(self.described)
        return Scene(f"A machine, described in {self.name}", lines, {"models": models})

    async def registration(self) -> Scene:
        began = time.monotonic()
        await self._shows(GPU, self.count, self.count)
        took = time.monotonic() - began
        socket = self.kubelet.manager.endpoints[GPU].socket.name
        lines = {
            "registered": f"{GPU} at socket {socket}, {took:.2f} s after the start of the process",
            "the node shows": f"{GPU}: {self.count}",
        }
        return Scene("The agent starts and registers with kubelet", lines, {"seconds": took, "capacity": self.count})

    async def a_pod(self) -> Scene:
        self.train = pod("train", gpu=self.wanted)
        running = await self.kubelet.run(self.train)
        self.held = list(self.kubelet.devices.held_by(self.train.uid, "main")[GPU])
        env = dict(running.response().envs)
        check(env == {"NVIDIA_VISIBLE_DEVICES": ",".join(self.held)}, f"the container got {env}")
        lines = {"admitted": self.train.key} | {f"its container gets {name}": value for name, value in env.items()}
        number = "one" if self.wanted == 1 else "two"
        return Scene(f"A pod asks for {number}: {GPU}: {self.wanted}", lines, {"env": env})

    async def nothing_left(self) -> Scene:
        self.rest = pod("rest", gpu=self.count - self.wanted)
        await self.kubelet.run(self.rest)
        late = pod("late", gpu=1)
        said = self.kubelet.insufficient_resources(late)
        check(said == [f"Insufficient {GPU}"], f"the scheduler would say {said}")
        reason = await self._rejected(late)
        lines = {"the scheduler would say": ", ".join(said), "kubelet would say, if the scheduler sent the pod": reason}
        return Scene("Another pod comes when no GPU is free", lines, {"reason": reason})

    async def a_fault_elsewhere(self) -> Scene:
        """A GPU that the first pod does not hold falls off the bus, in a copy of the machine file."""
        victim = next(gpu for gpu in self.offered if gpu.uuid not in self.held)
        return await self._break_and_heal(victim.index, victim.uuid)

    async def _break_and_heal(self, index: int, uuid: str) -> Scene:
        original = self.machine.read_bytes()
        broken = original + f"\nfailures: [{{effect: error, gpu: {index}, error: GPU_IS_LOST}}]\n".encode()
        _replace(self.machine, broken)
        await self._shows(GPU, self.count, self.count - 1)
        _replace(self.machine, original)
        await self._shows(GPU, self.count, self.count)
        lines = {
            "lost": f"GPU {index}, {uuid}",
            "the node shows": f"{GPU}: {self.count}, allocatable {self.count - 1}; the others are served",
            "and when it is back": f"allocatable {self.count}, without a restart",
        }
        return Scene("A GPU falls off the bus, and comes back", lines, {"gpu": uuid})

    async def a_device_that_is_no_gpu(self) -> Scene:
        """A device node is written into the copy of the machine file, goes missing, and comes back."""
        name, node = KVM, "/dev/kvm"
        device = f"\ndevices: [{{id: kvm, kind: device-node, device_nodes: [{node}]%s}}]\n"
        missing = f", faults: [{{code: device-node-missing, message: {node} does not exist}}]"
        original = self.machine.read_bytes()
        _replace(self.machine, original + (device % "").encode())
        await self._shows(name, 1, 1)
        running = await self.kubelet.run(_asks("virtual", name, 1))
        nodes = [each.container_path for each in running.response().devices]
        check(nodes == [node], f"the container got {nodes}")
        await self.kubelet.end(running.pod.key)
        _replace(self.machine, original + (device % missing).encode())
        await self._shows(name, 1, 0)
        _replace(self.machine, original + (device % "").encode())
        await self._shows(name, 1, 1)
        lines = {
            "the node shows": f"{name}: 1",
            f"the container of pod {running.pod.key} gets": node,
            f"while {node} does not exist": "allocatable 0, then 1 again",
        }
        return Scene("A device that is no GPU", lines, {"resource": name, "nodes": nodes})

    async def kubelet_restarts(self) -> Scene:
        before = len([call for call in self.kubelet.trace if call.method == "Allocate"])
        began = time.monotonic()
        await self.kubelet.restart()
        await self._shows(GPU, self.count, self.count)
        took = time.monotonic() - began
        again = len([call for call in self.kubelet.trace if call.method == "Allocate"]) - before
        check(again == 0, f"Allocate was called {again} times for pods that ran")
        health = self.kubelet.pod_health(self.train.key)["main"][GPU]
        check(health == [(id, "Healthy") for id in self.held], f"the pod's devices are {health}")
        lines = {
            "registered again": f"{took:.2f} s later, by the same process",
            f"pod {self.train.key}": "keeps running with its GPUs",
        }
        return Scene("Kubelet restarts", lines, {"seconds": took})

    async def another_name(self) -> Scene:
        """The pods end only after kubelet has listed them since its restart: else they would be held on for half a
        minute, because a kubelet that has just started may not have heard of them.
        """
        name, asked = "nvidia.com/trainer", self.kubelet.manager.list_count
        _replace(self.config, f'version: v1\nresources: {{gpus: [{{pattern: "*", name: {name}}}]}}\n'.encode())
        await self._shows(name, self.count, 0)
        await self._shows(GPU, 0, 0)
        withheld = await self.agent.until_says(self.train.key, name)
        await self.kubelet.until(lambda: self.kubelet.manager.list_count > asked)
        free = self.count - self.wanted
        await self.kubelet.end(self.rest.key)
        await self._shows(name, self.count, free)
        await self.kubelet.end(self.train.key)
        await self._shows(name, self.count, self.count)
        lines = {
            "at once": f"{name}: {self.count}, allocatable 0; {GPU}: 0",
            "withheld": withheld.partition(": ")[2],
            "and as the pods end": f"{name}: {self.count}, allocatable {free}, then {self.count}",
        }
        return Scene("The configuration is edited: the GPUs get another name", lines, {"name": name})

    async def memory_is_shared(self) -> Scene:
        """Two pods that do not fit on one GPU, and one that takes little: it goes where less is left."""
        _replace(self.config, b"version: v1\nsharing: {memory: {resources: [{name: gpu}]}}\n")
        room = {gpu.uuid: gpu.memory_mib // 1024 for gpu in self.offered}
        total, much = sum(room.values()), 6 * min(room.values()) // 10
        await self._shows(MEMORY, total, total)
        self.sharers = [_asks(name, MEMORY, n) for name, n in (("first", much), ("second", much), ("little", 1))]
        said = [(await self.kubelet.run(each)).response().envs for each in self.sharers]
        placed = [env["NVIDIA_VISIBLE_DEVICES"] for env in said]
        limits = [env["GPUPLANE_MEMORY_MIB"] for env in said]
        check(limits == [str(1024 * much)] * 2 + ["1024"], f"the containers got the memory limits {limits}")
        for uuid, env in zip(placed, said, strict=True):
            room[uuid] -= int(env["GPUPLANE_MEMORY_MIB"]) // 1024
        check(len(set(placed)) > 1 and min(room.values()) >= 0, f"{placed} have {room} left")
        self.busy = set(placed)
        large = _asks("large", MEMORY, max(room.values()) + 1)
        check(
            not self.kubelet.insufficient_resources(large),
            (
                "the scheduler would not send the pod to the node; the demo expects that it sends the pod, although "
                "no GPU has room"
            ),
        )
        reason = await self._rejected(large)
        lines = {
            "the node shows": f"{MEMORY}: {total}, one for each GiB",
            "one GPU each": ", ".join(
                f"{each.name} on {_short(uuid)}" for each, uuid in zip(self.sharers, placed, strict=True)
            ),
            "told": f"GPUPLANE_MEMORY_MIB={limits[0]}, and the variables of gpushare",
            "a pod asks for more than any GPU has free": reason.partition(f"{MEMORY}: ")[2].partition(", and")[0],
        }
        return Scene("GPUs are shared by their memory", lines, {"placed": placed, "reason": reason})

    async def time_is_shared(self) -> Scene:
        """The next edit, while pods hold memory: their GPUs wait for them, the others are there at once."""
        sharing = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {REPLICAS}, distinctGPUs: true}}]}}}}"
        asked = self.kubelet.manager.list_count
        _replace(self.config, f"version: v1\n{sharing}\n".encode())
        free = self.count - len(self.busy)
        await self._shows(GPU, REPLICAS * self.count, REPLICAS * free)
        await self.kubelet.until(lambda: self.kubelet.manager.list_count > asked)
        for each in self.sharers:
            await self.kubelet.end(each.key)
        await self._shows(GPU, REPLICAS * self.count, REPLICAS * self.count)
        self.last = await self.kubelet.run(pod("both", gpu=2))
        both = self.last.response().envs["NVIDIA_VISIBLE_DEVICES"]
        check(len(set(both.split(","))) == 2, f"a pod asked for two distinct shares and got {both}")
        lines = {
            "at once": (
                f"{GPU}: {REPLICAS * self.count}, allocatable {REPLICAS * free}: pods still hold memory "
                "of the other GPUs"
            ),
            "and as they end": f"allocatable {REPLICAS * self.count}",
            "a pod asks for two": f"distinctGPUs: true gives it {' and '.join(map(_short, both.split(',')))}",
        }
        return Scene("The configuration is edited: time slices instead", lines, {"distinct": both.split(",")})

    async def _rejected(self, wanted: Pod) -> str:
        try:
            await self.kubelet.run(wanted)
        except PodRejected as rejected:
            return str(rejected)
        raise Broken(f"{wanted.name} was admitted")

    async def a_gpu_is_partitioned(self, gpu: migscene.PartitionedGpu) -> Scene:
        try:
            lines = await migscene.play(self.root / "mig", self.machine, gpu, self.count)
        except TimeoutError as error:
            raise Broken(f"the GPU was not partitioned: {error}") from None
        return Scene("A label of the Node partitions a GPU around a pod", lines, {"gpu": gpu.index})

    async def a_claim(self) -> Scene:
        try:
            lines = await claimscene.play(self.root / "claims", self.machine, self.count)
        except TimeoutError as error:
            raise Broken(f"the pod did not get a GPU by its claim: {error}") from None
        return Scene("A pod gets a GPU by a claim (Dynamic Resource Allocation)", lines, {})

    async def cdi_devices(self) -> Scene:
        """The specification is on disk when kubelet learns of the devices, and the runtime resolves them by it."""
        asked = self.kubelet.manager.list_count
        _replace(self.config, b"version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n")
        await self.kubelet.until(lambda: self.kubelet.manager.list_count > asked)
        await self.kubelet.end(self.last.pod.key)
        await self._shows(GPU, self.count, self.count)
        self.last = await self.kubelet.run(pod("train", gpu=self.wanted))
        made = await self._made()
        held = self.kubelet.devices.held_by(self.last.pod.uid, "main")[GPU]
        own = {f"/dev/nvidia{gpu.minor}" for gpu in self.offered if gpu.uuid in held}
        others = {f"/dev/nvidia{gpu.minor}" for gpu in self.described.gpus or ()} - own
        nodes = {node.path: f"{node.major}:{node.minor}" for node in made.device_nodes}
        check(own <= nodes.keys() and not others & nodes.keys(), f"the container of {held} has the nodes {nodes}")
        files = {defined.file.path: defined.file for defined in read_registry([self.cdi]).devices.values()}.values()
        (file,) = (each for each in files if each.spec is not None and each.spec.kind.endswith("/gpu"))
        assert file.spec is not None  # it defines devices
        virtual = await self.kubelet.run(_asks("virtual", KVM, 1))
        (by_cdi,) = (each.name for each in virtual.response().cdi_devices)
        named = [_short(each.name.partition("=")[2]) for each in self.last.response().cdi_devices]
        lines = {
            "on disk": f"{Path(file.path).name}: {len(file.spec.devices)} devices of {file.spec.kind}",
            "a pod's container gets": ", ".join(named),
            "the runtime gives it": f"{', '.join(f'{path} ({nodes[path]})' for path in sorted(own))} "
            f"and {len(nodes) - len(own)} other nodes",
            "and by CDI, too": f"{by_cdi}, for a pod that asks for {KVM}",
            "driver files and variables": f"{len(made.mounts)} files, and {', '.join(made.env)}",
        }
        data = {"file": file.path, "nodes": nodes, "mounts": len(made.mounts), "env": made.env}
        return Scene("The configuration is edited: GPUs are CDI devices", lines, data)

    async def the_end(self) -> Scene:
        """What containers need to restart stays."""
        status = await self.agent.stop()
        check(status == 0, f"the agent ended with status {status}")
        left = sorted(path.name for path in (self.root / "kubelet/device-plugins").glob("*nvidia*"))
        check(not left, f"the agent did not remove {left}")
        before = self.last.created["main"]
        self.kubelet.crash(self.last.pod.key)
        made = await self._made()
        check(made == before, f"the container got {before}, and then {made}")
        lines = {
            "ended": "with status 0, its sockets removed",
            "a container restarts": "with the same devices: no request to the agent is needed",
        }
        return Scene("The agent stops", lines, {"status": status})

    async def _made(self) -> ContainerEdits:
        """What the last pod's container is made with, once it is."""
        try:
            await self.kubelet.until(lambda: "main" in self.last.started)
        except TimeoutError:
            raise Broken(f"pod {self.last.pod.key} waits: {self.last.waiting_reasons}") from None
        return self.last.created["main"]

    async def _shows(self, resource: str, capacity: int, allocatable: int) -> None:
        try:
            await self.kubelet.until_capacity(resource, capacity, allocatable)
        except TimeoutError as error:
            raise Broken(f"{error}\nthe agent's log:\n" + "\n".join(self.agent.log[-20:])) from None


def check(holds: bool, otherwise: str) -> None:
    """Raise Broken where something does not hold."""
    if not holds:
        raise Broken(otherwise)


REPLICAS = 3


def _asks(name: str, resource: str, count: int) -> Pod:
    return Pod(name, (Container("main", {resource: count}),))


def _short(uuid: str) -> str:
    """A GPU's UUID, cut to what tells those of one machine apart."""
    return f"GPU-…{uuid[-4:]}"


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_suffix(".new")
    aside.write_bytes(content)
    aside.replace(path)


def _memory(gpus: tuple[Any, ...], model: str) -> str:
    sizes = {gpu.memory_mib for gpu in gpus if gpu.model == model}
    return " or ".join(f"{size / 1024:.0f} GiB" for size in sorted(sizes))


def _topology(machine: MachineFile) -> str:
    gpus = machine.gpus or ()
    nodes = {gpu.numa for gpu in gpus if gpu.numa is not None}
    numa = f"{len(nodes)} NUMA node{'s' if len(nodes) != 1 else ''}"
    if all(any(link.peer == "nvswitch" for link in gpu.links) for gpu in gpus):
        return f"{gpus[0].links[0].nvlink_count} NVLinks of each GPU to NVSwitches, {numa}"
    return f"{'NVLink' if any(gpu.links for gpu in gpus) else 'PCIe'} between GPUs, {numa}"
