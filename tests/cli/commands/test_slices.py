"""`gpuplane slices`: of a described machine, and of an agent that publishes."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuplane.cli.commands.slices import command
from gpuplane.node.agent.control import control
from gpuplane.node.agent.node import Node
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.model.config import Settings
from gpuplane.node.model.control import AgentInfo
from gpuplane.node.model.facts import ClaimPrepareRequested, DrainRequested, StatusChanged
from gpuplane.node.model.health import Drain
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import SLICES_PART, SlicesStatus
from tests.node.core.dra.nodes import after, claim, node

OBJECT_KEYS = {"apiVersion", "kind", "metadata", "spec"}


async def shown(directory: Path, snapshot: Snapshot, *arguments: str, name: str = "n1") -> Result:
    """What the command says of an agent that knows this."""
    directory.chmod(0o700)
    about = AgentInfo(version="0.1.0", node=name)
    serving = asyncio.create_task(control(Node(snapshot, now=lambda: 100.0), directory / "control.sock", about))
    try:
        while not (directory / "control.sock").exists():
            await asyncio.sleep(0.01)
        words = ["--state-dir", str(directory), *arguments]
        return await asyncio.to_thread(CliRunner().invoke, command, words)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def publishing() -> Snapshot:
    """One GPU is published, one incompletely, one is withdrawn, and of one nothing is known yet."""
    status = SlicesStatus(
        "failing",
        "the API server did not keep taints",
        code="slices-fields-dropped",
        published=tuple(f"n1-gpu.nvidia.com-gpu-{n}" for n in range(3)),
        differing={f"n1-gpu.nvidia.com-gpu-{n}": (f"devices[gpu-{n}].taints",) for n in (1, 2)},
        withdrawn=("gpu-2",),
    )
    drains = (DrainRequested(f"GPU-{n}", Drain(reason="fan")) for n in (1, 2))
    return after(node(), ClaimPrepareRequested(claim("a", 1)), *drains, StatusChanged(SLICES_PART, status))


async def test_each_device_is_a_line(tmp_path: Path) -> None:
    """With its state, its taints, and what the API server did not keep."""
    lines = (await shown(tmp_path, publishing())).stdout.splitlines()
    assert [line.split("\t") for line in lines] == [
        ["0", "gpu-0", "published", "", ""],
        ["1", "gpu-1", "incomplete", "gpuplane.io/drained=drained:NoSchedule", "devices[gpu-1].taints"],
        ["2", "gpu-2", "withdrawn", "gpuplane.io/drained=drained:NoSchedule", "devices[gpu-2].taints"],
        ["3", "gpu-3", "waiting", "", ""],
    ]


async def test_the_document(tmp_path: Path) -> None:
    """What programs read."""
    document = json.loads((await shown(tmp_path, publishing(), "--json")).stdout)
    assert {key: document[key] for key in ("node", "driver", "state", "code")} == {
        "node": "n1", "driver": "gpu.nvidia.com", "state": "failing", "code": "slices-fields-dropped"
    }  # fmt: skip
    assert [each["allocated"] for each in document["slices"]] == [False, True, False, False]
    assert document["slices"][1]["taints"] == [
        {"key": "gpuplane.io/drained", "value": "drained", "effect": "NoSchedule"}
    ]


async def test_an_agent_without_a_node_publishes_nothing(tmp_path: Path) -> None:
    """That is said."""
    nameless = await shown(tmp_path, node(), name="")
    assert (nameless.exit_code, nameless.stdout) == (1, "")
    assert "--node-name" in nameless.stderr


async def test_an_agent_without_dra_publishes_nothing(tmp_path: Path) -> None:
    """That is said, too."""
    off = await shown(tmp_path, node(Settings()))
    assert (off.exit_code, off.stdout) == (1, "")
    assert "dra.enabled" in off.stderr


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_the_objects_of_a_described_machine(output: str) -> None:
    """As kubectl takes them, of the node that is named: what an autoscaler has to know of a node that is not there."""
    done = CliRunner().invoke(command, ["--machine", "dgx-a100", "--node-name", "template", "-o", output])
    found = list(yaml.safe_load_all(done.stdout)) if output == "yaml" else json.loads(done.stdout)["items"]
    assert len(found) == 8
    for each in found:
        assert each.keys() == OBJECT_KEYS
        assert each["spec"]["nodeName"] == "template"
        assert each["spec"]["pool"]["resourceSliceCount"] == 1
        assert "taints" not in each["spec"]["devices"][0]


def test_a_described_machine_has_devices_of_other_kinds(tmp_path: Path) -> None:
    """They are in slices of their own, as an agent on such a node would publish them."""
    machine = tmp_path / "machine.yaml"
    machine.write_text("gpus: []\ndevices:\n  - {id: kvm, kind: device-node, device_nodes: [/dev/kvm]}\n")
    done = CliRunner().invoke(command, ["--machine", str(machine), "--json"])
    [found] = json.loads(done.stdout)["slices"]
    assert (found["device"], found["uuid"], found["index"]) == ("device-node-kvm", "device-node:kvm", "")


def test_a_configuration_gives_the_driver_its_name(tmp_path: Path) -> None:
    """Whether or not it enables DRA."""
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\ndra: {driverName: gpu.example.com}\n")
    done = CliRunner().invoke(command, ["--machine", "t4", "--config", str(config), "--json"])
    document = json.loads(done.stdout)
    assert (document["driver"], document["node"], len(document["slices"])) == ("gpu.example.com", "node", 1)
    assert document["slices"][0]["state"] == "described"


def test_the_view_of_a_node_is_what_is_shown() -> None:
    """Every slice."""
    slices = resource_slices(publishing(), "n1")
    assert slices is not None
    assert len(slices) == 4
