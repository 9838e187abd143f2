"""Who stands in the way of a change of a real GPU, what breaks one off, and that of each comes exactly one answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.node.hardware.nvidia.driver.openers import MAX_LISTED_USERS, find_openers
from gpuplane.node.model.facts import (
    ChangePartition,
    Fact,
    MachineObserved,
    ObserveMachine,
    PartitionChangeFinished,
    ProbeGpu,
    StatusChanged,
)
from gpuplane.node.model.partitions import CreateGpuInstance, GpuUser, PartitionChange, ResetGpu, SetMigMode
from gpuplane.node.model.status import DRIVER_PART
from tests.node.hardware.nvidia.driver.processes import family, opened
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.node.hardware.nvidia.migchanges.realgpus import AMPERE, HOPPER, ON, made, mig, plant
from tests.texts import as_shown

DAEMON, TRAINING = 4100, 4200
PERSISTENCE = GpuUser(name="nvidia-persistenced", pid=DAEMON, cgroups=("/system.slice/nvidia-persistenced.service",))


@pytest.fixture
async def watch(standin: StandIn) -> AsyncIterator[Watched]:
    """A driver that both GPUs have been seen of. nvidia-smi is waited for shortly."""
    async with watched(standin, driver_root=standin.folder.parent, smi_deadline=1.5) as watch:
        await watch.until(lambda each: each.driver()[0] == "ok" and bool(each.gpus()))
        yield watch


def run(standin: StandIn, pid: int, name: str, cgroup: str, *files: str) -> None:
    """There is a process that has these open."""
    folder = standin.root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(name[:15] + "\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    for number, file in enumerate(files):
        (folder / f"fd/{number}").symlink_to(file)


def run_daemon(standin: StandIn, *modules: str) -> None:
    """What has GPUs open on most servers; and modules of the kernel that are in use."""
    run(standin, DAEMON, PERSISTENCE.name, PERSISTENCE.cgroups[0], "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1")
    for name in modules:
        (standin.root / f"sys/module/{name}").mkdir(parents=True)
        (standin.root / f"sys/module/{name}/refcnt").write_text("2\n")


def answers(watch: Watched) -> list[PartitionChangeFinished]:
    """All of them so far."""
    return [each for each in watch.facts if isinstance(each, PartitionChangeFinished)]


def smi_does(standin: StandIn, script: str) -> None:
    """What nvidia-smi does when it shall reset a GPU."""
    path = standin.folder.parent / "usr/bin/reset"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_a_program_is_in_the_way_of_a_mode(watch: Watched, standin: StandIn) -> None:
    """One that has the GPU open, in whichever driver root: it is named, with its pod's cgroup. Others are not."""
    run_daemon(standin, "nvidia_drm")
    run(standin, TRAINING, "python3", "/kubepods/pod7/abc", "/dev/null", "/run/nvidia/driver/dev/nvidia0")
    told = await made(watch, HOPPER, ON)

    assert (told.problem, told.outcome_unknown) == ("in-use", False)
    assert told.users == (GpuUser(name="python3", pid=TRAINING, cgroups=("/kubepods/pod7/abc",)),)
    assert (mig(watch, HOPPER).enabled, mig(watch, HOPPER).pending) == (False, None)
    assert (await made(watch, AMPERE, ON)).failure == ""


async def test_what_is_on_every_server_is_not_in_the_way(watch: Watched, standin: StandIn) -> None:
    """The persistence daemon, and a display on some GPU: the driver decides."""
    run_daemon(standin, "nvidia_drm", "nvidia_modeset")

    assert (await made(watch, HOPPER, ON)).failure == ""
    assert (await made(watch, AMPERE, ON)).failure == ""
    assert (await made(watch, AMPERE, ResetGpu())).failure == ""
    assert mig(watch, AMPERE).enabled


@pytest.mark.parametrize("gpu", [HOPPER, AMPERE])
async def test_a_mode_that_would_wait_for_somebody_is_taken_back(watch: Watched, standin: StandIn, gpu: str) -> None:
    """Else it would take effect some day, when nobody expects it. Everybody who may be the one is named."""
    run_daemon(standin, "nvidia_drm")
    index = [HOPPER, AMPERE].index(gpu)
    plant(standin, {f"gpu.{index}.client": "1"})
    told = await made(watch, gpu, ON)

    assert told.problem == "in-use"
    assert told.users == (PERSISTENCE, GpuUser(name="nvidia_drm"))
    assert (mig(watch, gpu).enabled, mig(watch, gpu).pending) == (False, None)


async def test_a_mode_that_waits_for_a_reset_can_be_taken_back(watch: Watched) -> None:
    """By asking for the one that is in force."""
    assert (await made(watch, AMPERE, ON)).failure == ""
    assert mig(watch, AMPERE).pending
    assert (await made(watch, AMPERE, SetMigMode(False))).failure == ""

    assert (mig(watch, AMPERE).enabled, mig(watch, AMPERE).pending) == (False, None)


async def test_no_gpu_is_reset_under_a_program(watch: Watched, standin: StandIn) -> None:
    """Our own process goes on: nothing was released for it."""
    run_daemon(standin)
    run(standin, TRAINING, "python3", "/kubepods/pod7/abc", "/dev/nvidia1")
    before = family()
    told = await made(watch, AMPERE, ResetGpu())

    assert told.problem == "in-use"
    assert [user.pid for user in told.users] == [TRAINING]
    assert family() == before
    assert not (standin.folder.parent / "usr/bin/runs").exists()


@pytest.mark.parametrize(
    ("script", "problem", "is_unsure"),
    [
        ("echo Not Supported; exit 3", "not-supported", False),
        ("echo Insufficient Permissions; exit 4", "no-permission", False),
        ("echo In use by another client; exit 19", "in-use", False),
        ("echo Unknown Error; exit 255", "failed", False),
        ("kill -SEGV $$", "failed", True),
        ("exec sleep 600", "failed", True),
    ],
)
async def test_what_nvidia_smi_says_is_told(
    watch: Watched, standin: StandIn, script: str, problem: str, is_unsure: bool
) -> None:
    """By the number that it ends with; who may have the GPU open is named. The machine is looked at again."""
    smi_does(standin, script)
    run_daemon(standin)
    told = await made(watch, AMPERE, ResetGpu())

    assert (told.problem, told.outcome_unknown) == (problem, is_unsure)
    assert told.users == (PERSISTENCE,)
    await watch.until(lambda each: each.driver()[0] == "ok")
    assert (await made(watch, HOPPER, ON)).failure == ""
    assert len(answers(watch)) == 2


async def test_nobody_of_ours_has_a_gpu_open_while_one_is_reset(watch: Watched, standin: StandIn) -> None:
    """A probe is ended, too. How the driver stands says why the others are not watched."""
    smi_does(standin, f"while [ ! -e {standin.folder}/go ]; do sleep 0.02; done")
    plant(standin, {"failure.0": "hang nvmlDeviceGetName 0 0"})
    before = len(family())
    await watch.hardware.do(ProbeGpu(gpu=HOPPER, requested_at=1.0))
    while len(family()) <= before:
        await asyncio.sleep(0.01)
    await watch.hardware.do(ChangePartition(AMPERE, ResetGpu(), 7.0))
    await watch.until(lambda each: each.driver()[0] == "waiting")

    assert "GPU 1" in as_shown(watch.driver()[1])
    while not (standin.folder.parent / "usr/bin/runs").exists():
        await asyncio.sleep(0.01)
    assert not any("/dev/nvidia" in file for pid in family() for file in opened(pid))
    assert answers(watch) == []
    plant(standin, {})
    (standin.folder / "go").touch()
    await watch.hear(lambda each: bool(answers(each)))
    told = answers(watch)[0]
    waiting = next(n for n, each in enumerate(watch.facts) if _is_waiting(each))
    assert any(isinstance(each, MachineObserved) for each in watch.facts[waiting : watch.facts.index(told)])
    assert told.failure == ""


def _is_waiting(fact: Fact) -> bool:
    if not isinstance(fact, StatusChanged) or fact.part != DRIVER_PART or fact.status is None:
        return False
    return bool(fact.status.state == "waiting")


@pytest.mark.parametrize("effect", ["crash nvmlInit* -1 0", "hang nvmlInit* -1 0", "error nvmlInit* -1 999"])
async def test_a_driver_that_does_not_come_back_is_told(watch: Watched, standin: StandIn, effect: str) -> None:
    """The reset was made, and nothing shows it: nobody waits for that."""
    place, sort = standin.folder, "LC_ALL=C sort"
    smi_does(standin, f"cd {place}; echo 'failure.0={effect}' | {sort} - machine > new; mv new machine")
    await watch.hardware.do(ChangePartition(AMPERE, ResetGpu(), 7.0))
    await watch.hear(lambda each: bool(answers(each)))

    (told,) = answers(watch)
    assert (told.problem, told.outcome_unknown) == ("failed", True)
    plant(standin, {})
    await watch.until(lambda each: each.driver()[0] == "ok")
    assert len(answers(watch)) == 1


async def test_a_release_breaks_a_reset_off(watch: Watched, standin: StandIn) -> None:
    """And one that comes before it begins; nothing of ours runs then."""
    before = set(family())  # with the driver's process, and what other tests of this worker keep
    smi_does(standin, "exec sleep 600")
    await watch.hardware.do(ChangePartition(AMPERE, ResetGpu(), 7.0))
    while not (standin.folder.parent / "usr/bin/runs").exists():
        await asyncio.sleep(0.01)
    await watch.hardware.release()
    await watch.hear(lambda each: bool(answers(each)))
    assert set(family()) < before
    assert [(each.problem, each.outcome_unknown) for each in answers(watch)] == [("failed", True)]

    told = await made(watch, AMPERE, ResetGpu())
    assert (told.problem, told.outcome_unknown) == ("failed", False)


@pytest.mark.parametrize("change", [ON, CreateGpuInstance(19, 0), ResetGpu()])
async def test_a_released_driver_changes_nothing(watch: Watched, change: PartitionChange) -> None:
    """It is said at once, and for sure."""
    await watch.hardware.release()
    told = await made(watch, HOPPER, change)
    assert (told.problem, told.outcome_unknown) == ("failed", False)

    await watch.hardware.do(ObserveMachine())
    await watch.until(lambda each: each.driver()[0] == "ok")
    assert len(answers(watch)) == 1


async def test_a_release_breaks_a_change_off(watch: Watched, standin: StandIn) -> None:
    """It may have been made."""
    plant(standin, {"failure.0": "hang nvmlDeviceSetMigMode 0 0"})
    await watch.hardware.do(ChangePartition(HOPPER, ON, 3.0))
    await asyncio.sleep(0.3)
    await watch.hardware.release()
    await watch.hear(lambda each: bool(answers(each)))

    assert [(each.problem, each.outcome_unknown) for each in answers(watch)] == [("failed", True)]


async def test_changes_at_once_are_made_one_after_another(watch: Watched) -> None:
    """Each has its own answer, in the order in which they were asked for."""
    changes: list[PartitionChange] = [ON, *(CreateGpuInstance(14, start) for start in (0, 2, 4))]
    changes.append(CreateGpuInstance(9, 4))
    for number, change in enumerate(changes):
        await watch.hardware.do(ChangePartition(HOPPER, change, float(number)))
    await watch.hear(lambda each: len(answers(each)) == len(changes))

    assert [each.requested_at for each in answers(watch)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [each.problem for each in answers(watch)] == ["", "", "", "", "insufficient-resources"]


async def test_a_driver_that_cannot_be_used_answers(standin: StandIn) -> None:
    """Its process rests, and ends for the order."""
    standin.unload()
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(lambda each: each.driver()[0] == "failing")
        told = await made(watch, HOPPER, ON)

    assert told.problem == "failed"
    assert DRIVER_PART in {each.part for each in watch.facts if isinstance(each, StatusChanged)}


def test_a_search_names_no_more_than_it_knows(tmp_path: Path) -> None:
    """Numbers of another namespace are nobody's here; there is an end of names; what cannot be read is left out."""
    for pid in range(100, 100 + 2 * MAX_LISTED_USERS):
        (tmp_path / f"proc/{pid}/fd").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text("python3\n")
        (tmp_path / f"proc/{pid}/fd/7").symlink_to("/dev/nvidia1 (deleted)")
        (tmp_path / f"proc/{pid}/fd/8").symlink_to("/dev/nvidia10")
    (tmp_path / "proc/99").write_text("no folder")

    assert len(find_openers(str(tmp_path), 1)) == MAX_LISTED_USERS
    assert find_openers(str(tmp_path), 0) == ()
    assert find_openers(str(tmp_path), None) == ()
    assert find_openers(str(tmp_path), 1, (100,), host_pids=False) == (GpuUser(name="process 100", pid=100),)
    assert find_openers(str(tmp_path / "nowhere"), 1, (5,)) == (GpuUser(name="process 5", pid=5),)
