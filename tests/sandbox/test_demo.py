"""The demo plays to its end on any machine with two whole GPUs, and says so where there are fewer."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.demo.claim import DRIVER, NODE_NAME, SLICES_PATH, count_gpus

README = Path(__file__).parents[2] / "README.md"
DEFAULT = "dgx-a100"
PARTITIONED = "A label of the Node partitions a GPU around a pod"
"""Played where every GPU is whole, and one can be partitioned."""
TITLES = [
    "A machine, described in",
    "The agent starts",
    "A pod asks for",
    "Another pod comes",
    "A GPU falls off the bus",
    "Kubelet restarts",
    "The configuration is edited: the GPUs get another name",
    "GPUs are shared by their memory",
    "The configuration is edited: time slices",
    "A device that is no GPU",
    PARTITIONED,
    "A pod gets a GPU by a claim",
    "The configuration is edited: GPUs are CDI devices",
    "The agent stops",
]


async def demo(*arguments: str) -> tuple[int, str, str]:
    """(exit status, output, errors)."""
    command = (sys.executable, "-m", "gpuplane", "demo", *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(240):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def shown_in_the_readme() -> list[str]:
    """Lines of the demo, without the spaces between columns."""
    block = README.read_text().partition("A part of its output:\n\n```\n")[2].partition("```")[0]
    return [re.sub(r" {2,}", "  ", line.strip()) for line in block.splitlines() if line]


@pytest.mark.parametrize("profile", [DEFAULT, "workstation", "a100-mig"])
async def test_it_plays_to_the_end(profile: str) -> None:
    """Eight GPUs, two of two models, and two beside others in MIG mode: every scene holds.

    README shows a part of what the first of them prints, word for word.
    """
    status, output, errors = await demo("--profile", profile, "--json")
    scenes = [json.loads(line) for line in output.splitlines()]

    titles = [title for title in TITLES if profile == DEFAULT or title != PARTITIONED]
    assert (status, errors) == (0, "")
    assert [scene["scene"] for scene in scenes] == list(range(1, len(titles) + 1))
    assert all(scene["title"].startswith(title) for scene, title in zip(scenes, titles, strict=True))
    if profile == DEFAULT:
        printed = [f"{scene['scene']}. {scene['title']}" for scene in scenes]
        printed += [f"{name}  {value}" for scene in scenes for name, value in scene["lines"].items()]
        assert len(shown_in_the_readme()) >= 5
        assert [line for line in shown_in_the_readme() if line not in printed] == []


def test_the_claim_scene_waits_for_gpus_alone() -> None:
    """A device that is no GPU is still there from an earlier scene, and the driver publishes it, too."""
    server = ApiServer()
    for name, kind in (("gpu-0", "gpu"), ("kvm", "device-node"), ("gpu-1", "gpu")):
        spec = {
            "driver": DRIVER,
            "pool": {"name": f"demo/{name}", "generation": 1, "resourceSliceCount": 1},
            "nodeName": NODE_NAME,
            "devices": [{"name": name, "attributes": {"type": {"string": kind}}}],
        }
        found = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
        server.put(f"{SLICES_PATH}/{name}", found)

    assert count_gpus(server) == 2


async def test_without_the_drivers_files_nothing_is_given_by_cdi(tmp_path: Path) -> None:
    """No container could use it. The other scenes hold."""
    gpus = ", ".join(f"{{index: {n}, uuid: GPU-{n}, minor: {n}, memory_mib: 16384}}" for n in (0, 1))
    (tmp_path / "own.yaml").write_text(f'driver: {{version: 570.1.2, cuda: "12.8"}}\ngpus: [{gpus}]\n')
    status, output, errors = await demo("--profile", str(tmp_path / "own.yaml"), "--json")
    scenes = [json.loads(line) for line in output.splitlines()]

    assert (status, errors) == (0, "")
    assert [scene["title"] for scene in scenes if "CDI" in scene["title"]] == []
    assert len(scenes) == len(TITLES) - 3


async def test_a_machine_with_one_gpu_is_refused() -> None:
    """Before anything is played, with what to do."""
    said = "Error: t4.yaml has 1 whole GPU, and the demo needs two; try --profile dgx-a100\n"

    assert await demo("--profile", "t4") == (1, "", said)
