"""nvidia-smi as the hardware runs it: what was asked of it, and what comes back whatever it does."""

import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.node.hardware.nvidia.driver.driverpaths import LIBRARY_FOLDERS
from gpuplane.node.hardware.nvidia.driver.driverroot import NVML_SONAME, PROGRAM_FOLDERS, find_program
from gpuplane.node.model.config import TimeSlice
from gpuplane.node.model.facts import ObserveMachine, SetTimeSlice, TimeSliceFinished
from gpuplane.node.model.machine import Driver, Gpu, Machine
from tests.golden import Golden
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.node.hardware.nvidia.nvidiasmi.standin import SmiStandIn
from tests.texts import as_shown

MACHINE = Machine(
    driver=Driver(version="580.95.05", cuda="13.0"),
    gpus=tuple(Gpu(index=n, uuid=f"GPU-{n}", minor=n, pci=f"0000:0{n + 1}:00.0", memory_mib=1024) for n in range(2)),
)


@pytest.fixture
def smi(tmp_path: Path) -> SmiStandIn:
    return SmiStandIn(tmp_path / "driver-root")


@pytest.fixture
async def watch(tmp_path: Path, compiled: Path, smi: SmiStandIn) -> AsyncIterator[Watched]:
    """A driver whose two GPUs have been seen. nvidia-smi is waited for two seconds."""
    standin = StandIn(tmp_path, compiled)
    standin.describe(MACHINE)
    async with watched(standin, driver_root=smi.root, smi_deadline=2.0) as watch:
        await watch.until(lambda watch: watch.gpus() is not None)
        yield watch


async def told(watch: Watched, asked: float) -> TimeSliceFinished:
    """What came of the setting wished for at that time."""

    def found() -> TimeSliceFinished | None:
        return next(
            (each for each in watch.facts if isinstance(each, TimeSliceFinished) and each.requested_at == asked),
            None,
        )

    await watch.hear(lambda _: found() is not None)
    return found() or TimeSliceFinished(gpu="", length="default", requested_at=asked)


async def put(watch: Watched, gpu: str, length: TimeSlice, asked: float = 1.0) -> TimeSliceFinished:
    """Have a length set, and hear what came of it."""
    await watch.hardware.do(SetTimeSlice(gpu=gpu, length=length, requested_at=asked))
    return await told(watch, asked)


async def test_each_length_is_nvidias_number(watch: Watched, smi: SmiStandIn) -> None:
    """0 to 3, by the GPU's UUID."""
    lengths: tuple[TimeSlice, ...] = ("short", "medium", "long", "default")
    for asked, length in enumerate(lengths):
        assert await put(watch, "GPU-1", length, asked) == TimeSliceFinished(
            gpu="GPU-1", length=length, requested_at=asked
        )
        assert smi.lengths() == {"GPU-1": length}


async def test_what_somebody_else_could_change_is_not_run(watch: Watched, smi: SmiStandIn, golden: Golden) -> None:
    """Root would run it; the reason names what they could change."""
    (smi.root / "usr").chmod(0o757)
    said = (await put(watch, "GPU-0", "short", 1.0)).problem
    assert f"{smi.root}/usr" in as_shown(said)
    golden(said)
    assert smi.runs() == []

    (smi.root / "usr").chmod(0o755)
    assert (await put(watch, "GPU-0", "short", 2.0)).problem == ""


async def test_a_refusal_is_told_in_nvidias_words(watch: Watched, smi: SmiStandIn, golden: Golden) -> None:
    """And nothing was changed, for sure."""
    smi.does("GPU-0", "refuse")
    fact = await put(watch, "GPU-0", "long")

    assert "Failed to set timeslice policy with value 3 for GPU 0 : Not Supported" in as_shown(fact.problem)
    assert not fact.outcome_unknown
    golden(fact.problem)


async def test_one_that_says_too_much_is_not_listened_to(watch: Watched, smi: SmiStandIn, golden: Golden) -> None:
    """What it says goes to our memory: it has an end."""
    smi.does("GPU-0", "flood")
    fact = await put(watch, "GPU-0", "long")

    assert len(fact.problem) < 600
    golden(fact.problem)


async def test_a_crash_leaves_it_unsure(watch: Watched, smi: SmiStandIn, golden: Golden) -> None:
    smi.does("GPU-0", "crash")
    fact = await put(watch, "GPU-0", "long")

    assert fact.outcome_unknown
    assert "SIGSEGV" in as_shown(fact.problem)
    golden(fact.problem)


@pytest.mark.parametrize("how", ["hang", "late"])
async def test_one_that_hangs_is_ended(watch: Watched, smi: SmiStandIn, how: str, golden: Golden) -> None:
    """Nobody knows whether it has set the length; the other GPU is served."""
    smi.does("GPU-0", how)
    fact = await put(watch, "GPU-0", "long")

    assert fact.outcome_unknown
    golden(fact.problem)
    assert smi.running() == []
    assert (await put(watch, "GPU-1", "long", 2.0)).problem == ""


async def test_there_is_never_more_than_one(watch: Watched, smi: SmiStandIn) -> None:
    """The second begins when the first has ended."""
    smi.does("GPU-0", "hang")
    await watch.hardware.do(SetTimeSlice(gpu="GPU-0", length="long", requested_at=1.0))
    await watch.hardware.do(SetTimeSlice(gpu="GPU-1", length="short", requested_at=2.0))
    await told(watch, 1.0)
    assert smi.running() == []
    assert (await told(watch, 2.0)).problem == ""
    assert smi.runs() == [("GPU-0", "long"), ("GPU-1", "short")]


async def test_it_is_ended_when_the_driver_is_let_go_of(watch: Watched, smi: SmiStandIn, golden: Golden) -> None:
    """Before that is said; none is started after, until the driver is taken up again."""
    smi.does("GPU-0", "late")
    await watch.hardware.do(SetTimeSlice(gpu="GPU-0", length="long", requested_at=1.0))
    while not smi.running():
        await asyncio.sleep(0.01)
    await watch.hardware.release()
    assert smi.running() == []
    await watch.until(lambda watch: watch.driver() == ("waiting", "released"))
    fact = await told(watch, 1.0)
    assert fact.outcome_unknown
    golden(fact.problem)

    fact = await put(watch, "GPU-1", "long", 2.0)
    assert fact.problem
    assert not fact.outcome_unknown
    assert smi.runs() == [("GPU-0", "long")]

    await watch.hardware.do(ObserveMachine())
    await watch.until(lambda watch: watch.driver()[0] == "ok")
    assert (await put(watch, "GPU-1", "long", 3.0)).problem == ""


async def test_where_there_is_none_the_place_is_told(
    watch: Watched, smi: SmiStandIn, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Or what is there cannot be run; neither changes anything."""
    path = smi.root / "usr/bin/nvidia-smi"
    path.write_bytes(b"\x7fELF of another machine")
    fact = await put(watch, "GPU-0", "long")
    assert not fact.outcome_unknown
    assert f"{path}: {os.strerror(errno.ENOEXEC)}" in as_shown(fact.problem)

    path.unlink()
    monkeypatch.setenv("PATH", str(smi.root))
    fact = await put(watch, "GPU-0", "long", 2.0)
    assert not fact.outcome_unknown
    assert str(smi.root) in as_shown(fact.problem)
    golden(fact.problem)


def test_programs_are_found_as_nvidia_finds_them(tmp_path: Path) -> None:
    """The first folder that has it, and no folder of that name."""
    (tmp_path / PROGRAM_FOLDERS[0] / "nvidia-smi").mkdir(parents=True)
    assert find_program(str(tmp_path), "nvidia-smi") is None
    for folder in reversed(PROGRAM_FOLDERS[1:]):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "nvidia-smi").touch()
        assert find_program(str(tmp_path), "nvidia-smi") == str(tmp_path / folder / "nvidia-smi")


async def test_it_has_the_library_of_its_driver_root(tmp_path: Path, watch: Watched, smi: SmiStandIn) -> None:
    """Which is not where the dynamic linker would look."""
    library = smi.root / LIBRARY_FOLDERS[1].removeprefix("/") / NVML_SONAME
    library.parent.mkdir(parents=True)
    library.symlink_to(tmp_path / "driver" / NVML_SONAME)
    (smi.root / "usr/bin/nvidia-smi").write_text(f'#!/bin/sh\necho "$LD_PRELOAD" > {tmp_path}/preloaded\n')

    assert (await put(watch, "GPU-0", "long")).problem == ""
    assert (tmp_path / "preloaded").read_text().split() == [str(library)]


def test_it_ends_with_whoever_started_it(tmp_path: Path, smi: SmiStandIn) -> None:
    """Also by SIGKILL: what a dead agent began does not undo what the next one does."""
    smi.does("GPU-0", "hang")
    code = (
        "import sys, time; from gpuplane.node.hardware.nvidia.nvidiasmi import NvidiaSmi; "
        "NvidiaSmi(sys.argv[1], 0, ('compute-policy', '-i', 'GPU-0', '--set-timeslice', '3')); "
        "print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, smi.root], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        while not smi.running():
            assert agent.poll() is None
        (pid,) = smi.running()
        watch = os.pidfd_open(pid)
        os.kill(agent.pid, signal.SIGKILL)
        assert select.select([watch], [], [], 20.0)[0]
        os.close(watch)
