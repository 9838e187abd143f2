"""The driver's process partitions GPUs: the stand-in's library refuses what a real one would."""

import os

import pytest

from gpuplane.node.core.partitions.gpuplan import current_layout, plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts
from gpuplane.node.model.facts import MachineObserved, PartitionChangeFinished
from gpuplane.node.model.machine import GpuProcess, MachineFile
from gpuplane.node.model.partitions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuLayout,
    PartitionChange,
    ResetGpu,
    SetMigMode,
)
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.node.hardware.nvidia.migchanges.realgpus import AMPERE, HOPPER, ON, made, mig, plant


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


@pytest.mark.parametrize(
    ("call", "change"),
    [
        ("nvmlDeviceSetMigMode", SetMigMode(True)),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", CreateGpuInstance(19, 3)),
        ("nvmlGpuInstanceCreateComputeInstance", CreateComputeInstance(9, 4, 3)),
        ("nvmlGpuInstanceGetComputeInstanceProfileInfo", CreateComputeInstance(9, 4, 3)),
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


@pytest.mark.parametrize(
    "devices", [{"2c.4g.40gb": 2}, {"3c.7g.80gb": 2, "1c.7g.80gb": 1}, {"1c.3g.40gb": 2, "2c.3g.40gb": 2}]
)
async def test_layouts_of_several_compute_instances_are_reached(watch: Watched, devices: dict[str, int]) -> None:
    """Planned anew after each look; each change makes an instance that stays."""
    await made(watch, HOPPER, ON)
    layout, changes = GpuLayout(mig_enabled=True, mig_devices=devices, replaces_foreign=True), 0
    while True:
        gpu = watch.node.snapshot.gpu(HOPPER)
        assert gpu is not None
        plan = plan_gpu(gpu, layout, HeldParts(), ())
        if plan.is_done:
            break
        changes += 1
        assert (await made(watch, HOPPER, plan.changes[0])).failure == ""
        assert changes < 20

    assert current_layout(gpu).mig_devices == devices
    assert changes == len(gpu.gpu_instances) + sum(devices.values())
