"""A recovery probe: a fresh process looks at one GPU, and something always comes of it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator

import msgspec
import pytest

from gpuplane.node.hardware.described.source import Described
from gpuplane.node.hardware.nvidia import driverprocess, processes
from gpuplane.node.model.facts import MachineObserved, ObserveMachine, ProbeFinished, ProbeGpu
from gpuplane.node.model.machine import Gpu, GpuProcess, InjectedFailure, MachineFile
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.texts import as_shown

HANG = InjectedFailure(effect="hang", nvml_function="nvmlDeviceGetMemoryInfo", gpu=1)
CRASH = InjectedFailure(effect="crash", nvml_function="nvmlDeviceGetMemoryInfo", gpu=1)
PROCESSES = (GpuProcess(gpu=1, pid=12), GpuProcess(gpu=1, pid=11), GpuProcess(gpu=3, pid=31))


def uuid(machine: MachineFile, index: int) -> str:
    """The UUID of a GPU."""
    return (machine.gpus or ())[index].uuid


def whole(watch: Watched) -> bool:
    """Whether every GPU is seen, without a fault."""
    return bool(watch.gpus()) and not any(watch.codes()) and watch.driver()[0] == "ok"


def nothing(gpu: str, code: str) -> tuple[int, str, list[str]]:
    """What a probe that saw nothing says of a GPU."""
    return -1, gpu, [code]


def said(probed: ProbeFinished) -> tuple[int, str, list[str]]:
    """What a probe says of a GPU."""
    return probed.gpu.index, probed.gpu.uuid, [fault.code for fault in probed.gpu.faults]


async def test_a_probe_sees_what_a_look_sees_and_who_computes(standin: StandIn, rich: MachineFile) -> None:
    """Of each GPU all but its distances, which take the others; just as of a described machine."""
    machine = rich.but(processes=PROCESSES)
    standin.describe(machine)
    async with watched(standin, deadline=20.0) as watch:
        await watch.until(whole)
        for index, gpu in enumerate(rich.gpus or ()):
            probed = await watch.probe(gpu.uuid, asked=float(index))

            assert probed.gpu == gpu.but(distances={})
            assert probed.pids == {1: (11, 12), 3: (31,)}.get(index, ())
            told = await described(machine, gpu.uuid)
            assert (probed.gpu, set(probed.pids)) == (told.gpu.but(distances={}), set(told.pids))
        assert whole(watch)
        assert watch.gpus() == rich.gpus


async def described(machine: MachineFile, gpu: str) -> ProbeFinished:
    """What comes of a probe of the machine as a file describes it."""

    async def versions() -> AsyncIterator[bytes | OSError]:
        yield msgspec.json.encode(machine)
        await asyncio.Event().wait()

    hardware = Described(versions(), "file")
    facts = hardware.facts()
    await anext(facts)
    await hardware.do(ProbeGpu(gpu=gpu, requested_at=0.0))
    async for fact in facts:
        if isinstance(fact, ProbeFinished):
            await facts.aclose()
            return fact
    raise AssertionError("facts end")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (HANG, "gpu-hang"),
        (CRASH, "gpu-crash"),
        (HANG.but(effect="error", error="GPU_IS_LOST"), "gpu-lost"),
        (InjectedFailure(effect="hang", nvml_function="nvmlInit*"), "driver-hang"),
        (InjectedFailure(effect="crash", nvml_function="nvmlInit*"), "driver-crash"),
        (InjectedFailure(effect="error", nvml_function="nvmlInit*"), "driver-failed"),
        (InjectedFailure(effect="error", nvml_function="nvmlDeviceGetCount"), "driver-failed"),
    ],
    ids=str,
)
async def test_whatever_goes_wrong_comes_back_as_a_fault(
    standin: StandIn, rich: MachineFile, failure: InjectedFailure, code: str
) -> None:
    """A hang is ended after its deadline."""
    async with watched(standin, poll=3600.0, deadline=2.0 if failure.effect == "hang" else 20.0) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(failure,)))
        probed = await watch.probe(uuid(rich, 1), asked=7.0)

        assert probed.gpu.uuid == uuid(rich, 1)
        assert [fault.code for fault in probed.gpu.faults] == [code]


async def test_a_gpu_that_nobody_has_is_missing(standin: StandIn, rich: MachineFile) -> None:
    """Neither NVML nor the kernel."""
    async with watched(standin, deadline=20.0) as watch:
        await watch.until(whole)

        assert said(await watch.probe("GPU-none", asked=1.0)) == nothing("GPU-none", "gpu-missing")


async def test_a_process_that_cannot_be_started_comes_back_too(
    standin: StandIn, rich: MachineFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason; and one that is no process of ours."""
    async with watched(standin, deadline=20.0) as watch:
        await watch.until(whole)
        for asked, command, code in ((1.0, "/nowhere/python", "driver-start"), (2.0, "/bin/false", "driver-crash")):
            monkeypatch.setattr(driverprocess, "DRIVER_COMMAND", (command,))
            assert said(await watch.probe(uuid(rich, 1), asked)) == nothing(uuid(rich, 1), code)


async def test_a_probe_leaves_the_other_gpus_alone(standin: StandIn, rich: MachineFile) -> None:
    """Were it to ask any of them, it would hang."""
    async with watched(standin, poll=3600.0, deadline=20.0) as watch:
        await watch.until(whole)
        others = tuple(HANG.but(gpu=index, nvml_function="*") for index in (0, 2, 3, 4))
        standin.describe(rich.but(failures=others))

        assert (await watch.probe(uuid(rich, 1), asked=1.0)).gpu.faults == ()


async def test_a_gpu_of_which_the_kernel_tells_no_uuid_is_found(standin: StandIn, rich: MachineFile) -> None:
    """By asking those that the kernel does not name."""
    async with watched(standin, poll=3600.0, deadline=20.0) as watch:
        await watch.until(whole)
        for file in (standin.root / "proc/driver/nvidia/gpus").glob("*/information"):
            file.write_text("Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\n")

        assert (await watch.probe(uuid(rich, 3), asked=1.0)).gpu == (rich.gpus or ())[3].but(distances={})


@pytest.mark.parametrize("failure", [HANG, CRASH], ids=lambda failure: failure.effect)
async def test_a_good_probe_lifts_a_charge_at_once(
    standin: StandIn, rich: MachineFile, failure: InjectedFailure
) -> None:
    """A bad one does not. The GPU is looked at again, and no look of before is told after the probe."""
    async with watched(standin, retry=(3600.0, 3600.0), deadline=2.0) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(failure,)))
        charged = f"gpu-{failure.effect}"
        await watch.until(lambda watch: watch.codes() == [[], [charged], [], [], []])
        assert said(await watch.probe(uuid(rich, 1), asked=1.0)) == nothing(uuid(rich, 1), charged)
        assert watch.codes() == [[], [charged], [], [], []]

        standin.describe(rich)
        watch.patient()
        good = await watch.probe(uuid(rich, 1), asked=2.0)
        assert good.gpu == (rich.gpus or ())[1].but(distances={})
        assert not any(
            map(_faults, watch.hardware._state.machine.gpus or ())
        )  # what is told where another one is charged now
        standin.describe(rich.but(gpus=tuple(gpu.but(uncorrected_errors=3) for gpu in rich.gpus or ())))
        await watch.until(
            lambda watch: whole(watch) and [gpu.uncorrected_errors for gpu in watch.gpus() or ()] == [3] * 5
        )

        later = watch.facts[watch.facts.index(good) :]
        assert not [
            look for look in later if isinstance(look, MachineObserved) and any(map(_faults, look.machine.gpus or ()))
        ]


def _faults(gpu: Gpu) -> list[str]:
    return [fault.code for fault in gpu.faults]


async def test_a_lifted_charge_is_a_relapse_when_it_comes_again(standin: StandIn, rich: MachineFile) -> None:
    """The process that looks is ended again, and the others are looked at again."""
    async with watched(standin, retry=(3600.0, 3600.0), deadline=20.0) as watch:
        await watch.until(whole)
        for asked in (1.0, 2.0):
            standin.describe(rich.but(failures=(CRASH,)))
            await watch.until(lambda watch: watch.codes() == [[], ["gpu-crash"], [], [], []])
            standin.describe(rich)
            await watch.probe(uuid(rich, 1), asked)
            await watch.until(whole)


async def test_what_is_let_go_of_is_not_probed(standin: StandIn, rich: MachineFile) -> None:
    """Nor does a probe that is under way keep it: letting go ends that."""
    async with watched(standin, poll=3600.0, deadline=3600.0) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(HANG,)))
        await watch.hardware.do(ProbeGpu(gpu=uuid(rich, 1), requested_at=1.0))
        assert watch.hardware._processes.left()
        await watch.hardware.release()
        await watch.hear(lambda watch: len(watch.probed()) == 1)
        assert said(watch.probed()[0]) == nothing(uuid(rich, 1), "not-looked")
        assert not [each for each in watch.hardware._processes.left() if not each.is_gone()]

        assert said(await watch.probe(uuid(rich, 1), asked=2.0)) == nothing(uuid(rich, 1), "not-looked")
        standin.describe(rich)
        await watch.hardware.do(ObserveMachine())
        await watch.until(whole)
        assert (await watch.probe(uuid(rich, 1), asked=3.0)).gpu.faults == ()


async def test_probes_that_survive_being_killed_are_not_piled_up(
    standin: StandIn, rich: MachineFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU that one is stuck in is not probed while it is; another is, as long as no more than one is stuck."""
    monkeypatch.setattr(processes, "KILL_TIMEOUT", 0.05)
    async with watched(standin, poll=3600.0, deadline=2.0) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(HANG, HANG.but(gpu=3))))
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "kill", lambda process: None)
            assert said(await watch.probe(uuid(rich, 1), asked=1.0)) == nothing(uuid(rich, 1), "gpu-hang")
            stuck = [each for each in watch.hardware._processes.left() if each.stuck]
            again = await watch.probe(uuid(rich, 1), asked=2.0)
            assert said(again) == nothing(uuid(rich, 1), "gpu-hang")
            assert str(stuck[0].pid) in as_shown(again.gpu.faults[0].message)

            assert said(await watch.probe(uuid(rich, 3), asked=3.0)) == nothing(uuid(rich, 3), "gpu-hang")
            held = await watch.probe(uuid(rich, 0), asked=4.0)
            assert said(held) == nothing(uuid(rich, 0), "driver-hang")
            stuck = [each for each in watch.hardware._processes.left() if each.stuck]
            assert len(stuck) == 2
        for each in stuck:
            each.kill()
            assert await each.wait_until_gone(20.0)
        standin.describe(rich)
        watch.patient()
        assert (await watch.probe(uuid(rich, 1), asked=5.0)).gpu.faults == ()
