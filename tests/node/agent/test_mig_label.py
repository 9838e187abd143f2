"""The Node's label `nvidia.com/mig.config`, from an API server to kubelet: what it changes, and what it must not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.node.agent.test_process import WAITS

GPU, HALF, SMALL = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
LABEL, MANAGER = "nvidia.com/mig.config", "nvidia.com/gpu.deploy.mig-manager"
NODE = "/api/v1/nodes/n1"
LAYOUTS = """
version: v1
mig-configs:
  halves: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  mixed: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 3}}]
  seven: [{devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  whole: [{devices: all, mig-enabled: false}]
"""
STATE, WRITES = "nvidia.com/mig.config.state", "PATCH /api/v1/nodes/n1"

Json = dict[str, Any]


class Site:
    """A node of eight H100s with its Node object, a kubelet, and an agent that follows the label."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root, self.server, self.kubelet = root, server, Kubelet(root / "k")
        (root / "kubeconfig").write_text(server.kubeconfig())
        self.layouts = root / "layouts.yaml"
        self.layouts.write_text(LAYOUTS)
        self.configure(follow="true")
        self.label()

    def configure(self, *, follow: str) -> None:
        """Write the configuration."""
        text = f"version: v1\nflags: {{migStrategy: mixed}}\nmig: {{configFile: {self.layouts}, label: {follow}}}\n"
        (self.root / "config.yaml").write_text(text)

    def agent(self, state: str = "s") -> Agent:
        """An agent here."""
        return Agent(
            "--machine", "hgx-h100", "--config", self.root / "config.yaml", "--kubelet-root", self.root / "k",
            "--state-dir", self.root / state, "--node-name", "n1", "--kubeconfig", self.root / "kubeconfig",
        )  # fmt: skip

    def label(self, config: str | None = None, manager: str | None = None, **more: str) -> None:
        """Somebody gives our Node these labels, and takes them away where they are None."""
        there = self.node if self.server.objects.has(parse_path(NODE)) else {"metadata": {}, "status": {}}
        labels = {LABEL: config, MANAGER: manager}
        kept = {key: value for key, value in there["metadata"].get("labels", {}).items() if key not in labels}
        given = {key: value for key, value in labels.items() if value is not None} | more
        self.server.put(NODE, {**there, "metadata": {**there["metadata"], "labels": {**kept, **given}}})

    @property
    def node(self) -> Json:
        """Our Node object."""
        return self.server.objects.get(parse_path(NODE))

    @property
    def state(self) -> str | None:
        """What our Node says of the request."""
        found: str | None = self.node["metadata"].get("labels", {}).get(STATE)
        return found

    @property
    def condition(self) -> Json:
        """The condition that says why; empty where there is none."""
        found = self.node["status"].get("conditions", ())
        return next((each for each in found if each["type"] == "gpuplane.io/MIGReady"), {})

    async def comes_to(self, state: str | None, reason: str = "") -> None:
        """Wait until the state is said, and the condition "False" for this reason."""

        def is_there() -> bool:
            said = self.condition.get("status"), self.condition.get("reason")
            return self.state == state and (not reason or said == ("False", reason))

        try:
            await self.server.until(is_there)
        except TimeoutError:
            raise AssertionError(f"{self.state} and {self.condition}") from None

    def keep_lists(self) -> list[set[str]]:
        """The healthy whole GPUs of each list that kubelet gets from now on."""
        lists, received = list[set[str]](), self.kubelet.manager.list_received

        def keep(resource: str, response: Any) -> None:
            if resource == GPU:
                lists.append({device.ID for device in response.devices if device.health == "Healthy"})
            received(resource, response)

        self.kubelet.manager.list_received = keep  # type: ignore[method-assign]
        return lists

    async def shows(self, **counts: int) -> None:
        """Kubelet shows so many whole GPUs, halves and small devices, all of them allocatable."""
        for name, count in counts.items():
            resource = {"gpus": GPU, "halves": HALF, "small": SMALL}[name]
            await self.kubelet.until_capacity(resource, count, count, deadline=60)

    async def nothing_changes(self, **counts: int) -> None:
        """Kubelet shows the same for a while."""
        await asyncio.sleep(1.5)
        await self.shows(**counts)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with ApiServer() as server:
        site = Site(tmp_path, server)
        async with site.kubelet:
            yield site


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[Agent]:
    """An agent whose eight whole GPUs kubelet shows."""
    async with site.agent() as agent:
        await site.shows(gpus=8)
        yield agent


async def test_the_label_partitions_and_its_removal_leaves_all_as_it_is(site: Site) -> None:
    """Somebody else sets it while a pod has a GPU; a later label goes on from what the first one made."""
    async with serving(site):
        site.label("halves")
        await site.shows(halves=2, gpus=7)
        await site.kubelet.run(pod("train", namespace="default", **{HALF: 1}))
        site.label("mixed")
        await site.shows(small=3, halves=1)
        site.label(None)
        await site.nothing_changes(small=3, halves=1, gpus=7)


async def test_a_layout_that_is_requested_beforehand_is_made_before_anything_is_given_out(site: Site) -> None:
    """On a new node, no pod gets a whole GPU. When all parts are there, the node is ready, with one line in the log."""
    site.layouts.write_text(LAYOUTS + "  all: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]\n")
    site.label("all")
    lists = site.keep_lists()
    async with site.agent() as agent:
        await site.shows(small=56)
        await site.server.until(
            lambda: "gpuplane.io/GPUReady" in {each["type"] for each in site.node["status"]["conditions"]}
        )
        await agent.until_says(f"{SMALL}: 56 devices offered")
        assert not any(lists)
        assert sum(" devices offered" in line for line in agent.log) == 1
    [told] = [each for each in site.node["status"]["conditions"] if each["type"] == "gpuplane.io/GPUReady"]
    assert told["status"] == "True"


async def test_the_pod_that_is_in_the_way_is_named_until_it_ends(site: Site) -> None:
    """The state is pending as long."""
    async with serving(site):
        site.label("halves")
        await site.shows(halves=2, gpus=7)
        await site.comes_to("success")
        await site.kubelet.run(pod("train", namespace="default", **{HALF: 2}))
        site.label("mixed")
        await site.comes_to("pending", "Held")
        assert "default/train" in site.condition["message"]
        await site.nothing_changes(gpus=7)
        assert site.kubelet.capacity(HALF) == (2, 1)  # the one that is to go is withheld from new pods
        await site.kubelet.end("default/train")
        await site.shows(small=3, halves=1)
        await site.comes_to("success")


async def test_a_label_that_is_not_followed_changes_nothing(site: Site) -> None:
    """It is followed as soon as the configuration says so, without a restart."""
    site.configure(follow="false")
    async with serving(site):
        site.label("halves")
        await site.nothing_changes(gpus=8)
        site.configure(follow="true")
        await site.shows(halves=2, gpus=7)


async def test_nothing_is_changed_beside_nvidias_mig_manager(site: Site) -> None:
    """Two programs that change the same GPUs would fight, and the state is the other one's. When that has gone, the
    label is followed."""
    async with serving(site):
        site.label("halves", manager="true", **{STATE: "rebooting"})
        await site.comes_to("rebooting", "MigManager")
        await site.nothing_changes(gpus=8)
        assert site.state == "rebooting"  # as that manager has written it
        site.label("halves", manager="false")
        await site.shows(halves=2, gpus=7)


async def test_a_name_that_is_in_no_file_changes_nothing_until_it_is(site: Site) -> None:
    """So does a version of the file that is bad. A good one is followed, with the label as it is."""
    async with serving(site) as agent:
        site.label("quarters")
        await site.nothing_changes(gpus=8)
        site.layouts.write_text(LAYOUTS + "  quarters: [{devices: [2], mig-enabled: true}]\n")
        assert "layouts.yaml:8" in await agent.until_says("mig configs file: failing")
        await site.nothing_changes(gpus=8)
        site.layouts.write_text(
            LAYOUTS + "  quarters: [{devices: [2], mig-enabled: true, mig-devices: {1g.10gb: 4}}]\n"
        )
        await site.shows(small=4, gpus=7)


async def test_the_layout_comes_back_before_the_api_server_has_spoken(site: Site) -> None:
    """As after a reboot of the node: a described machine is then as its file has it. The whole GPU, which the layout
    does not have, is in no list, so no pod gets it meanwhile."""
    async with serving(site):
        site.label("seven")
        await site.shows(small=7, gpus=7)
    site.server.failures.append(InjectedFailure("*", code=503, times=1 << 30))
    lists = site.keep_lists()
    async with site.agent():
        await site.shows(small=7, gpus=7)
    assert len(lists) >= 1
    assert all(len(ids) == 7 for ids in lists if ids)


async def test_only_the_agent_that_serves_follows_the_label(site: Site) -> None:
    """One that stands by makes nothing; when it takes over, it goes on."""
    async with serving(site) as first, site.agent("other") as second:
        await second.until_says(WAITS)
        site.label("halves")
        await site.shows(halves=2, gpus=7)
        assert not any("partition" in line and "failing" in line for line in second.log)
        await first.stop()
        site.label("seven")
        await site.shows(small=7, gpus=7)  # the machine that it describes for itself had no halves


async def test_the_state_does_not_change_at_a_restart(site: Site) -> None:
    """Not even while the GPUs are not known: who waits for `success` sees it all the time."""
    site.label("whole")
    async with serving(site):
        await site.server.until(lambda: site.state == "success")
    writes = site.server.requests.count(WRITES)
    assert site.state == "success"
    async with serving(site):
        await asyncio.sleep(2)
        assert (site.state, site.server.requests.count(WRITES)) == ("success", writes)


async def test_only_the_agent_that_serves_tells_the_state(site: Site) -> None:
    """One that stands by does not; when it takes over, it tells how the request stands with it, and with that goes."""
    async with serving(site) as first, site.agent("other") as second:
        await second.until_says(WAITS)
        site.label("halves")
        await site.server.until(lambda: site.state == "success")
        writes = site.server.requests.count(WRITES)
        await asyncio.sleep(1)
        assert site.server.requests.count(WRITES) == writes
        await first.stop()
        site.label("nothing-like-it")
        await site.server.until(lambda: site.state == "failed")
        site.label(None)
        await site.server.until(lambda: site.state is None)


async def test_an_agent_without_a_node_name_says_that_it_sees_no_label(site: Site) -> None:
    """It was switched on, and nothing would happen."""
    arguments = ("--machine", "hgx-h100", "--config", site.root / "config.yaml", "--kubelet-root", site.root / "k")
    async with Agent(*arguments, "--state-dir", site.root / "s") as agent:
        assert "--node-name" in await agent.until_says("mig state: failing")
