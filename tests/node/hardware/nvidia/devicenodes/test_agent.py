"""The agent makes what is missing in the /dev that it is told of, and touches no other."""

from pathlib import Path

import pytest

from gpuplane.cli.commands.agent import main as agent
from gpuplane.sandbox.agent import Agent
from tests.node.hardware.nvidia.devicenodes.world import host, standing

DEVICES = """Character devices:
195 nvidia
195 nvidiactl
195 nvidia-modeset
236 nvidia-caps
511 nvidia-uvm
"""


@pytest.mark.usefixtures("permitted")
async def test_an_agent_makes_what_a_machine_misses(tmp_path: Path) -> None:
    """Control nodes, the capabilities of MIG devices and their links; the log says it once."""
    root = host(tmp_path / "host")
    (root / "proc/devices").write_text(DEVICES)
    arguments = ("--machine", "a100-mig", "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s")
    async with Agent(*arguments, "--device-nodes", root) as running:
        line = await running.until_says(
            "device nodes: ok: created by the agent: /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm"
        )
        made = standing(root)
        assert await running.stop() == 0
    assert "more" in line
    assert made["/dev/nvidia-uvm"] == "511:0 666 0:0"
    assert made["/dev/nvidia-caps/nvidia-cap1"] == "236:1 400 0:0"
    assert made["/dev/char/511:0"] == "-> ../nvidia-uvm"
    caps = [path for path in made if "/nvidia-cap" in path]
    assert len(caps) > 20
    assert all(f"/dev/char/{made[path].split()[0]}" in made for path in caps)
    assert len([each for each in running.log if "device nodes" in each]) == 1
    assert not [path for path in made if path.startswith("/dev/dri") or path.endswith("nvidia1")]


def test_nothing_is_made_on_the_machine_that_plays_another() -> None:
    """Unless it is said where; and nowhere on any where that is said."""
    here = Path("/host")
    assert agent._device_nodes(None, "nvml", here) == here
    assert agent._device_nodes(None, "a100-mig", here) is None
    assert agent._device_nodes("/x", "a100-mig", here) == Path("/x")
    assert agent._device_nodes("", "nvml", here) is None
