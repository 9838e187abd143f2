"""A real Prometheus scrapes a real agent: every query of the dashboard has an answer, and the rules hold on it."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import gethostname
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.deploy.kustomize import DEPLOY, Json, apply, build
from tests.deploy.prometheus.dashboard import DASHBOARD, Query, filled_in, queries
from tests.deploy.prometheus.rules import RULES, alerts, records
from tests.deploy.prometheus.server import Prometheus, prometheus, scrape_of_monitor
from tests.deploy.prometheus.site import BUSY, DRAINED, IDLE, POWER, SHARED, SPLIT, Node, node

pytestmark = [pytest.mark.xdist_group("prometheus"), pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[3]
LATE = {"device:gpuplane_fault_events:increase10m", "namespace:gpuplane_devices_held_idle:count"}
"""Recording rules that say nothing before ten minutes have passed."""


class Live(NamedTuple):
    """A Prometheus and the node that it has scraped for some seconds."""

    server: Prometheus
    node: Node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """A Prometheus that has scraped two agents of a node, as components/pod-monitor says, and a dcgm-exporter."""
    root = tmp_path_factory.mktemp("n")
    (root / "p").mkdir()
    overlay = build(DEPLOY / "overlays/host")
    monitor = apply(DEPLOY / "components/pod-monitor", overlay)[-1]
    [pod] = [each["spec"]["template"] for each in overlay if each["kind"] == "DaemonSet"]
    async with node(root) as found:
        with dcgm_exporter() as other:
            scrapes: list[Json] = [
                scrape_of_monitor(monitor, pod, [found.address, found.standby], "2s", cluster="test"),
                {"job_name": "dcgm-exporter", "static_configs": [{"targets": [other], "labels": {"cluster": "test"}}]},
            ]
            with prometheus(root / "p", scrapes, RULES) as server:
                await settled(server)
                yield Live(server, found)


@pytest.fixture
def live(site: Live) -> Prometheus:
    return site.server


async def settled(server: Prometheus) -> None:
    """All that takes a moment: two readings of the slow clock, processes, and rules over them."""
    for expression, count in (
        ("changes(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[1m]) > 1", 1),
        ("gpuplane_container_memory_used_bytes", 5),
        ("rate(gpuplane_driver_calls_total[1m])", 1),
        ("namespace:gpuplane_held_idle:ratio1h", 1),
        ('ALERTS{alertstate="firing"}', 1),
    ):
        await asyncio.to_thread(server.until, expression, count)


@contextmanager
def dcgm_exporter() -> Iterator[str]:
    """The address of a page as that of a dcgm-exporter that stays beside us, without Kubernetes' names."""
    device = 'gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA H100 80GB HBM3",Hostname="{1}"'
    lines = [f"DCGM_FI_PROF_SM_ACTIVE{{{device.format(n, gethostname())}}} 0.5" for n in range(7) if n != SPLIT]
    split = f'{device.format(SPLIT, gethostname())},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    lines += [f"DCGM_FI_DEV_POWER_USAGE{{{device.format(n, gethostname())}}} {POWER[n]}" for n in range(7)]
    page = "\n".join([*lines, f"DCGM_FI_PROF_SM_ACTIVE{{{split}}} 0.25", ""]).encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("query", queries(), ids=lambda query: f"{query.panel} {query.ref}")
async def test_each_query_of_the_dashboard_returns_series(live: Prometheus, query: Query) -> None:
    """With All for each variable, and with one cluster and node."""
    for values in ({}, {"cluster": "test", "node": "node-1"}):
        await asyncio.to_thread(live.until, filled_in(query.expression, values))


async def test_another_node_has_none(live: Prometheus) -> None:
    """The queries are about the node that was chosen: but for zeros, and what is counted by pods."""
    by_pod = {"Pods", "Utilization by pod", "Memory by pod"}
    for query in queries():
        found = live.query(filled_in(query.expression, {"node": "other"}))
        assert not [each for each in found if each.value] or query.panel in by_pod, query


async def test_each_variable_has_values(live: Prometheus) -> None:
    for each in DASHBOARD["templating"]["list"]:
        if each["type"] == "query":
            [(metric, label)] = re.findall(r"label_values\((.*), (\w+)\)", each["definition"])
            assert [found for found in live.query(filled_in(metric, {})) if found.labels.get(label)], each["name"]


PUBLISHED = {
    "GPU Temperature": ("max", "DCGM_FI_DEV_GPU_TEMP", "Hostname, gpu, uuid"),
    "GPU Avg. Temp": ("avg", "DCGM_FI_DEV_GPU_TEMP", ""),
    "GPU Power Usage": ("max", "DCGM_FI_DEV_POWER_USAGE", "Hostname, gpu, uuid"),
    "GPU Power Total": ("sum of max", "DCGM_FI_DEV_POWER_USAGE", "gpu"),
    "GPU SM Clocks": ("max", "DCGM_FI_DEV_SM_CLOCK", "Hostname, UUID, gpu"),
    "GPU Utilization": ("max", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Hostname, gpu, GPU_I_ID, GPU_I_PROFILE"),
    "Tensor Core Utilization": ("max", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Hostname, gpu, GPU_I_ID, GPU_I_PROFILE"),
    "GPU Framebuffer Mem Used": ("max", "DCGM_FI_DEV_FB_USED", "Hostname, gpu, GPU_I_ID, GPU_I_PROFILE"),
}
"""The panels of dcgm-exporter's dashboard, Grafana's number 12239 (grafana/dcgm-exporter-dashboard.json): title → how
it aggregates which metric by which labels. Its variables are Hostname and gpu."""


def published(title: str) -> str:
    how, metric, by = PUBLISHED[title]
    chosen = f'{how.split()[-1]} by ({by}) ({metric}{{Hostname=~".+",gpu=~".+"}})'
    return f"sum({chosen})" if how.startswith("sum") else chosen


@pytest.mark.parametrize("title", PUBLISHED)
async def test_the_panels_of_dcgm_exporters_dashboard_show_the_same(live: Prometheus, title: str) -> None:
    """One series for each GPU, or for each that is not split and each instance; sums are the machine's."""
    found = live.query(published(title))
    by_instance = "GPU_I_ID" in PUBLISHED[title][2]

    assert len(found) == (1 if PUBLISHED[title][2] in ("", "gpu") else 6 + 2 if by_instance else 7)
    if title == "GPU Power Total":
        assert found[0].value == sum(POWER.values())
    if title == "GPU Avg. Temp":
        assert found[0].value == 63


async def test_labels_are_those_of_the_holder_and_never_of_the_agent(live: Prometheus) -> None:
    """A free GPU has no pod; one of several holders has none either and says so."""
    by_gpu = {each.labels["gpu"]: each.labels for each in live.query("DCGM_FI_DEV_GPU_TEMP")}

    for index, labels in by_gpu.items():
        assert (labels["node"], labels["job"], labels["cluster"]) == ("node-1", "gpuplane", "test")
        assert not {"service", "endpoint", "exported_pod", "exported_namespace"} & labels.keys()
        assert ("pod" in labels) == (index in (str(BUSY), str(IDLE))), labels
    assert "pod" not in by_gpu[str(DRAINED)]
    assert by_gpu[str(SHARED)]["shared"] == "true"
    assert not live.query('{pod=~"gpuplane-agent.*"}')


async def test_the_rules_have_values(live: Prometheus) -> None:
    """Each record; and no rule fails on what a real agent shows."""
    groups = live.get("rules")["groups"]
    told = [rule for group in groups for rule in group["rules"]]

    assert len(told) == len(records()) + len(alerts())
    assert [(each["name"], each.get("lastError")) for each in told if each["health"] != "ok"] == []
    assert [name for name in records() if name not in LATE and not live.query(name)] == []


async def test_the_alerts_are_those_of_this_node(live: Prometheus) -> None:
    """What needs no patience fires; what waits is pending; nothing else is said."""
    told = live.query('ALERTS{alertname!="GpuplaneAgentDown"}')  # a busy machine may be late for a scrape
    found = {(each.labels["alertname"], each.labels["alertstate"]) for each in told}

    assert ("GPURowRemapFailed", "firing") in found
    assert {
        ("GPUUnhealthy", "pending"),
        ("GPURecoveryActionWanted", "pending"),
        ("GPUDrainedForLong", "pending"),
    } <= found
    assert {name for name, _ in found} == {
        "GPURowRemapFailed", "GPUUnhealthy", "GPURecoveryActionWanted", "GPUDrainedForLong",
    }  # fmt: skip


async def test_an_upgrade_counts_nothing_twice(live: Prometheus) -> None:
    """An agent that stands by is scraped, too."""
    await asyncio.to_thread(live.until, 'up{job="gpuplane"} == 1', 2)
    for expression, value in (
        ("cluster:gpuplane_gpus:sum", 7),
        ("cluster:gpuplane_power_watts:sum", sum(POWER.values())),
        ("sum(cluster:gpuplane_device_health:count)", 9),
        ("sum(cluster:gpuplane_devices_held:sum)", 5),
        ("sum(pod:gpuplane_devices_held:count)", 5),
    ):
        await asyncio.to_thread(live.until, f"{expression} == {value}")


def examples() -> list[str]:
    """The queries that docs/monitoring.md shows."""
    page = (ROOT / "docs/monitoring.md").read_text()
    return [" ".join(each.split()) for each in re.findall(r"```promql\n(.*?)```", page, re.S)]


@pytest.mark.parametrize("example", examples())
async def test_the_queries_of_the_page_return_series(live: Prometheus, example: str) -> None:
    assert live.query(example)


async def test_a_dcgm_exporter_that_stays_gets_pods(live: Prometheus) -> None:
    """By the first query of the page: those that one container holds, MIG included, each once."""
    found = {(each.labels["UUID"], each.labels["pod"]) for each in live.query(examples()[0])}
    holders = live.query('gpuplane_allocation_info{shared=""}')

    assert found == {(each.labels["UUID"], each.labels["pod"]) for each in holders}
    assert len(found) == 3


async def test_a_released_driver_is_no_alert(site: Live) -> None:
    """Nothing is served and no sample comes: somebody wants it so. (The last test: others want readings.)"""
    silent = [alerts()[name]["expr"] for name in ("GPUsNotServed", "GpuplaneSamplesStale", "GPUDriverFailing")]
    await site.node.command("driver", "release", "--for", "10m", "--why", "reset")
    await asyncio.to_thread(site.server.until, 'gpuplane_device_withheld{kind="released"}', 7)
    await asyncio.to_thread(site.server.until, 'gpuplane_devices{health="healthy"} == 0')

    assert [expression for expression in silent if site.server.query(expression.replace("> 60", "> -1"))] == []
