"""What one look tells: the code of the driver's process, in this process, over the stand-in for the library."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.hardware import profiles
from gpuplane.hardware.driver.channel import Options
from gpuplane.hardware.driver.files import Files
from gpuplane.hardware.driver.library import start
from gpuplane.hardware.driver.look import Looker
from gpuplane.hardware.driver.nvml import Nvml
from gpuplane.hardware.driver.page import Page
from gpuplane.hardware.failures import show
from gpuplane.hardware.machinefile import read
from gpuplane.model.facts import Looked
from gpuplane.model.machine import Failure, Gpu, Machine, MachineFile
from tests.driver.machines import CALLS, failures, machines
from tests.driver.standin import StandIn

Look = Callable[[MachineFile], Machine]


class Inside:
    """A driver within this process: its library can be loaded once, so all tests here describe the same stand-in."""

    def __init__(self, standin: StandIn) -> None:
        self.standin, self.files = standin, Files(str(standin.root))
        memory = os.memfd_create("page")
        os.ftruncate(memory, 4096)
        self.nvml = Nvml(Page(memory))
        os.close(memory)
        self.looker: Looker | None = None

    def start(self, machine: MachineFile) -> Looker:
        """A fresh start of the driver with this machine."""
        self.stop()
        self.standin.describe(machine)
        options = Options(channel=-1, page=-1, library=str(self.standin.library), root=str(self.standin.root))
        self.looker = Looker(self.nvml, self.files, start(self.nvml, options, self.files))
        return self.looker

    def stop(self) -> None:
        """The end of a process."""
        if self.looker is not None:
            self.nvml.call("nvmlShutdown")
            self.looker = None


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Iterator[Inside]:
    """The one driver in this process."""
    inside = Inside(StandIn(tmp_path_factory.mktemp("inside"), compiled))
    yield inside
    inside.stop()


def described(machine: MachineFile) -> Machine:
    """What a look at it shows when all goes well."""
    return Machine(driver=machine.driver, gpus=machine.gpus, switches=machine.switches, nodes=machine.nodes)


def but_distances(gpu: Gpu) -> Gpu:
    """A GPU apart from what it says of others."""
    return gpu.but(distances={})


def test_everything_that_nvml_tells_is_told(inside: Inside, rich: MachineFile) -> None:
    """Every field of a machine with NVLinks, NVSwitches, MIG in all namings, IMEX channels and odd addresses."""
    assert inside.start(rich).look(()) == described(rich)


@pytest.mark.parametrize("name", profiles.names())
def test_every_profile_is_what_its_driver_would_tell(inside: Inside, name: str) -> None:
    """The machines that are shipped are machines that NVML could tell of."""
    machine = read(profiles.find(name).read_bytes(), name)

    assert inside.start(machine).look(()) == described(machine)


@given(machine=machines())
def test_any_machine_is_told_whole(inside: Inside, machine: MachineFile) -> None:
    """And told the same again by the next look, which asks less."""
    looker = inside.start(machine)

    assert looker.look(()) == described(machine)
    assert looker.look(()) == described(machine)


@given(data=st.data(), machine=machines(least=1))
def test_a_query_that_fails_is_a_fault_of_its_gpu_alone(
    inside: Inside, data: st.DataObject, machine: MachineFile
) -> None:
    """Exactly the faults that the described machine shows; the other GPUs are told whole."""
    failing = data.draw(st.lists(failures(len(machine.gpus or ())), min_size=1, max_size=2))
    file = machine.but(failures=tuple(failing))
    (shown,) = (fact.machine.gpus or () for fact in show(file, "file") if isinstance(fact, Looked))

    seen = inside.start(file).look(()).gpus or ()

    assert [gpu.faults for gpu in seen] == [gpu.faults for gpu in shown]
    assert [_parts(gpu) for gpu in seen] == [_parts(gpu) for gpu in shown]
    for whole, gpu in zip(machine.gpus or (), seen, strict=True):
        if gpu.index not in {failure.gpu for failure in failing}:
            assert but_distances(gpu) == but_distances(whole)


def _parts(gpu: Gpu) -> list[tuple[str, ...]]:
    """The faults of its MIG devices, so far as they have any."""
    devices = gpu.mig.devices if gpu.mig else ()
    return [tuple(fault.message for fault in device.faults) for device in devices if device.faults]


@pytest.mark.parametrize("call", CALLS)
def test_each_query_can_fail(inside: Inside, rich: MachineFile, call: str) -> None:
    """While it fails for one GPU, the four others are whole and it has a fault; when it is over, all are whole."""
    looker = inside.start(rich.but(failures=(Failure(effect="error", call=call, gpu=2),)))
    for index, gpu in enumerate(looker.look(()).gpus or ()):
        assert bool(_codes(gpu)) == (index == 2)
        assert index == 2 or but_distances(gpu) == but_distances((rich.gpus or ())[index])

    inside.standin.describe(rich)

    assert [but_distances(gpu) for gpu in looker.look(()).gpus or ()] == [but_distances(g) for g in rich.gpus or ()]


def _codes(gpu: Gpu) -> list[str]:
    devices = gpu.mig.devices if gpu.mig else ()
    return [fault.code for fault in (*gpu.faults, *(fault for device in devices for fault in device.faults))]
