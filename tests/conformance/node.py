"""A node on which one of everything happens, as programs see it: documents, metrics, log, files, Node and Events.

It is the product as it runs: an agent process beside an embedded kubelet and an API server, and commands as processes.
"""

import asyncio
import json
import socket
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod
from tests.cli.terminals import run_command

PATIENCE = 60.0
NODE = "/api/v1/nodes/n1"
SHARED = "nvidia.com/gpu.shared"
UID = "76acaf17-8883-41ef-8dbd-7e32f6f22459"
CONTAINER = "a9ac79c067320eca1ea34e26e555ba8e5b2a74bececad8e153371f98cdbff849"
RECORDS = f"var/log/pods/default_train_{UID}/main", f"var/log/containers/train_default_main-{CONTAINER}.log"
"""What kubelet keeps of the pod's container: a directory, and a link into it."""
MACHINE = """\
driver: {version: 570.172.08, cuda: "12.8"}
driver_file_layout: debian
shared_nodes: [/dev/nvidiactl, /dev/nvidia-uvm]
major_numbers: {nvidia: 195, nvidia-uvm: 511, nvidia-caps: 237}
gpus:
- {index: 0, uuid: GPU-0, model: NVIDIA A100, memory_mib: 81920, pci: "0000:01:00.0", numa: 0, minor: 0,
   device_nodes: [/dev/nvidia0], faults: [{code: remap-pending, message: a row waits}]}
- {index: 1, uuid: GPU-1, model: NVIDIA A100, memory_mib: 81920, pci: "0000:02:00.0", numa: 0, minor: 1,
   device_nodes: [/dev/nvidia1], links: [{peer: nvswitch, nvlink_count: 1}]}
- {index: 2, uuid: GPU-2, model: NVIDIA A100, memory_mib: 81920, pci: "0000:03:00.0", numa: 1, minor: 2,
   device_nodes: [/dev/nvidia2], mig: {enabled: true}}
- {index: 3, uuid: GPU-3, model: NVIDIA A100, memory_mib: 81920, pci: "0000:04:00.0", numa: 1, minor: 3,
   device_nodes: [/dev/nvidia3], mig: {enabled: true, devices: [{uuid: MIG-0, profile: 1g.10gb, gpu_instance: 7,
   memory_mib: 9728, device_nodes: [/dev/nvidia-caps/nvidia-cap471, /dev/nvidia-caps/nvidia-cap472]}]}}
"""
LOAD = """\
load:
- {gpu: 0, readings: {DCGM_FI_DEV_GPU_UTIL: 50, DCGM_FI_DEV_FB_USED: 3000}}
- {gpu: 1, nvlink: 0, readings: {DCGM_FI_DEV_NVLINK_TX_BYTES: 1, DCGM_FI_DEV_NVLINK_RX_BYTES: 2}}
- {gpu: 3, mig: MIG-0, readings: {DCGM_FI_DEV_FB_USED: 100}}
processes:
- {gpu: 0, pid: 4711, memory_mib: 1000, sm_percent: 30, started: 1, cgroups: [/kubepods/pod@UID/@CONTAINER]}
- {gpu: 3, pid: 4712, memory_mib: 100, sm_percent: 1, started: 1, gpu_instance: 7}
""".replace("@UID", UID).replace("@CONTAINER", CONTAINER)
INCIDENT = """\
incidents:
- {gpu: 1, code: xid-79, message: GPU has fallen off the bus}
"""
CONFIG = """\
version: v1
flags: {migStrategy: mixed, plugin: {deviceListStrategy: cdi-cri}}
health: {probePeriod: 200ms}
sharing:
  timeSlicing:
    renameByDefault: true
    resources: [{name: gpu, replicas: 2, devices: all}]
"""


class Story(msgspec.Struct):
    """What was seen. `documents`: command → what it printed with --json. `pages`: /metrics at several moments."""

    documents: dict[str, Any] = {}
    pages: list[str] = []
    log: list[str] = []
    state: dict[str, bytes] = {}  # file of the state directory → its content
    specifications: dict[str, bytes] = {}  # CDI file → its content
    node: dict[str, Any] = {}
    events: list[dict[str, Any]] = []


def play(root: Path) -> Story:
    """The whole story, in a directory."""
    return asyncio.run(_Stage(root).play())


class _Stage:
    def __init__(self, root: Path) -> None:
        self.story, self.root = Story(), root
        self.machine, self.config, self.state, self.cdi = (
            root / each for each in ("machine.yaml", "config.yaml", "s", "cdi")
        )
        self.machine.write_text(MACHINE + LOAD)
        directory, link = (root / "h" / each for each in RECORDS)
        directory.mkdir(parents=True)
        link.parent.mkdir(parents=True)
        link.symlink_to(f"/{RECORDS[0]}/0.log")
        self.config.write_text(CONFIG)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"127.0.0.1:{probe.getsockname()[1]}"

    async def play(self) -> Story:
        async with ApiServer() as server:
            (self.root / "kubeconfig").write_text(server.kubeconfig())
            server.put(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            async with self._agent() as agent:
                await self._page("gpuplane_waiting{")
                async with Kubelet(self.root / "k", cdi_dirs=self.cdi) as kubelet:
                    await kubelet.until_capacity(SHARED, 4, 4)
                    await self._inspect(kubelet)
                    await self._change(server)
                    await self._read_files()
                self.story.log = agent.log
        await self._run_commands_that_need_no_agent()
        return self.story

    def _agent(self) -> Agent:
        return Agent(
            "--machine", self.machine, "--config", self.config, "--kubelet-root", self.root / "k",
            "--state-dir", self.state, "--cdi-dir", self.cdi, "--metrics-address", self.url,
            "--host-root", self.root / "h", "--log-format", "json", "--node-name", "n1",
            "--kubeconfig", self.root / "kubeconfig",
        )  # fmt: skip

    async def _inspect(self, kubelet: Kubelet) -> None:
        """A pod holds a share of GPU 0, GPU 1 has an XID, GPU 2 is not offered, the MIG device of GPU 3 is drained."""
        await kubelet.run(Pod("train", (Container("main", {SHARED: 1}),)))
        await self._page("gpuplane_container_memory_used_bytes{")
        links = "links: [{peer: nvswitch, nvlink_count: 1}]"
        sick = f"{links}, faults: [{{code: recovery-reset, message: a reset is asked for}}]"
        asked = MACHINE.replace(links, sick)
        self.machine.with_suffix(".new").write_text(asked + LOAD + INCIDENT)
        self.machine.with_suffix(".new").replace(self.machine)
        await kubelet.until_capacity(SHARED, 4, 2)
        await self._json("health drain", "3:0", "--why", "fan", "--for", "2h", "--state-dir", self.state)
        await self._until(lambda: self._json("inspect", "--state-dir", self.state), '"train"')
        await self._json("inspect health", "--state-dir", self.state)
        await self._json("labels", "--state-dir", self.state)
        layouts = self.root / "layouts.yaml"
        layouts.write_text("version: v1\nmig-configs: {off: [{devices: all, mig-enabled: false}]}\n")
        for command in ("mig assert", "mig plan"):
            await self._json(command, "-f", layouts, "--state-dir", self.state)
        await self._json("mig apply", "-f", layouts, "--machine", "dgx-a100")
        await self._json("mig withdraw", "--state-dir", self.state)
        await self._json("mig explain", "3g.40gb")
        await self._page('state="drained"')

    async def _change(self, server: ApiServer) -> None:
        await server.until(lambda: any(each["reason"] == "GPUDrained" for each in _events(server)))
        await self._json("health restore", "3:0", "--state-dir", self.state)
        await server.until(lambda: any(each["reason"] == "GPUUndrained" for each in _events(server)))
        self.story.node, self.story.events = server.objects.get(parse_path(NODE)), _events(server)
        await self._json("driver release", "--for", "10m", "--why", "firmware", "--state-dir", self.state)
        await self._page('kind="released"')

    async def _read_files(self) -> None:
        self.story.state = {each.name: each.read_bytes() for each in self.state.iterdir() if each.is_file()}
        self.story.specifications = {each.name: each.read_bytes() for each in self.cdi.iterdir()}
        await self._json("driver resume", "--state-dir", self.state)

    async def _run_commands_that_need_no_agent(self) -> None:
        device, wrong = "k8s.device-plugin.nvidia.com/gpu=GPU-0", self.root / "wrong.yaml"
        wrong.write_text("version: v1\nflags: {migStratgy: none}\n")
        containerd = self.root / "containerd.toml"
        containerd.write_text("version = 2\n")
        await self._json("cdi list", "--spec-dir", self.cdi)
        await self._json("cdi explain", device, "--spec-dir", self.cdi)
        await self._json("cdi validate", *self.cdi.iterdir(), self.config)
        await self._json("cdi remove", "--cdi-dir", self.cdi, "--kubelet-root", self.root / "k", "--state-dir",
                         self.state, "--force")  # fmt: skip
        await self._json("choose", "--machine", "dgx1-v100", "--size", "2")
        await self._json("config check", self.config, wrong)
        await self._json("config explain", self.config, "--machine", self.machine)
        nodes, pods = self.root / "nodes.csv", self.root / "pods.csv"
        nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,1000,4,T4\n")
        rows = [f"p{gpus},1,1,{gpus},{milli},0,9\n" for gpus, milli in ((0, 0), (1, 500), (2, 1000))]
        pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n" + "".join(rows))
        await self._json("simulate", "--nodes", nodes, "--pods", pods, "--policy", "fgd,waste-price", "--seeds", "1,2",
                         "--departures", "--queue", "backfill", "--fewer")  # fmt: skip
        await self._json("runtime configure", "--runtime", "containerd", "--config", containerd, "--runtime-version",
                         "1.7.24", "--state-dir", self.root / "r", "--dry-run")  # fmt: skip

    async def _json(self, command: str, *more: object) -> str:
        """Run a command with --json, and keep its document."""
        printed = (await asyncio.to_thread(run_command, *command.split(), *more, "--json")).out
        self.story.documents[command] = json.loads(printed) if printed else None
        return printed

    async def _page(self, part: str) -> None:
        """Keep the page of metrics once it has some text."""

        async def read() -> str:
            return await asyncio.to_thread(_get, f"http://{self.url}/metrics")

        self.story.pages.append(await self._until(read, part))

    async def _until(self, read: Callable[[], Awaitable[str]], part: str) -> str:
        async with asyncio.timeout(PATIENCE):
            while part not in (text := await read()):
                await asyncio.sleep(0.05)
        return text


def _get(url: str) -> str:
    """What is there; "" while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]
    return ""


def _events(server: ApiServer) -> list[dict[str, Any]]:
    return list(server.objects.list(parse_path("/api/v1/namespaces/default/events")))
