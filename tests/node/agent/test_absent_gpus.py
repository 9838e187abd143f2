"""A machine that comes back with seven of its eight GPUs, as people and Kubernetes see it: until it has eight again, or
somebody says that the card was taken out."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.agent.test_health_reaches_kubernetes import GPU, Place
from tests.node.agent.test_process import gpuplane


class Machine(Place):
    """A node with as many GPUs as it `has`."""

    def fail(self, fault: str) -> None:
        self.has(8)

    def has(self, count: int) -> None:
        rows = (f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA H100, pci: '0000:0{i}:00.0'}}\n" for i in range(count))
        aside = self.machine.with_suffix(".new")
        aside.write_text("gpus:\n" + "".join(rows))
        aside.replace(self.machine)

    async def health(self) -> tuple[dict[str, dict[str, Any]], str]:
        """What `inspect health` prints: the devices by their UUIDs, and the page."""
        shown = ("inspect", "health", "--state-dir", self.root / "state")
        status, text = await gpuplane(*shown, "--json")
        assert status == 0, text
        return {each["uuid"]: each for each in json.loads(text)["devices"]}, (await gpuplane(*shown))[1]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Machine]:
    async with ApiServer() as server:
        yield Machine(tmp_path, server)


@pytest.fixture
async def kubelet(place: Machine) -> AsyncIterator[Kubelet]:
    """The kubelet of a node that had eight GPUs when its agent ended, and has seven."""
    async with Kubelet(place.root) as kubelet:
        async with place.agent():
            await kubelet.until_capacity(GPU, 8, 8)
            await place.stands("False", "NoProblem")
        place.has(7)
        yield kubelet


async def test_it_is_missed_over_a_restart_until_it_is_back(place: Machine, kubelet: Kubelet) -> None:
    async with place.agent() as agent:
        condition = await place.stands("True", "GPUUnhealthy")
        await kubelet.until_capacity(GPU, 7, 7)
        devices, page = await place.health()
        await place.server.until(lambda: place.reasons == ["GPUUnhealthy"])

        assert condition["message"].startswith("GPU-7: gpu-absent: ") and "0000:07:00.0" in condition["message"]
        assert (devices["GPU-7"]["state"], devices["GPU-7"]["code"]) == ("unhealthy", "gpu-absent")
        assert devices["GPU-7"]["pci"] == "0000:07:00.0" and devices["GPU-7"]["last_seen"] in condition["message"]
        assert [each["last_seen"] for uuid, each in devices.items() if uuid != "GPU-7"] == [None] * 7
        assert "gpuplane health restore GPU-7" in page
        assert any("GPU-7" in line and "gpu-absent" in line for line in agent.log)

        place.has(8)
        await place.stands("False", "NoProblem")
        await kubelet.until_capacity(GPU, 8, 8)
        await place.server.until(lambda: place.reasons == ["GPUUnhealthy", "GPURecovered"])


async def test_it_is_not_missed_once_somebody_says_that_it_was_taken_out(place: Machine, kubelet: Kubelet) -> None:
    async with place.agent():
        await place.stands("True", "GPUUnhealthy")
        status, said = await gpuplane("health", "restore", "GPU-7", "--state-dir", place.root / "state")
        await place.stands("False", "NoProblem")

        assert status == 0, said

    async with place.agent():
        await kubelet.until_capacity(GPU, 7, 7)
        devices, _ = await place.health()

        assert [*devices] == [f"GPU-{i}" for i in range(7)]
