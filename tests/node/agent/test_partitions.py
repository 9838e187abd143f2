"""A GPU is partitioned anew under a running agent, by command: what kubelet and the other GPUs see of it."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet, PodRejected, pod
from tests.node.agent.test_process import gpuplane

NODE, STATE = parse_path("/api/v1/nodes/n1"), "nvidia.com/mig.config.state"
GPU, HALF, SMALL = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
LAYOUTS = """
version: v1
mig-configs:
  halves: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  mixed: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 3}}]
  whole: [{devices: [0], mig-enabled: false}]
  seven: [{devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 7}}]
"""
Lists = dict[str, list[dict[str, str]]]


class Site:
    """A node with an agent of eight GPUs, a kubelet that keeps every list, and named layouts."""

    def __init__(self, root: Path) -> None:
        self.root, self.state, self.kubelet = root, root / "s", Kubelet(root / "k")
        (root / "layouts.yaml").write_text(LAYOUTS)
        (root / "config.yaml").write_text("version: v1\nflags: {migStrategy: mixed}\n")
        self.lists: Lists = defaultdict(list)  # resource → each list that was sent: id → health
        received = self.kubelet.manager.list_received

        def keep(resource: str, response: Any) -> None:
            self.lists[resource].append({device.ID: device.health for device in response.devices})
            received(resource, response)

        self.kubelet.manager.list_received = keep  # type: ignore[method-assign]

    def agent(self, *more: object) -> Agent:
        """An agent here."""
        return Agent(
            "--machine", "hgx-h100", "--config", self.root / "config.yaml", "--kubelet-root", self.root / "k",
            "--state-dir", self.state, *more,
        )  # fmt: skip

    def follow_label(self, server: ApiServer, file: str = "layouts.yaml") -> tuple[object, ...]:
        """Have agents follow the label of the Node, which is there; their flags for it."""
        path = f"configFile: {self.root / file}, " if file else ""
        text = f"version: v1\nflags: {{migStrategy: mixed}}\nmig: {{{path}label: true}}\n"
        (self.root / "config.yaml").write_text(text)
        (self.root / "kubeconfig").write_text(server.kubeconfig())
        label(server)
        return "--node-name", "n1", "--kubeconfig", self.root / "kubeconfig"

    async def mig(self, command: str, name: str, *more: object) -> tuple[int, Any]:
        """(exit status, document) of `gpuplane mig`."""
        file = self.root / "layouts.yaml"
        code, said = await gpuplane("mig", command, "-f", file, "-c", name, "--state-dir", self.state, "--json", *more)
        return code, json.loads(said[said.index("{") :])


def label(server: ApiServer, **labels: str) -> None:
    """The Node has these labels of somebody else's, and no others of theirs."""
    known = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    metadata = {"name": "n1", "labels": {"kubernetes.io/os": "linux", **known}}
    old = server.objects.get(NODE) if server.objects.has(NODE) else {}
    ours = {key: value for key, value in old.get("metadata", {}).get("labels", {}).items() if key == STATE}
    metadata["labels"] = {**metadata["labels"], **ours}  # type: ignore[dict-item]
    status = {"status": old["status"]} if "status" in old else {}
    server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **status})


def state(server: ApiServer) -> str:
    """The label that says how the request stands; "" for none."""
    return str(server.objects.get(NODE)["metadata"].get("labels", {}).get(STATE, ""))


def condition(server: ApiServer) -> tuple[str, str]:
    """(status, reason) of the condition."""
    found = server.objects.get(NODE).get("status", {}).get("conditions", ())
    return next(
        ((each["status"], each["reason"]) for each in found if each["type"] == "gpuplane.io/MIGReady"), ("", "")
    )


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    async with site.kubelet:
        yield site


async def test_the_other_gpus_do_not_notice(site: Site) -> None:
    """Their entries are the same in every list, and a resource that this GPU is not in gets no list."""
    async with site.agent():
        await site.kubelet.until_capacity(GPU, 8, 8)
        assert (await site.mig("apply", "seven"))[0] == 0
        await site.kubelet.until_capacity(SMALL, 7, 7)
        await site.kubelet.until_capacity(GPU, 7, 7)
        before = {resource: len(lists) for resource, lists in site.lists.items()}
        others = {id: health for id, health in site.lists[GPU][-1].items() if not id.endswith("-000000000000")}
        assert len(others) == 6
        assert (await site.mig("apply", "halves"))[0] == 0
        await site.kubelet.until_capacity(HALF, 2, 2)
        await site.kubelet.until_capacity(GPU, 6, 6)
        for each in site.lists[GPU][before[GPU] :]:
            assert {id: health for id, health in each.items() if id in others} == others
        assert len(site.lists[SMALL]) == before[SMALL]


async def test_the_rest_is_partitioned_around_a_pod(site: Site) -> None:
    """Its device stays in its list; what is free goes; when the pod has ended the GPU is whole again."""
    async with site.agent():
        await site.kubelet.until_capacity(GPU, 8, 8)
        assert (await site.mig("apply", "halves"))[0] == 0
        await site.kubelet.until_capacity(HALF, 2, 2)
        running = await site.kubelet.run(pod("train", namespace="default", **{HALF: 1}))
        [id] = site.kubelet.devices.held_by(running.pod.uid, "main")[HALF]
        code, told = await site.mig("apply", "mixed")
        assert code == 0, json.dumps(told, indent=1)
        await site.kubelet.until_capacity(SMALL, 3, 3)
        assert all(each.get(id) == "Healthy" for each in site.lists[HALF][2:])
        code, told = await site.mig("apply", "whole")
        assert (code, told["gpus"][0]["holders"]) == (1, ["default/train"])
        with pytest.raises(PodRejected):
            await site.kubelet.run(pod("late", namespace="default", **{SMALL: 1}))
        await site.kubelet.end("default/train")
        await site.kubelet.until_capacity(GPU, 8, 8, deadline=60)


async def test_layouts_come_back_after_a_restart_and_an_agent_that_was_killed_is_finished(site: Site) -> None:
    """The request is in the state directory."""
    async with site.agent() as first:
        await site.kubelet.until_capacity(GPU, 8, 8)
        asked = asyncio.create_task(site.mig("apply", "seven"))
        async with asyncio.timeout(60):
            while not (site.state / "partitions.json").exists():
                await asyncio.sleep(0.001)
        await first.kill()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    async with site.agent():  # the described machine is as its file has it: as after a reboot
        await site.kubelet.until_capacity(SMALL, 7, 7, deadline=60)
        await site.kubelet.until_capacity(GPU, 7, 7)


async def test_the_label_of_the_node_requests_a_layout(site: Site) -> None:
    """The state label and the condition say how it stands; without the label everything stays as it is."""
    async with ApiServer() as server:
        flags = site.follow_label(server)
        async with site.agent(*flags):
            await site.kubelet.until_capacity(GPU, 8, 8)
            await server.until(lambda: condition(server) == ("True", "NotRequested"))
            assert state(server) == ""
            label(server, nvidia_com__mig_config="seven")
            await site.kubelet.until_capacity(SMALL, 7, 7)
            await server.until(lambda: state(server) == "success")
            await server.until(lambda: condition(server) == ("True", "Applied"))
            label(server, nvidia_com__mig_config="nothing-like-it")
            await server.until(lambda: state(server) == "failed")
            await server.until(lambda: condition(server) == ("False", "ConfigUnknown"))
            label(server)
            await server.until(lambda: state(server) == "")
            await server.until(lambda: condition(server) == ("True", "NotRequested"))
            assert site.kubelet.capacity(SMALL) == (7, 7)


async def test_a_pod_in_the_way_is_named_until_it_ends(site: Site) -> None:
    """And what NVIDIA's MIG manager does here is left to it."""
    async with ApiServer() as server:
        flags = site.follow_label(server)
        label(server, nvidia_com__mig_config="halves")
        async with site.agent(*flags):
            await site.kubelet.until_capacity(HALF, 2, 2)
            await site.kubelet.run(pod("train", namespace="default", **{HALF: 1}))
            label(server, nvidia_com__mig_config="whole")
            await server.until(lambda: state(server) == "pending")
            await server.until(lambda: condition(server) == ("False", "Held"))
            await site.kubelet.end("default/train")
            await site.kubelet.until_capacity(GPU, 8, 8, deadline=60)
            await server.until(lambda: state(server) == "success")
            label(server, **{"nvidia_com__mig_config": "seven", "nvidia_com__gpu_deploy_mig-manager": "true"})
            await server.until(lambda: condition(server) == ("False", "MigManager"))
            await server.until(lambda: state(server) == "")
            assert site.kubelet.capacity(GPU) == (8, 8)


async def test_layouts_come_back_before_anything_is_offered(site: Site) -> None:
    """After a reboot, without a word of the API server: from what the Node requested last. GPU 1 is never whole."""
    async with ApiServer() as server:
        flags = site.follow_label(server, file="")
        label(server, nvidia_com__mig_config="all-1g.10gb")
        async with site.agent(*flags):
            await site.kubelet.until_capacity(SMALL, 56, 56)
        await server.stop()
        site.lists.clear()
        async with site.agent(*flags):
            await site.kubelet.until_capacity(SMALL, 56, 56, deadline=60)
            assert not any("Healthy" in each.values() for each in site.lists.get(GPU, ()))
        await server.start()
