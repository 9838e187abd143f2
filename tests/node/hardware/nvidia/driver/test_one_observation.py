"""One look by any hardware, for a command that soon ends."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.node.hardware.described.source import Described
from gpuplane.node.hardware.nvidia.settings import DriverLocation, Timing
from gpuplane.node.hardware.nvidia.source import Nvidia
from gpuplane.node.hardware.observeonce import NotObserved, observe_once
from gpuplane.node.model.machine import InjectedFailure, MachineFile
from tests.node.hardware.nvidia.driver.processes import family
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.texts import as_shown


async def versions(*all_of_them: bytes | OSError) -> AsyncIterator[bytes | OSError]:
    """A file's versions."""
    for each in all_of_them:
        yield each


def nvidia(library: Path, standin: StandIn, **timing: Any) -> Nvidia:
    """The source of the stand-in's GPUs."""
    return Nvidia(DriverLocation(library=library, root=standin.root), Timing(**timing))


async def test_what_the_driver_shows(standin: StandIn, rich: MachineFile) -> None:
    """All of it, and no process of the driver is left behind."""
    before = family()
    machine = await observe_once(nvidia(standin.library, standin), 60)

    assert [gpu.uuid for gpu in machine.gpus or ()] == [gpu.uuid for gpu in rich.gpus or ()]
    assert family() == before


async def test_no_driver(standin: StandIn) -> None:
    """Is said at once, with the library's path."""
    nowhere = standin.root / "nowhere.so"
    machine = await observe_once(nvidia(nowhere, standin), 60)

    assert machine.gpus is None
    assert [fault.code for fault in machine.faults] == ["driver-missing"]
    assert str(nowhere) in as_shown(machine.faults[0].message)


async def test_a_driver_that_hangs(standin: StandIn, rich: MachineFile) -> None:
    """Is a fault once a call's time is over, and no look where the whole time is over before."""
    standin.describe(rich.but(failures=(InjectedFailure(effect="hang", nvml_function="nvmlInit*"),)))
    before = family()
    machine = await observe_once(nvidia(standin.library, standin, deadline=0.5), 60)

    assert (machine.gpus, [fault.code for fault in machine.faults]) == (None, ["driver-hang"])
    with pytest.raises(NotObserved, match=r"0\.3 s"):
        await observe_once(nvidia(standin.library, standin), 0.3)
    assert family() == before


async def test_a_gpu_that_hangs_costs_itself(standin: StandIn, rich: MachineFile) -> None:
    """The look is that of the next process, which leaves it alone."""
    standin.describe(
        rich.but(failures=(InjectedFailure(effect="hang", nvml_function="nvmlDeviceGetMemoryInfo", gpu=1),))
    )
    machine = await observe_once(nvidia(standin.library, standin, deadline=1.0, rest=(0.01, 0.01)), 60)

    gpus = machine.gpus or ()
    assert len(gpus) == len(rich.gpus or ())
    assert [gpu.index for gpu in gpus if any(fault.code == "gpu-hang" for fault in gpu.faults)] == [1]


async def test_a_machine_file() -> None:
    """What it describes; of one that cannot be read, or is wrong, where and why."""
    machine = await observe_once(Described(versions(b"gpus: [{index: 0, uuid: GPU-0}]"), "m.yaml"), 60)

    assert [gpu.uuid for gpu in machine.gpus or ()] == ["GPU-0"]
    with pytest.raises(NotObserved, match=r"m\.yaml:1: .*gpu"):
        await observe_once(Described(versions(b"gpu: 1"), "m.yaml"), 60)
    with pytest.raises(NotObserved, match=r"m\.yaml: "):
        await observe_once(Described(versions(PermissionError(13, "Permission denied")), "m.yaml"), 60)
    with pytest.raises(NotObserved):
        await observe_once(Described(versions(), "m.yaml"), 60)


async def test_profiles(tmp_path: Path) -> None:
    """The name of a profile is a machine, and an unknown one, or a file that is not there, is not."""
    from gpuplane.cli.kit.machine import hardware
    from gpuplane.node.hardware.described.profiles import UnknownMachine

    assert len((await observe_once(hardware("t4"), 60)).gpus or ()) == 1
    with pytest.raises(UnknownMachine):
        hardware("none")
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        hardware(str(tmp_path / "none.yaml"))
