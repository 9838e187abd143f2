"""The driver's process partitions GPUs: the stand-in's library refuses what a real one would."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.hardware.machinefile import read
from gpuplane.model.facts import ChangePartition, MachineObserved, PartitionChangeFinished
from gpuplane.model.machine import GpuProcess, MachineFile, Mig
from gpuplane.model.partitions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    PartitionChange,
    ResetGpu,
    SetMigMode,
)
from tests.hardware.driver.standin import StandIn
from tests.hardware.driver.watched import Watched, watched
from tests.hardware.timeslices.standin import SmiStandIn

HOPPER, AMPERE = "GPU-0", "GPU-1"
MACHINE = """
driver: {version: "580.95.05", cuda: "13.0"}
gpus:
  - {index: 0, uuid: GPU-0, minor: 0, pci: "0000:01:00.0", model: NVIDIA H100 80GB HBM3, memory_mib: 81559,
     compute_capability: "9.0", pci_id: "0x233010DE", mig: {}, nodes: [/dev/nvidia0]}
  - {index: 1, uuid: GPU-1, minor: 1, pci: "0000:02:00.0", model: NVIDIA A100-SXM4-80GB, memory_mib: 81920,
     compute_capability: "8.0", pci_id: "0x20B210DE", mig: {}, nodes: [/dev/nvidia1]}
majors: {nvidia-caps: 236, nvidia: 195, nvidiactl: 195}
nodes: [/dev/nvidiactl]
"""
RESET = f"""#!{sys.executable}
import os, sys
path = sys.argv[0].rpartition("/usr/bin/")[0] + "/driver/machine"
lines = dict(line.rstrip("\\n").split("=", 1) for line in open(path))
(gpu,) = (key[: -len(".uuid")] for key, value in lines.items() if value == sys.argv[1] and key.count(".") == 2)
lines[gpu + ".mig"] = lines.pop(gpu + ".mig.pending", lines[gpu + ".mig"])
kept = {{k: v for k, v in lines.items() if not k.startswith((gpu + ".gi.", gpu + ".mig."))}}
with open(path + ".reset", "w") as file:
    file.writelines(f"{{key}}={{value}}\\n" for key, value in sorted(kept.items()))
os.replace(path + ".reset", path)
"""
ON = SetMigMode(True)


@pytest.fixture
def machine() -> MachineFile:
    return read(MACHINE.encode(), "machine.yaml")


@pytest.fixture
def standin(tmp_path: Path, compiled: Path, machine: MachineFile) -> StandIn:
    """A driver with a Hopper and an Ampere, and an nvidia-smi that can reset them."""
    found = StandIn(tmp_path / "d", compiled)
    found.describe(machine)
    SmiStandIn(tmp_path / "d")
    reset = tmp_path / "d/usr/bin/reset"
    reset.write_text(RESET)
    reset.chmod(0o755)
    return found


@pytest.fixture
async def watch(standin: StandIn) -> AsyncIterator[Watched]:
    async with watched(standin, driver_root=standin.folder.parent, poll=0.05) as watch:
        await watch.until(lambda each: each.driver()[0] == "ok" and bool(each.gpus()))
        yield watch


async def made(watch: Watched, gpu: str, change: PartitionChange) -> PartitionChangeFinished:
    """What came of a change; a look was told before."""
    number = 1.0 + sum(isinstance(each, PartitionChangeFinished) for each in watch.facts)
    await watch.hardware.do(ChangePartition(gpu=gpu, change=change, requested_at=number))

    def answers() -> list[PartitionChangeFinished]:
        return [e for e in watch.facts if isinstance(e, PartitionChangeFinished) and e.requested_at == number]

    await watch.hear(lambda _: bool(answers()))
    return answers()[0]


def mig(watch: Watched, gpu: str) -> Mig:
    """A GPU's partitioning, as it is known now."""
    found = watch.node.snapshot.gpu(gpu)
    assert found is not None
    assert found.mig is not None
    return found.mig


async def test_instances_come_and_go(watch: Watched) -> None:
    """The way from a whole GPU to two devices and back. What is already so is done."""
    there: list[PartitionChange] = [ON, ON, CreateGpuInstance(9, 4), CreateGpuInstance(9, 4)]
    for change in (*there, CreateComputeInstance(9, 4, 3)):
        assert (await made(watch, HOPPER, change)).failure == ""
    [device] = mig(watch, HOPPER).devices
    assert (device.profile, device.gpu_instance) == ("3g.40gb", 2)
    assert device.device_nodes == ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    assert [each.placement for each in mig(watch, HOPPER).instances or ()] == [(9, 4)]
    await made(watch, HOPPER, CreateGpuInstance(19, 0))
    [_, empty] = mig(watch, HOPPER).instances or ()
    assert (empty.placement, empty.compute_instances) == ((19, 0), ()), "it is seen without a device"
    await made(watch, HOPPER, DestroyGpuInstance(empty.id, 19, 0))
    back: list[PartitionChange] = [
        DestroyComputeInstance(9, 4, 0), DestroyComputeInstance(9, 4, 0), DestroyGpuInstance(2, 9, 4),
        DestroyGpuInstance(2, 9, 4), DestroyComputeInstance(9, 4, 0), SetMigMode(False),
    ]  # fmt: skip
    for change in back:
        assert (await made(watch, HOPPER, change)).failure == ""
    assert mig(watch, HOPPER).enabled is False
    assert mig(watch, AMPERE).enabled is False


async def test_the_same_place_has_the_same_uuid_again(watch: Watched) -> None:
    """As a real driver makes it."""
    await made(watch, HOPPER, ON)
    seen = []
    for _ in range(2):
        await made(watch, HOPPER, CreateGpuInstance(19, 3))
        await made(watch, HOPPER, CreateComputeInstance(19, 3, 1))
        seen.append([each.uuid for each in mig(watch, HOPPER).devices])
        await made(watch, HOPPER, DestroyComputeInstance(19, 3, 0))
        await made(watch, HOPPER, DestroyGpuInstance(10, 19, 3))

    assert seen[0] == seen[1]
    assert len(seen[0]) == 1


async def test_what_is_refused(watch: Watched, standin: StandIn, machine: MachineFile) -> None:
    """By the codes of the change; the reason names the call."""
    assert (await made(watch, HOPPER, CreateGpuInstance(9, 4))).problem == "not-supported"
    await made(watch, HOPPER, ON)
    await made(watch, HOPPER, CreateGpuInstance(9, 4))
    await made(watch, HOPPER, CreateComputeInstance(9, 4, 3))
    assert (await made(watch, HOPPER, CreateGpuInstance(19, 6))).problem == "insufficient-resources"
    assert (await made(watch, HOPPER, CreateGpuInstance(2, 0))).problem == "not-supported"
    assert (await made(watch, HOPPER, CreateComputeInstance(9, 4, 1))).problem == "insufficient-resources"
    assert (await made(watch, HOPPER, CreateComputeInstance(9, 0, 3))).problem == "gone"
    assert (await made(watch, HOPPER, DestroyGpuInstance(2, 9, 0))).problem == "gone"
    told = await made(watch, HOPPER, DestroyGpuInstance(2, 9, 4))
    assert (told.problem, told.failure) == ("in-use", "nvmlGpuInstanceDestroy: the GPU is in use")
    assert (await made(watch, "GPU-9", ON)).problem == "gone"


async def test_an_instance_in_use_stays(watch: Watched, standin: StandIn, machine: MachineFile) -> None:
    """And who uses it is named."""
    process = GpuProcess(gpu=0, pid=os.getppid(), started=1, cgroups=("/kubepods/pod7/abc",))
    standin.describe(machine.but(processes=(process,)))
    told = await made(watch, HOPPER, ON)

    assert told.problem == "in-use"
    assert mig(watch, HOPPER).enabled is False
    assert [each.pid for each in told.users] == [os.getppid()]
    assert told.users[0].cgroups == ("/kubepods/pod7/abc",)


def plant(standin: StandIn, failures: dict[str, str]) -> None:
    """Have calls fail, and no others. What was changed by calls stays."""
    path, fresh = standin.folder / "machine", standin.folder / "machine.planted"
    lines = dict(line.split("=", 1) for line in path.read_text().splitlines())
    kept = {key: value for key, value in lines.items() if not key.startswith("failure.")} | failures
    fresh.write_text("".join(f"{key}={value}\n" for key, value in sorted(kept.items())))
    fresh.replace(path)


@pytest.mark.parametrize(
    ("call", "change"),
    [
        ("nvmlDeviceSetMigMode", SetMigMode(True)),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", CreateGpuInstance(19, 3)),
        ("nvmlGpuInstanceCreateComputeInstance", CreateComputeInstance(9, 4, 3)),
        ("nvmlGpuInstanceGetComputeInstanceProfileInfoV", CreateComputeInstance(9, 4, 3)),
        ("nvmlComputeInstanceDestroy", DestroyComputeInstance(14, 0, 0)),
        ("nvmlGpuInstanceDestroy", DestroyGpuInstance(2, 9, 4)),
    ],
)
@pytest.mark.parametrize("effect", ["error", "crash", "hang"])
async def test_each_call_can_fail(
    standin: StandIn, machine: MachineFile, call: str, change: PartitionChange, effect: str
) -> None:
    """There is one answer; the next try does it."""
    async with watched(standin, driver_root=standin.folder.parent, poll=0.05, deadline=1.0) as watch:
        await watch.until(lambda each: each.driver()[0] == "ok" and bool(each.gpus()))
        if not isinstance(change, SetMigMode):
            for each in (ON, CreateGpuInstance(9, 4), CreateGpuInstance(14, 0), CreateComputeInstance(14, 0, 2)):
                assert (await made(watch, HOPPER, each)).failure == ""
        kind = {"error": f"error {call} 0 999", "crash": f"crash {call} 0 0", "hang": f"hang {call} 0 0"}[effect]
        plant(standin, {"failure.0": kind})
        told = await made(watch, HOPPER, change)
        assert (told.problem, told.outcome_unknown) == ("failed", effect != "error")
        plant(standin, {})
        if effect == "error":
            assert (await made(watch, HOPPER, change)).failure == ""
        assert [each.requested_at for each in watch.facts if isinstance(each, PartitionChangeFinished)] == [
            float(n + 1) for n in range(sum(isinstance(each, PartitionChangeFinished) for each in watch.facts))
        ]


async def test_an_ampere_is_reset_by_nvidia_smi(watch: Watched) -> None:
    """After our own process has ended; a look shows it before it is said."""
    assert (await made(watch, AMPERE, ON)).failure == ""
    assert (mig(watch, AMPERE).enabled, mig(watch, AMPERE).pending) == (False, True)
    looks = sum(isinstance(each, MachineObserved) for each in watch.facts)
    assert (await made(watch, AMPERE, ResetGpu())).failure == ""

    assert (mig(watch, AMPERE).enabled, mig(watch, AMPERE).pending) == (True, None)
    assert sum(isinstance(each, MachineObserved) for each in watch.facts) > looks
    assert (await made(watch, AMPERE, CreateGpuInstance(0, 0))).failure == ""
    assert watch.codes() == [[], []]
