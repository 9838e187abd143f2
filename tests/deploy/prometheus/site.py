"""A node that has something of everything that the dashboard shows: a real agent, a kubelet, described GPUs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.pods import pod
from tests.node.agent.test_metrics_and_health_pages import free_port, get
from tests.node.agent.test_process import gpuplane

SHARED, BUSY, SPLIT, IDLE, BROKEN, DRAINED, TO_RESET = range(7)
"""What each GPU is, by its index."""
POWER = {each: 100.0 + 50 * each for each in range(7)}
"""In watts."""
PODS = ("one", "two", "three", "four")
MIG_POD = "small"
IDS = {name: n + 1 for n, name in enumerate((*PODS, MIG_POD))}
CONFIG = """\
version: v1
flags: {migStrategy: mixed}
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}
"""


OUTSIDE = {
    "gpu": BUSY,
    "pid": 99,
    "memory_mib": 300,
    "sm_percent": 5,
    "started": 1,
    "cgroups": ["/system.slice/x.service"],
}
"""A process of no container."""


def uuid(name: str) -> str:
    """Of a pod."""
    return f"0000000{IDS[name]}-0000-4000-8000-000000000000"


def machine(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Seven GPUs: see SHARED to TO_RESET."""
    gpus: list[dict[str, Any]] = [
        {
            "index": n,
            "uuid": f"GPU-{n}",
            "model": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "pci": f"0000:0{n + 1}:00.0",
            "links": [{"peer": "nvswitch", "nvlink_count": 18}],
        }
        for n in range(7)
    ]
    gpus[SPLIT]["mig"] = {
        "enabled": True,
        "devices": [
            {"uuid": mig_uuid(7), "profile": "1g.10gb", "gpu_instance": 7, "memory_mib": 9856},
            {"uuid": mig_uuid(2), "profile": "3g.40gb", "gpu_instance": 2, "mig_index": 1, "memory_mib": 40448},
        ],
    }
    gpus[BROKEN]["faults"] = [{"code": "remap-failed", "message": "a row could not be remapped"}]
    gpus[TO_RESET]["faults"] = [{"code": "recovery-reset", "message": "recovery action: reset"}]
    return {
        "driver": {"version": "570.172.08", "cuda": "12.8"},
        "gpus": gpus,
        "processes": processes,
        "incidents": [{"gpu": BUSY, "code": "xid-31"}],
        "load": [*(load(n) for n in range(7)), *(mig_load(n) for n in (7, 2)), *(link_load(n) for n in range(4))],
    }


def mig_uuid(instance: int) -> str:
    return f"MIG-0000000{instance}-0000-4000-8000-000000000000"


def load(gpu: int) -> dict[str, Any]:
    """What a GPU tells: all default fields but the temperature of the last one's memory."""
    share = 0.0 if gpu == IDLE else 0.5
    growing = {"curve": "counter", "high": 600.0, "period": 1.0}
    readings: dict[str, Any] = {
        "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_GPU_TEMP": 60 + gpu,
        "DCGM_FI_DEV_POWER_USAGE": POWER[gpu], "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": growing,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": growing, "DCGM_FI_DEV_GPU_UTIL": 100 * share,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 30 * share, "DCGM_FI_DEV_ENC_UTIL": 10 * share, "DCGM_FI_DEV_DEC_UTIL": 5 * share,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 1,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": int(gpu == BROKEN), "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": growing,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 1e9 * share, "DCGM_FI_PROF_PCIE_RX_BYTES": 2e9 * share,
    }  # fmt: skip
    if gpu != TO_RESET:
        readings["DCGM_FI_DEV_MEMORY_TEMP"] = 70
    return {"gpu": gpu, "readings": {**readings, **(usage(share, 60000) if gpu != SPLIT else {})}}


def mig_load(instance: int) -> dict[str, Any]:
    return {"gpu": SPLIT, "mig": mig_uuid(instance), "readings": usage(0.25, 1000 * instance)}


def link_load(link: int) -> dict[str, Any]:
    growing = {"curve": "counter", "high": 1e6, "period": 1.0}
    readings = {"DCGM_FI_DEV_NVLINK_TX_BYTES": growing, "DCGM_FI_DEV_NVLINK_RX_BYTES": growing}
    return {"gpu": BUSY, "nvlink": link, "readings": readings}


def usage(share: float, memory: float) -> dict[str, float]:
    """What both GPUs and GPU instances tell."""
    active = ("GR_ENGINE", "PIPE_TENSOR", "DRAM")
    return {**{f"DCGM_FI_PROF_{each}_ACTIVE": share for each in active}, "DCGM_FI_DEV_FB_USED": memory}


class Node:
    """Its directory, and the pages of its agents: that of the one that serves, and that of one that stands by."""

    def __init__(self, root: Path) -> None:
        self.root, self.address, self.standby = root, *(f"127.0.0.1:{free_port()}" for _ in range(2))

    def agent(self, address: str) -> Agent:
        """An agent of this node."""
        return Agent(
            "--machine", self.root / "machine.yaml", "--config", self.root / "config.yaml",
            "--kubelet-root", self.root / "k", "--state-dir", self.root / "s", "--host-root", self.root / "h",
            "--kernel-log", self.root / "nothing", "--metrics-address", address,
        )  # fmt: skip

    async def command(self, *words: object) -> None:
        """Run a command of gpuplane, which has to succeed."""
        status, output = await gpuplane(*words, "--state-dir", self.root / "s")
        assert status == 0, output


@asynccontextmanager
async def node(root: Path) -> AsyncIterator[Node]:
    """A node whose page has all of it, in the middle of an upgrade of its agent."""
    found = Node(root)
    (root / "config.yaml").write_text(CONFIG)
    _describe(root, [])
    for name in IDS:
        _record(root, name)
    async with Kubelet(root / "k") as kubelet, found.agent(found.address), AsyncExitStack() as stack:
        await kubelet.until_capacity("nvidia.com/gpu", 7, 5)
        await found.command("health", "drain", DRAINED, "--why", "fan")
        await kubelet.until_capacity("nvidia.com/gpu", 7, 4)
        for name in PODS:
            await kubelet.run(pod(name, namespace="team" if name != "four" else "web", **{"nvidia.com/gpu": 1}))
        await kubelet.run(pod(MIG_POD, namespace="team", **{"nvidia.com/mig-1g.10gb": 1}))
        _describe(root, [*(_process(*each) for each in (await _held(found.address)).items()), OUTSIDE])
        await stack.enter_async_context(other := found.agent(found.standby))
        await other.until_says(READY_TO_TAKE_OVER_TEXT)
        yield found


async def _held(address: str) -> dict[str, int]:
    """Pod → the GPU that it holds, as soon as the page has all."""
    for _ in range(240):
        families = {
            each.name: each for each in text_string_to_metric_families((await get(f"http://{address}/metrics"))[1])
        }
        if info := families.get("gpuplane_allocation_info"):
            found = {each.labels["pod"]: int(each.labels["gpu"]) for each in info.samples if "pod" in each.labels}
            if found.keys() == IDS.keys():
                return found
        await asyncio.sleep(0.25)
    raise AssertionError("the page does not show who holds what")


def _describe(root: Path, processes: list[dict[str, Any]]) -> None:
    fresh = root / "machine.new"
    fresh.write_text(json.dumps(machine(processes)))
    fresh.replace(root / "machine.yaml")


def _process(name: str, gpu: int) -> dict[str, Any]:
    """A process of a pod's container. What it uses is less than what the GPU tells: the rest is nobody's."""
    path = f"/kubepods.slice/kubepods-pod{uuid(name).replace('-', '_')}.slice/cri-containerd-{IDS[name]:064x}.scope"
    found = {"gpu": gpu, "pid": 100 + IDS[name], "memory_mib": 500, "started": 1, "cgroups": [path]}
    return found | ({"gpu_instance": 7} if gpu == SPLIT else {"sm_percent": 0 if gpu == IDLE else 20})


def _record(root: Path, name: str) -> None:
    """What kubelet would keep of a pod's container."""
    space = "team" if name != "four" else "web"
    (root / f"h/var/log/pods/{space}_{name}_{uuid(name)}/main").mkdir(parents=True)
    links = root / "h/var/log/containers"
    links.mkdir(parents=True, exist_ok=True)
    (links / f"{name}_{space}_main-{IDS[name]:064x}.log").symlink_to("/nowhere")
