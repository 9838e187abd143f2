"""`gpuplane mig apply` as a process: alone on a described machine, and beside an agent that serves a kubelet."""

import json
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.sandbox.kubelet import Container, Kubelet, Pod
from tests.cli.commands.mig.node import layouts_file
from tests.cli.kit.test_program import GPUPLANE, ended
from tests.node.agent.test_process import Place, gpuplane

MACHINE = "a100-mig"
HALF, SEVENTH = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
KINDS = 6
"""Resources of the machine: whole GPUs, and five profiles."""
CONFIGS = {
    "halves": "devices: [5], mig-enabled: true, mig-devices: {3g.40gb: 2}",
    "mixed": "devices: [5], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 3}",
    "impossible": "devices: [5], mig-enabled: true, mig-devices: {3g.40gb: 2, 1g.10gb: 1}",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return layouts_file(tmp_path, **CONFIGS)


def test_a_described_machine_is_partitioned(config: Path, tmp_path: Path) -> None:
    """Every step is told on standard error, the result on standard output."""
    for name, status in (("halves", 0), ("impossible", 1)):
        done = ended("mig", "apply", "-f", config, "-c", name, "--machine", MACHINE, "--json")
        document = json.loads(done.stdout)
        assert (done.returncode, document["done"]) == (status, not status)
    assert (tmp_path / "s").exists() is False


def test_an_interrupted_command_leaves_nothing_behind(config: Path, tmp_path: Path) -> None:
    """Neither a request that an agent would follow later, nor a lock."""
    words = ["mig", "apply", "-f", str(config), "-c", "mixed", "--machine", MACHINE, "--state-dir", str(tmp_path / "s")]
    hooks = tmp_path / "hooks.yaml"
    hooks.write_text("version: v1\nhooks: {pre-apply-config: [{command: /bin/sleep, args: ['60']}]}\n")
    process = subprocess.Popen([*GPUPLANE, *words, "--hooks", str(hooks), "--wait", "10m"])
    while not (tmp_path / "s/lock").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert not (tmp_path / "s/layout-request.json").exists()
    assert ended(*words).returncode == 0


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """With an agent of the described machine."""
    place = Place(tmp_path)
    place.edit(place.config, "version: v1\nflags: {migStrategy: mixed}\n")
    words = "--machine", MACHINE
    async with Kubelet(place.kubelet) as kubelet, place.agent(*words):
        await kubelet.until(lambda: len(kubelet.node_capacities()) == KINDS)
        yield kubelet


async def test_kubelet_gets_what_a_command_requests(kubelet: Kubelet, config: Path, tmp_path: Path) -> None:
    """Of an empty GPU, two instances more than before; nothing of the other GPUs changes."""
    before = kubelet.node_capacities()
    status, said = await gpuplane("mig", "apply", "-f", config, "-c", "halves", "--state-dir", tmp_path / "s")
    assert status == 0, said
    count = before[HALF][0] + 2
    await kubelet.until_capacity(HALF, count, count)
    after = kubelet.node_capacities()
    assert {name: found for name, found in after.items() if name != HALF} == {
        name: found for name, found in before.items() if name != HALF
    }


async def test_a_gpu_is_repartitioned_around_a_pod(kubelet: Kubelet, config: Path, tmp_path: Path) -> None:
    """One instance of it is held: the other becomes three, and the pod, and the devices of the other GPUs, stay."""
    words = "--state-dir", tmp_path / "s"
    status, said = await gpuplane("mig", "apply", "-f", config, "-c", "halves", *words)
    assert status == 0, said
    await kubelet.until_capacity(HALF, 5, 5)
    fresh = mig_devices(await gpuplane("inspect", "--json", *words), gpu=5)
    held = set[str]()
    while not held & fresh:
        started = await kubelet.run(Pod(f"train-{len(held)}", (Container("main", {HALF: 1}),)))
        held |= set(started.response().envs["NVIDIA_VISIBLE_DEVICES"].split(","))
    sevenths = kubelet.capacity(SEVENTH)[0]
    others = {id for ids in kubelet.device_health().values() for id in ids} - fresh
    status, said = await gpuplane("mig", "apply", "-f", config, "-c", "mixed", *words)
    assert status == 0, said
    await kubelet.until_capacity(HALF, 4, 4)
    await kubelet.until_capacity(SEVENTH, sevenths + 3, sevenths + 3)
    there = {id for ids in kubelet.device_health().values() for id in ids}
    assert held <= there
    assert others <= there


def mig_devices(inspected: tuple[int, str], gpu: int) -> set[str]:
    """The UUIDs of a GPU's MIG devices."""
    assert inspected[0] == 0
    return {each["uuid"] for each in json.loads(inspected[1])["devices"] if each["index"].startswith(f"{gpu}:")}
