"""The page of a real agent: figures of a described machine, named by an embedded kubelet's pods."""

import asyncio
import gzip
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.pods import pod
from tests.node.agent.test_metrics_and_health_pages import free_port
from tests.node.core.telemetry import dcgmlists

GPU = "nvidia.com/gpu"
UIDS = {name: f"0000000{n}-0000-4000-8000-000000000000" for n, name in enumerate(("one", "two", "whole"))}
IDS = {name: f"{n:064x}" for n, name in enumerate(UIDS)}
LATIN_1 = b"DCGM_FI_DEV_GPU_TEMP, gauge, Temperature in \xb0C\n"
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}\n"
MACHINE: dict[str, Any] = {
    "driver": {"version": "570.172.08", "cuda": "12.8"},
    "gpus": [
        {"index": n, "uuid": f"GPU-{n}", "model": "NVIDIA L40S", "memory_mib": 46068, "pci": f"0000:0{n + 1}:00.0"}
        for n in range(2)
    ],
    "load": [{"gpu": n, "readings": {"DCGM_FI_DEV_GPU_UTIL": 50 + n, "DCGM_FI_DEV_FB_USED": 3000}} for n in range(2)],
}


def process(gpu: int, name: str, memory: int) -> dict[str, Any]:
    """A process of a pod's container."""
    path = f"/kubepods.slice/kubepods-pod{UIDS[name].replace('-', '_')}.slice/cri-containerd-{IDS[name]}.scope"
    return {"gpu": gpu, "pid": 100 + len(name), "memory_mib": memory, "sm_percent": 10, "started": 1, "cgroups": [path]}


class Site:
    """A kubelet, an agent and their files."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.machine, self.config = root / "machine.yaml", root / "config.yaml"
        self.describe()
        self.config.write_text(SHARED)

    def describe(self, *processes: dict[str, Any]) -> None:
        """Be this machine, with these processes."""
        fresh = self.machine.with_suffix(".new")
        fresh.write_text(json.dumps({**MACHINE, "processes": list(processes)}))
        fresh.replace(self.machine)

    def record(self, name: str) -> None:
        """What kubelet would keep of a pod's container."""
        (self.root / f"h/var/log/pods/team_{name}_{UIDS[name]}/main").mkdir(parents=True)
        links = self.root / "h/var/log/containers"
        links.mkdir(parents=True, exist_ok=True)
        (links / f"{name}_team_main-{IDS[name]}.log").symlink_to("/nowhere")

    def agent(self, port: int, *more: object) -> Agent:
        """An agent of this site."""
        return Agent(
            "--machine", self.machine, "--config", self.config, "--kubelet-root", self.root / "k",
            "--state-dir", self.root / f"s{port}", "--host-root", self.root / "h",
            "--metrics-address", f"127.0.0.1:{port}", *more,
        )  # fmt: skip

    async def until(self, ready: Callable[[dict[str, Any]], bool], port: int = 0) -> dict[str, Any]:
        """The first page that is as it is waited for: name → its family."""
        families: dict[str, Any] = {}
        for _ in range(120):
            with suppress(ConnectionRefusedError):  # it does not listen yet
                text = (await asyncio.to_thread(self.fetch, port or self.port))[1].decode()
                families = {each.name: each for each in parse_text(text)}
                if ready(families):
                    return families
            await asyncio.sleep(0.5)
        raise AssertionError(sorted(families))

    def fetch(self, port: int, **headers: str) -> tuple[dict[str, str], bytes]:
        """(headers, body) of /metrics."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics", headers={name.replace("_", "-"): each for name, each in headers.items()})
        answer = connection.getresponse()
        return dict(answer.getheaders()), answer.read()


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[tuple[Site, Kubelet]]:
    """A site whose GPU 0 is shared by two."""
    site = Site(root)
    async with Kubelet(root / "k") as kubelet, site.agent(site.port):
        await kubelet.until_capacity(GPU, 3, 3)
        yield site, kubelet


def values(families: dict[str, Any], name: str, *shown: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by these labels; {} where there is none."""
    if name not in families:
        return {}
    return {tuple(each.labels.get(label, "") for label in shown): each.value for each in families[name].samples}


async def test_each_container_of_a_shared_gpu_has_its_own_figures(tmp_path: Path) -> None:
    """The GPU's own are told once, and of no pod; a pod that ends leaves nothing behind."""
    async with running(tmp_path) as (site, kubelet):
        for name in UIDS:
            site.record(name)
            await kubelet.run(pod(name, namespace="team", **{GPU: 1}))
        site.describe(process(0, "one", 1000), process(0, "two", 500), process(1, "whole", 2000))
        page = await site.until(lambda page: len(values(page, "gpuplane_container_memory_used_bytes", "pod")) == 3)
        info = values(page, "gpuplane_allocation_info", "UUID", "pod", "shared")
        await kubelet.end("team/two")
        site.describe(process(0, "one", 1000), process(1, "whole", 2000))
        after = await site.until(
            lambda page: not any("two" in str(each.labels) for family in page.values() for each in family.samples)
        )

    assert {pod for _, pod, _ in info} == set(UIDS)
    for uuid, name, shared in info:
        on = [each for each in info if each[0] == uuid]
        assert shared == ("true" if len(on) > 1 else ""), name
    util = values(page, "DCGM_FI_DEV_GPU_UTIL", "UUID", "pod", "shared")
    assert len(util) == 2
    for uuid, name, shared in util:
        own = [each[1] for each in info if each[0] == uuid]
        assert (name, shared) == ((own[0], "") if len(own) == 1 else ("", "true" if own else ""))
    assert {pod for _, pod in values(after, "gpuplane_allocation_info", "UUID", "pod")} == {"one", "whole"}


async def test_the_page_is_text_openmetrics_and_compressed(tmp_path: Path) -> None:
    """The same series in each; what the client prefers is what it gets."""
    async with running(tmp_path) as (site, _):
        await site.until(lambda page: "DCGM_FI_DEV_GPU_UTIL" in page)
        text = await asyncio.to_thread(site.fetch, site.port)
        wanted = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept_Encoding": "gzip"}
        packed = await asyncio.to_thread(lambda: site.fetch(site.port, **wanted))

    assert text[0]["Content-Type"].startswith("text/plain")
    assert packed[0]["Content-Type"].startswith("application/openmetrics-text")
    assert packed[0]["Content-Encoding"] == "gzip"
    families: list[Any] = list(parse_openmetrics(gzip.decompress(packed[1]).decode()))  # type: ignore[no-untyped-call]
    assert {each.name for each in parse_text(text[1].decode())} == {each.name for each in families}


async def test_an_agent_that_stands_by_shows_no_devices(tmp_path: Path) -> None:
    """Or a sum over both would count each GPU twice. It shows them once it serves."""
    async with running(tmp_path) as (site, _):
        await site.until(lambda page: "DCGM_FI_DEV_GPU_UTIL" in page)
        port = free_port()
        async with site.agent(port, "--state-dir", tmp_path / f"s{site.port}") as other:
            await other.until_says("kubelet lock")
            page = await site.until(lambda page: "gpuplane_gpus" in page, port)
            await asyncio.sleep(2)
            page = await site.until(lambda page: "gpuplane_gpus" in page, port)

    assert not [name for name in page if name.startswith(("DCGM_", "gpuplane_device_info", "gpuplane_allocation"))]


async def test_a_list_of_fields_is_followed(tmp_path: Path) -> None:
    """A row that cannot be served is a warning, and the others are shown; a change takes effect. The list that
    dcgm-exporter ships is no failing part. A file that is no list is one, and the last list stays."""
    site, counters = Site(tmp_path), tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, Utilization\nDCGM_FI_DEV_NONSENSE, gauge, x\n")

    def standing(page: dict[str, Any]) -> str:
        shown = values(page, "gpuplane_part_state", "part", "state")
        return next((standing for (part, standing), value in shown.items() if part == "counters file" and value), "")

    async with Kubelet(tmp_path / "k") as kubelet, site.agent(site.port, "--dcgm-counters", counters) as agent:
        await kubelet.until_capacity(GPU, 3, 3)
        page = await site.until(lambda page: "DCGM_FI_DEV_GPU_UTIL" in page)
        assert [name for name in page if name.startswith("DCGM_")] == ["DCGM_FI_DEV_GPU_UTIL"]
        await agent.until_says("WARNING", "counters file", "counters.csv", "line 2: DCGM_FI_DEV_NONSENSE")
        assert standing(page) == "ok"
        counters.write_text(dcgmlists.DEFAULT)
        page = await site.until(lambda page: "DCGM_FI_DEV_FB_USED" in page)
        await agent.until_says("WARNING", "counters file", "DCGM_FI_DEV_VGPU_LICENSE_STATUS")
        assert standing(await site.until(lambda page: standing(page) != "")) == "ok"
        counters.write_text('"DCGM_FI_DEV_FB_USED","gauge","Memory, used"\n')
        await site.until(lambda page: "DCGM_FI_DEV_FB_USED" in page and "DCGM_FI_DEV_GPU_UTIL" not in page)
        for content in (b"nonsense\n", LATIN_1, b"x" * 5_000_000):
            counters.write_bytes(content)
            page = await site.until(lambda page: standing(page) == "failing")
            assert "DCGM_FI_DEV_FB_USED" in page
            counters.write_text("DCGM_FI_DEV_FB_USED, gauge, Memory\n")
            await site.until(lambda page: standing(page) == "ok")
        await agent.until_says("counters file", "failing", "the last list stays")
