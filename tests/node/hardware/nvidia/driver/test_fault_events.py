"""What happens to a GPU is told at once, whole, and however much of it there is."""

import time

import pytest

from gpuplane.node.model.facts import MachineObserved, ObserveMachine
from gpuplane.node.model.machine import GpuProcess, InjectedFailure, MachineFile
from tests.node.hardware.nvidia.driver.machines import changed
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched

NOW = {"poll": 3600.0, "deadline": 3600.0}
"""No look is due, and no call too slow: what comes, comes because it happened."""


def whole(watch: Watched) -> bool:
    """Whether every GPU is seen, without a fault."""
    return bool(watch.gpus()) and not any(watch.codes()) and watch.driver()[0] == "ok"


async def test_an_event_is_told_when_it_happens_and_looked_at(standin: StandIn, rich: MachineFile) -> None:
    """The event first, with its time since the boot; then a look, long before the next one is due."""
    async with watched(standin, **NOW) as watch:
        await watch.until(whole)
        standin.describe(changed(rich, 3, memory_mib=4096))
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        standin.happen(3, 79)
        await watch.until(lambda watch: (watch.gpus() or ())[3].memory_mib == 4096)

        (event,) = watch.happened()
        assert (event.code, event.gpu) == ("xid-79", (rich.gpus or ())[3].uuid)
        assert before <= event.at <= time.clock_gettime(time.CLOCK_BOOTTIME)
        last = next(fact for fact in reversed(watch.facts) if isinstance(fact, MachineObserved))
        assert watch.facts.index(event) < watch.facts.index(last)


async def test_the_same_event_is_told_each_time(standin: StandIn, rich: MachineFile) -> None:
    """Though looks that show the same are told once; and a storm is told whole, while looks go on."""
    async with watched(standin, **NOW) as watch:
        await watch.until(whole)
        for _ in range(300):
            standin.happen(0, "ecc-single-bit")
        standin.happen(3, 95)
        await watch.hear(lambda watch: len(watch.happened()) == 301)

        assert watch.happened()[-1].code == "xid-95"
        standin.describe(changed(rich, 3, memory_mib=4096))
        await watch.hardware.do(ObserveMachine())
        await watch.until(lambda watch: (watch.gpus() or ())[3].memory_mib == 4096)


async def test_an_event_names_the_mig_instance_that_it_befell(standin: StandIn) -> None:
    """Where the driver does; else it befell the GPU."""
    async with watched(standin, **NOW) as watch:
        await watch.until(whole)
        standin.happen(1, 94, instance=(9, 0))
        standin.happen(1, 94)
        await watch.hear(lambda watch: len(watch.happened()) == 2)

        assert [(event.gpu_instance, event.compute_instance) for event in watch.happened()] == [(9, 0), (None, None)]


async def test_an_xid_names_the_processes_that_computed(standin: StandIn, rich: MachineFile) -> None:
    """On that GPU, once the XID is told. After one that says that it cannot answer, or if it does not, none are."""
    computing = (GpuProcess(gpu=0, pid=11), GpuProcess(gpu=3, pid=33), GpuProcess(gpu=3, pid=22))
    standin.describe(rich.but(processes=computing))
    async with watched(standin, **NOW) as watch:
        await watch.until(whole)
        standin.happen(3, 31)
        standin.happen(3, 79)
        standin.happen(3, "poison-fatal")
        await watch.hear(lambda watch: len(watch.happened()) == 4)
        refused = InjectedFailure(effect="error", gpu=0, nvml_function="nvmlDeviceGetComputeRunningProcesses")
        standin.describe(rich.but(processes=computing, failures=(refused,)))
        standin.happen(0, 31)
        await watch.hear(lambda watch: len(watch.happened()) == 5)

        assert [event.pids for event in watch.happened()] == [(), (22, 33), (), (), ()]
        first, again = watch.happened()[:2]
        assert again == first.but(pids=(22, 33))
        health = watch.node.snapshot.ledger.health
        assert health is not None
        assert health.devices[first.gpu].fault_counts == {"poison-fatal": 1, "xid-31": 1, "xid-79": 1}
        assert not any(watch.codes())


async def test_an_xid_is_told_of_a_gpu_that_hangs_when_it_is_asked_more(standin: StandIn, rich: MachineFile) -> None:
    """NVML tells none twice: it must not be lost with the process that hangs."""
    hang = InjectedFailure(effect="hang", gpu=3, nvml_function="nvmlDeviceGetComputeRunningProcesses")
    standin.describe(rich.but(failures=(hang,)))
    async with watched(standin, poll=3600.0, deadline=2.0) as watch:
        await watch.until(whole)
        standin.happen(3, 62)
        await watch.until(lambda watch: watch.codes()[3] == ["gpu-hang"])

        assert [event.code for event in watch.happened()] == ["xid-62"]


@pytest.mark.parametrize("call", ["nvmlSystemEventSetCreate", "nvmlSystemRegisterEvents", "nvmlSystemEventSetWait"])
async def test_a_library_that_tells_no_bindings_is_no_fault(standin: StandIn, rich: MachineFile, call: str) -> None:
    """All else is told as ever."""
    standin.describe(
        rich.but(failures=(InjectedFailure(effect="error", nvml_function=call, error="FUNCTION_NOT_FOUND"),))
    )
    async with watched(standin) as watch:
        await watch.until(whole)
        standin.happen(0, "gpu-unbound")
        standin.happen(0, 13)
        await watch.hear(lambda watch: len(watch.happened()) == 1)

        assert watch.happened()[0].code == "xid-13"


async def test_an_event_set_that_fails_is_made_anew(standin: StandIn, rich: MachineFile) -> None:
    """What happens after that is told."""
    async with watched(standin) as watch:
        await watch.until(whole)
        failing = rich.but(failures=(InjectedFailure(effect="error", nvml_function="nvmlEventSetWait"),))
        for memory in (4096, 2048):  # between two looks it was waited for
            standin.describe(changed(failing, 0, memory_mib=memory))
            await watch.until(lambda watch, memory=memory: (watch.gpus() or ())[0].memory_mib == memory)  # type: ignore[misc]
        standin.describe(changed(rich, 0, memory_mib=4096))
        await watch.until(lambda watch: (watch.gpus() or ())[0].memory_mib == 4096)
        standin.happen(2, 48)
        await watch.hear(lambda watch: [event.code for event in watch.happened()] == ["xid-48"])
