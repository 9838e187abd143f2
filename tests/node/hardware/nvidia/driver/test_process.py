"""The driver's process and the agent's end of it, for real: hangs, crashes, events, letting go."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from gpuplane.node.hardware.nvidia import driverprocess, processes
from gpuplane.node.hardware.nvidia.driver.channel import DriverOptions
from gpuplane.node.hardware.nvidia.driverprocess import DriverProcess, WaitingProcess
from gpuplane.node.model.facts import MachineObserved, ObserveMachine, ProbeGpu, StatusChanged
from gpuplane.node.model.machine import InjectedFailure, Machine, MachineFile
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.lengths import length
from tests.node.core.health.world import trouble
from tests.node.hardware.nvidia.driver.machines import changed
from tests.node.hardware.nvidia.driver.processes import family, opened, state
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.texts import as_shown


class Starts:
    """The driver's processes that were started, and when."""

    def __init__(self) -> None:
        self.children: list[DriverProcess] = []
        self.at: list[float] = []
        self._changed = asyncio.Event()

    def started(self, child: DriverProcess) -> None:
        """Another one."""
        self.children.append(child)
        self.at.append(time.monotonic())
        self._changed.set()

    async def reach(self, number: int) -> None:
        """Wait until so many were started."""
        async with asyncio.timeout(60):
            while len(self.children) < number:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Counts the driver's processes."""
    starts = Starts()

    class Counted(DriverProcess):
        def __init__(self, options: DriverOptions, waiting: WaitingProcess | None = None) -> None:
            super().__init__(options, waiting)
            starts.started(self)

    monkeypatch.setattr(processes, "DriverProcess", Counted)
    return starts


HANG = InjectedFailure(effect="hang", nvml_function="nvmlDeviceGetMemoryInfo", gpu=1)
CRASH = InjectedFailure(effect="crash", nvml_function="nvmlDeviceGetMemoryInfo", gpu=1)


def whole(watch: Watched) -> bool:
    """Whether every GPU is seen, without a fault."""
    return bool(watch.gpus()) and not any(watch.codes()) and watch.driver()[0] == "ok"


async def test_the_process_tells_what_the_library_tells(standin: StandIn, rich: MachineFile) -> None:
    """One fact about the driver and one look, and nothing more while nothing changes.

    On a busy machine it would be told, too, that the process gets too little CPU: calls may take long here.
    """
    async with watched(standin, deadline=60.0) as watch:
        await watch.until(whole)
        standin.describe(changed(rich, 0, memory_mib=4096))
        await watch.until(lambda watch: bool(watch.gpus()) and watch.gpus() != rich.gpus)

        assert watch.driver()[0] == "ok"
        assert [type(fact) for fact in watch.facts] == [MachineObserved, StatusChanged, MachineObserved]
        (first, *_) = (fact.machine for fact in watch.facts if isinstance(fact, MachineObserved))
        seen = Machine(**{name: getattr(rich, name) for name in Machine.__struct_fields__})
        assert first.but(device_node_stats={}) == seen.but(device_node_stats={})


@pytest.mark.parametrize("failure", [HANG, CRASH], ids=lambda failure: failure.effect)
async def test_a_gpu_that_hangs_or_crashes_the_library_is_charged_alone(
    standin: StandIn, rich: MachineFile, failure: InjectedFailure
) -> None:
    """It keeps its description and gets the fault; the others go on being looked at, by another process."""
    async with watched(standin) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(failure,)))
        await watch.until(lambda watch: any(watch.codes()))
        first = watch.gpus()
        standin.describe(changed(rich.but(failures=(failure,)), 4, numa=7))
        await watch.until(lambda watch: bool(watch.gpus()) and (watch.gpus() or ())[4].numa == 7)

        assert watch.codes() == [[], [f"gpu-{failure.effect}"], [], [], []]
        assert "nvmlDeviceGetMemoryInfo" in as_shown((watch.gpus() or ())[1].faults[0].message)
        assert first is not None
        assert [gpu.but(faults=()) for gpu in first] == [*(rich.gpus or ())]


async def test_a_gpu_that_hangs_from_the_start_is_skipped(standin: StandIn, rich: MachineFile) -> None:
    """It is known by what the kernel says of it; when it answers again it is as the others."""
    standin.describe(rich.but(failures=(HANG,)))
    async with watched(standin, retry=(5.0, 60.0)) as watch:
        await watch.until(lambda watch: watch.codes() == [[], ["gpu-hang"], [], [], []])
        hung, described = (watch.gpus() or ())[1], (rich.gpus or ())[1]
        assert (hung.uuid, hung.pci, hung.minor) == (described.uuid, described.pci, described.minor)

        standin.describe(rich)
        await watch.until(lambda watch: watch.gpus() == rich.gpus)


async def test_two_bad_gpus_cost_only_themselves(standin: StandIn, rich: MachineFile) -> None:
    """Each is charged by a process of its own."""
    standin.describe(rich.but(failures=(HANG, CRASH.but(gpu=3, nvml_function="nvmlDeviceGetHandleByIndex"))))
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.codes() == [[], ["gpu-hang"], [], ["gpu-crash"], []])


def driver_faults(watch: Watched) -> list[str]:
    """The codes of what is wrong with the driver as a whole."""
    machine = watch.node.snapshot.machine
    return [fault.code for fault in machine.faults] if machine else []


def troubles(watch: Watched) -> set[str]:
    """Why GPUs may not be given out."""
    return {trouble(watch.node.snapshot, gpu) for gpu in watch.gpus() or ()} - {""}


async def test_a_driver_that_hangs_as_a_whole_is_silent(standin: StandIn, rich: MachineFile) -> None:
    """The last look stays in force, for a while all is served, and the driver is taken up when it answers."""
    async with watched(standin) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(InjectedFailure(effect="hang"),)))
        await watch.until(lambda watch: watch.driver()[0] == "failing")

        assert driver_faults(watch) == ["driver-hang"]
        assert watch.gpus() == rich.gpus
        assert not troubles(watch)

        standin.describe(rich)
        await watch.until(whole)
        assert driver_faults(watch) == []


async def test_a_driver_that_crashes_at_every_start_goes_on_being_served(
    standin: StandIn, rich: MachineFile, starts: Starts
) -> None:
    """The GPUs that were seen stay, and are given out; when it works again it is taken up, and all is forgotten."""
    async with watched(standin) as watch:
        await watch.until(whole)
        before = watch.node.snapshot.ledger
        standin.describe(rich.but(failures=(InjectedFailure(effect="crash", nvml_function="nvmlInit*"),)))
        starts.children[0].kill()
        await starts.reach(4)
        await watch.until(lambda watch: driver_faults(watch) == ["driver-crash"])

        assert watch.gpus() == rich.gpus
        assert not troubles(watch)

        standin.describe(rich)
        await watch.until(whole)
        assert driver_faults(watch) == []
        assert watch.node.snapshot.ledger == before


async def test_a_library_that_crashes_at_every_start_is_not_started_in_a_storm(
    standin: StandIn, rich: MachineFile, starts: Starts
) -> None:
    """The rests double; the reason is told; it recovers."""
    standin.describe(rich.but(failures=(InjectedFailure(effect="crash", nvml_function="nvmlInit*"),)))
    async with watched(standin, rest=(0.05, 60.0)) as watch:
        await starts.reach(5)
        machine = watch.node.snapshot.machine
        assert machine is not None
        assert [fault.code for fault in machine.faults] == ["driver-crash"]
        assert watch.driver()[0] == "failing"
        assert "SIGSEGV" in watch.driver()[1]
        assert "nvmlInit" in watch.driver()[1]
        for number, (earlier, later) in enumerate(pairwise(starts.at)):
            assert later - earlier >= 0.05 * 2**number

        standin.describe(rich)
        await watch.until(whole)


async def test_a_driver_that_crashes_while_it_waits_keeps_its_last_look(
    standin: StandIn, rich: MachineFile, starts: Starts
) -> None:
    """A crash that no GPU can be charged with, after a good look: the GPUs answer, so they stay as they are."""
    async with watched(standin) as watch:
        await watch.until(whole)
        standin.describe(rich.but(failures=(InjectedFailure(effect="crash", nvml_function="nvmlEventSetWait"),)))
        await starts.reach(3)

        assert watch.gpus() == rich.gpus
        ended = DriverStatus(
            "failing", "the agent's driver process failed in nvmlEventSetWait: SIGSEGV", code="driver-crash"
        )
        assert StatusChanged(DRIVER_PART, ended) in watch.facts

        standin.describe(rich)
        await watch.until(whole)


async def test_processes_that_survive_being_killed_are_not_piled_up(
    standin: StandIn, rich: MachineFile, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two stuck in the kernel there is no third, and that is said; when one ends, another is started."""
    monkeypatch.setattr(processes, "KILL_TIMEOUT", 0.05)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    standin.describe(rich.but(failures=(HANG, HANG.but(gpu=3))))
    async with watched(standin) as watch:
        await watch.until(lambda watch: "stuck in the kernel" in watch.driver()[1])
        first, second = starts.children
        assert str(first.pid) in watch.driver()[1]
        assert str(second.pid) in watch.driver()[1]
        assert not first.is_gone()
        assert driver_faults(watch) == ["driver-hang"]

        monkeypatch.undo()
        first.kill()
        await watch.until(lambda watch: watch.codes() == [[], ["gpu-hang"], [], ["gpu-hang"], []])
        assert not second.is_gone()
        await watch.hardware.release()
        await watch.until(lambda watch: watch.driver() == ("waiting", "released"))
        assert second.is_gone()


async def test_letting_go_of_a_stuck_process_says_that_it_is_not(
    standin: StandIn, rich: MachineFile, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that the driver is free while a process may hold it."""
    monkeypatch.setattr(processes, "KILL_TIMEOUT", 0.05)
    async with watched(standin) as watch:
        await watch.until(whole)
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "kill", lambda process: None)
            standin.describe(rich.but(failures=(HANG,)))
            await starts.reach(2)
            await watch.hardware.release()
            await watch.until(lambda watch: watch.driver()[0] == "failing")
            assert f"process {starts.children[0].pid}" in watch.driver()[1]
        for child in starts.children:
            child.kill()
        await watch.until(lambda watch: watch.driver() == ("waiting", "released"))


def openable(machine: MachineFile) -> MachineFile:
    """The machine with plain files for nodes: nodes with numbers have no driver behind them here."""
    return machine.but(device_node_stats={})


async def test_letting_go_leaves_no_device_node_open(standin: StandIn, starts: Starts, rich: MachineFile) -> None:
    """When release returns, no process of ours has one; the GPUs are known on; a look takes the driver up again."""
    standin.describe(openable(rich))
    async with watched(standin) as watch:
        await watch.until(whole)
        assert {f"{standin.root}/dev/nvidiactl", f"{standin.root}/dev/nvidia0"} <= opened(starts.children[0].pid)

        await watch.hardware.release()
        assert not any(f"{standin.root}/dev" in path for pid in family() for path in opened(pid))
        await watch.until(lambda watch: watch.driver() == ("waiting", "released"))
        assert watch.gpus() == rich.gpus

        standin.describe(openable(changed(rich, 0, memory_mib=4096)))
        await watch.hardware.do(ObserveMachine())
        await watch.until(lambda watch: watch.driver()[0] == "ok" and (watch.gpus() or ())[0].memory_mib == 4096)


async def test_the_process_has_nothing_open_but_what_it_needs(
    standin: StandIn, starts: Starts, rich: MachineFile
) -> None:
    """And ours has nothing more open after many of them than before."""
    standin.describe(openable(rich))
    async with watched(standin) as watch:
        await watch.until(whole)
        links = opened(starts.children[0].pid)
        nodes = {path for path in links if path.startswith(str(standin.folder.parent))}
        rest = {path.split(":")[0].split("[")[0] for path in links - nodes}
        assert {path.removeprefix(str(standin.folder.parent)) for path in nodes} == {
            "/driver/events", "/driver/bindings", "/node/dev/nvidiactl",
            *(f"/node/dev/nvidia{minor}" for minor in range(5)),
        }  # fmt: skip
        errors = str(Path("/proc/self/fd/2").readlink()).split(":")[0]
        assert rest <= {"/dev/null", "socket", "/memfd", errors}

        before = len(opened(os.getpid()))
        for _ in range(3):
            await watch.hardware.release()
            await watch.until(lambda watch: watch.driver()[0] == "waiting")
            await watch.hardware.do(ObserveMachine())
            await watch.until(whole)
        assert len(opened(os.getpid())) <= before  # of tests before us something may still be closed


DEEDS = ("hang", "crash", "error", "as a whole", "let go", "take up", "unload", "kill", "heal", "probe", "probe")


@pytest.mark.parametrize("number", range(length(3, 30)))
async def test_after_whatever_happened_all_is_well_again(
    standin: StandIn, rich: MachineFile, number: int, seed: int
) -> None:
    """Hangs, crashes, errors, kills, drivers that go and come, letting go and taking up, in any order.

    Each probe that was asked for meanwhile has come back, once.
    """
    chance, asked = Random(seed), list[float]()
    async with watched(standin, deadline=0.4, retry=(0.2, 0.5), rest=(0.02, 0.2)) as watch:
        for _ in range(16):
            match chance.choice(DEEDS):
                case "hang" | "crash" | "error" as effect:
                    call = chance.choice(("*", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"))
                    failure = InjectedFailure(effect=effect, nvml_function=call, gpu=chance.randrange(5))
                    standin.describe(rich.but(failures=(failure,)))
                case "as a whole":
                    call = chance.choice(("*", "nvmlEventSetWait"))
                    failure = InjectedFailure(effect=chance.choice(("hang", "crash")), nvml_function=call)
                    standin.describe(rich.but(failures=(failure,)))
                case "let go":
                    await watch.hardware.release()
                case "take up":
                    await watch.hardware.do(ObserveMachine())
                case "unload":
                    standin.unload()
                case "kill":
                    for pid in family():
                        if b"gpuplane.node.hardware.nvidia.driver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                            os.kill(pid, signal.SIGKILL)
                case "probe":
                    asked.append(float(len(asked)))
                    await watch.hardware.do(ProbeGpu(gpu=chance.choice(rich.gpus or ()).uuid, requested_at=asked[-1]))
                    standin.happen(chance.randrange(5), 31)
                case "heal":
                    standin.describe(rich)
            await asyncio.sleep(chance.choice((0.0, 0.01, 0.1, 0.3)))
        standin.describe(rich)
        await watch.hardware.do(ObserveMachine())
        await watch.until(lambda watch: whole(watch) and watch.gpus() == rich.gpus)
        await watch.hear(lambda watch: len(watch.probed()) >= len(asked))
        assert sorted(each.requested_at for each in watch.probed()) == asked


async def test_the_process_ends_with_its_agent(standin: StandIn, tmp_path: Path) -> None:
    """Even with one that is killed, and even while the library hangs."""
    script = AGENT.format(library=str(standin.library), root=str(standin.root))
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    child = int(await asyncio.wait_for(agent.stdout.readline(), 60))
    agent.kill()
    await agent.wait()
    async with asyncio.timeout(60):
        while Path(f"/proc/{child}/stat").exists() and state(child) != "Z":
            await asyncio.sleep(0.01)


def test_the_process_is_small() -> None:
    """Of ours it imports values and files alone, and nothing of what makes the agent big."""
    script = "import sys, gpuplane.node.hardware.nvidia.driver.__main__; print(*sys.modules)"
    modules = set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.split())
    ours = {name for name in modules if name.startswith("gpuplane.") and name != "gpuplane.node"}

    rooms = ("gpuplane.base", "gpuplane.kubernetes", "gpuplane.node.model", "gpuplane.node.hardware")
    assert [name for name in ours if not name.startswith(rooms)] == []
    assert not {name for name in modules if name.startswith("gpuplane.kubernetes.client")}
    assert not modules & {"asyncio", "grpc", "logging", "yaml", "google.protobuf", "argparse", "multiprocessing"}
    hardware = {name for name in ours if name.startswith("gpuplane.node.hardware.nvidia")}
    assert {name for name in ours if name.startswith("gpuplane.node.hardware.")} == hardware
    assert {name for name in hardware if ".driver" not in name} == {"gpuplane.node.hardware.nvidia"}  # its docstring


AGENT = """
import asyncio
from pathlib import Path
from random import Random
from gpuplane.node.hardware.nvidia.settings import DriverLocation
from gpuplane.node.hardware.nvidia.source import Nvidia
from gpuplane.node.model.status import DRIVER_PART, Status

async def main():
    hardware = Nvidia(DriverLocation(library=Path({library!r}), root=Path({root!r})))
    async for fact in hardware.facts():
        print(hardware._processes.left()[-1].pid, flush=True)

asyncio.run(main())
"""


async def test_a_process_that_may_not_be_started_says_which_program_that_is(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the agent's user may not run the interpreter; and it is tried again."""
    program = tmp_path / "python"
    program.touch(0o644)
    monkeypatch.setattr(driverprocess, "DRIVER_COMMAND", (str(program),))
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.driver()[0] == "failing")
        assert watch.driver()[1].endswith(f"{program}: {os.strerror(errno.EACCES)}")
        monkeypatch.undo()
        await watch.until(whole)
