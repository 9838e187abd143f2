"""What Kubernetes sees of health, from a real agent over real HTTP: a condition, Events; and drains by annotation."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path as where
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from gpuplane.sandbox.kubelet import Kubelet

GPU = "nvidia.com/gpu"
NODE = "/api/v1/nodes/n1"
EVENTS = "/api/v1/namespaces/default/events"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
LOST = ", faults: [{code: gpu-lost, message: fell off the bus}]"

Json = dict[str, Any]


class Place:
    """A node: a machine of three GPUs, its Node object, kubelet's directory and what an agent needs."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root, self.server = root, server
        self.machine = root / "machine.yaml"
        self.fail("")
        (root / "kubeconfig").write_text(server.kubeconfig())
        (root / "config.yaml").write_text("version: v1\nhealth: {probePeriod: 1s}\n")
        self.ask()

    def agent(self) -> Agent:
        """An agent here."""
        return Agent(
            "--machine", self.machine, "--config", self.root / "config.yaml", "--kubelet-root", self.root,
            "--state-dir", self.root / "state", "--node-name", "n1", "--kubeconfig", self.root / "kubeconfig",
        )  # fmt: skip

    def fail(self, fault: str) -> None:
        """Give GPU 1 a fault, or none."""
        rows = (f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA H100{fault if i == 1 else ''}}}\n" for i in range(3))
        aside = self.machine.with_suffix(".new")
        aside.write_text("gpus:\n" + "".join(rows))
        aside.replace(self.machine)

    def ask(self, **annotations: str) -> None:
        """Our Node object with these annotations; kubelet's part of it stays."""
        status = self.node["status"] if self._there() else {"conditions": [READY], "capacity": {"cpu": "8"}}
        given = {f"gpuplane.io/{name}": value for name, value in annotations.items()}
        self.server.put(NODE, {"metadata": {"annotations": given}, "status": status})

    def _there(self) -> bool:
        return any(self.server.objects.list(where("/api/v1/nodes")))

    @property
    def node(self) -> Json:
        [node] = self.server.objects.list(where("/api/v1/nodes"))
        return node

    @property
    def problem(self) -> Json:
        """Our condition; empty where there is none."""
        return next((each for each in self.node["status"]["conditions"] if each["type"] == "GPUProblem"), {})

    @property
    def events(self) -> list[Json]:
        return sorted(self.server.objects.list(where(EVENTS)), key=lambda each: each["metadata"]["name"])

    @property
    def reasons(self) -> list[str]:
        return [each["reason"] for each in self.events]

    async def stands(self, status: str, reason: str) -> Json:
        await self.server.until(lambda: (self.problem.get("status"), self.problem.get("reason")) == (status, reason))
        return self.problem


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with ApiServer() as server:
        yield Place(tmp_path, server)


async def test_a_gpu_falls_ill_and_becomes_well_again(place: Place) -> None:
    """The condition follows, with the time of its changes; one Event for each change; kubelet's conditions are left."""
    async with Kubelet(place.root) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 3, 3)
        fine = await place.stands("False", "NoProblem")

        assert fine["message"] == "3 GPUs, no problem"
        assert fine["lastTransitionTime"] == fine["lastHeartbeatTime"]

        place.fail(LOST)
        ill = await place.stands("True", "GPUUnhealthy")

        assert ill["message"] == "1 of 3 GPUs is not given out: GPU 1 (GPU-1): gpu-lost: fell off the bus"
        assert ill["lastTransitionTime"] >= fine["lastTransitionTime"]

        await place.server.until(lambda: place.reasons == ["GPUUnhealthy"])
        [event] = place.events

        assert event["involvedObject"] == {"kind": "Node", "name": "n1", "uid": "n1"}
        assert event["source"] == {"component": "gpuplane", "host": "n1"}
        assert (event["type"], event["count"]) == ("Warning", 1)
        assert event["message"].startswith("GPU 1 (GPU-1): gpu-lost: fell off the bus (end the pods on the GPU, ")
        assert "nvidia-smi -r -i GPU-1; gpuplane driver resume --state-dir " in event["message"]

        place.fail("")
        await place.stands("False", "NoProblem")
        await place.server.until(lambda: place.reasons == ["GPUUnhealthy", "GPURecovered"])

        assert [each["type"] for each in place.node["status"]["conditions"]] == [
            "Ready",
            "GPUProblem",
            "gpuplane.io/GPUReady",
        ]
        assert place.node["status"]["capacity"] == {"cpu": "8"}


async def test_a_killed_agent_says_nothing_again(place: Place) -> None:
    """The next one finds its condition as it stood, with the time of its transition, and tells what is new alone."""
    place.fail(LOST)
    async with Kubelet(place.root) as kubelet:
        async with place.agent() as first:
            await kubelet.until_capacity(GPU, 3, 2)
            before = await place.stands("True", "GPUUnhealthy")
            await place.server.until(lambda: place.reasons == ["GPUUnhealthy"])
            await first.kill()
        asked = len(place.server.requests)
        async with place.agent():
            await place.server.until(lambda: "PATCH /api/v1/nodes/n1/status" in place.server.requests[asked:])
            await kubelet.until_capacity(GPU, 3, 2)
            place.ask(drain="2=fan noise")
            await place.server.until(lambda: place.reasons == ["GPUUnhealthy", "GPUDrained"])

            assert place.problem["lastTransitionTime"] == before["lastTransitionTime"]
            assert place.problem["lastHeartbeatTime"] >= before["lastHeartbeatTime"]
            assert place.problem["message"] == before["message"]
            assert [each["count"] for each in place.events] == [1, 1]


async def test_while_the_api_server_is_away(place: Place) -> None:
    """The node goes on; once the server is back the newest is written, and told once."""
    async with Kubelet(place.root) as kubelet, place.agent() as agent:
        await place.stands("False", "NoProblem")
        await place.server.stop()
        await agent.until_says("apiserver: failing")
        place.fail(LOST)
        await kubelet.until_capacity(GPU, 3, 2)
        await agent.until_says("node condition: failing")
        await agent.until_says("events: failing")
        await place.server.start()
        await place.stands("True", "GPUUnhealthy")
        await place.server.until(lambda: place.reasons == ["GPUUnhealthy"])
        await agent.until_says("node condition: ok")


async def test_without_the_rights(place: Place) -> None:
    """Each refusal is said once, with what to grant, and asked again seldom; all else works; it is taken up again."""
    place.server.failures += [
        InjectedFailure("PATCH *", times=1, code=403, message='cannot patch resource "nodes/status"'),
        InjectedFailure("POST *", times=1, code=403, message='cannot create resource "events"'),
    ]
    async with Kubelet(place.root) as kubelet, place.agent() as agent:
        said = await agent.until_says("node condition: failing")

        assert (
            'refuses the request: 403 cannot patch resource "nodes/status"; '
            "give the agent the permissions in deploy/base/rbac.yaml" in said
        )

        place.fail(LOST)
        await kubelet.until_capacity(GPU, 3, 2)
        assert 'cannot create resource "events"; give the agent the permissions' in await agent.until_says(
            "events: failing"
        )
        place.ask(drain="0=noise")
        await kubelet.until_capacity(GPU, 3, 1)

        assert place.problem == {}
        assert place.server.requests.count("PATCH /api/v1/nodes/n1/status") == 1
        assert sum("node condition: failing" in line for line in agent.log) == 1

        await place.server.stop()  # whoever grants rights may wait, or restart what follows the Node
        await agent.until_says("apiserver: failing")
        await place.server.start()
        await place.stands("True", "GPUUnhealthy")
        await place.server.until(lambda: sorted(place.reasons) == ["GPUDrained", "GPUUnhealthy"])


async def test_a_nodes_annotation_drains(place: Place) -> None:
    """By index and UUID, each with its reason; what names nothing is said and costs the others nothing."""
    async with Kubelet(place.root) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 3, 3)
        place.ask(drain="0=fan noise; = ; GPU-2=RMA;7")
        await kubelet.until_capacity(GPU, 3, 1)

        assert "annotation gpuplane.io/drain is partly ignored: '=' is not a device name" in await agent.until_says(
            "ignored"
        )
        await agent.until_says("not available as nvidia.com/gpu: drained: RMA")
        await place.server.until(lambda: place.reasons == ["GPUDrained", "GPUDrained"])
        await place.server.until(lambda: "'7'" in place.problem.get("message", ""))

        assert place.problem["status"] == "False"
        assert [each["message"] for each in place.events] == [
            "GPU 0 (GPU-0) is drained; new pods do not get it: fan noise",
            "GPU 2 (GPU-2) is drained; new pods do not get it: RMA",
        ]

        place.ask()
        await kubelet.until_capacity(GPU, 3, 3)
        await place.server.until(lambda: place.reasons[2:] == ["GPUUndrained", "GPUUndrained"])


async def test_a_drain_by_annotation_survives_what_it_must(place: Place) -> None:
    """An agent that is killed and comes back while the API server is away still withholds the device, for that reason;
    and it is over when the server comes back without it."""
    async with Kubelet(place.root) as kubelet:
        async with place.agent() as first:
            await kubelet.until_capacity(GPU, 3, 3)
            place.ask(drain="1=RMA")
            await kubelet.until_capacity(GPU, 3, 2)
            await place.server.until(lambda: place.reasons == ["GPUDrained"])
            await first.kill()
        await place.server.stop()
        await kubelet.until_capacity(GPU, 3, 0)
        async with place.agent() as second:
            await second.until_says("GPU-1: not available as nvidia.com/gpu: drained: RMA")
            await kubelet.until_capacity(GPU, 3, 2)
            place.ask()
            await place.server.start()
            await kubelet.until_capacity(GPU, 3, 3)
            await place.server.until(lambda: place.reasons == ["GPUDrained", "GPUUndrained"])
