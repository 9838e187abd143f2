"""The oracle of chaos: what it demands, on a machine small enough to see that it is right.

What it demands too much breaks a play. An oracle that demands too little breaks none: that is held here.
"""

from typing import Any

import pytest

from gpuplane.node.model.machine import Fault, Gpu, GpuProcess, Incident, InjectedFailure, MachineFile, Mig, MigDevice
from tests.chaos import oracle
from tests.chaos.belief import Belief

DEVICES = tuple(MigDevice(uuid=f"MIG-{n}", profile="3g.40gb", gpu_instance=n + 1, mig_index=n) for n in range(2))
WELL = MachineFile(
    gpus=(
        Gpu(index=0, uuid="GPU-0", pci="0000:01:00.0", uncorrected_errors=0),
        Gpu(index=1, uuid="GPU-1", pci="0000:02:00.0", uncorrected_errors=0),
        Gpu(index=2, uuid="GPU-2", pci="0000:03:00.0", uncorrected_errors=0, mig=Mig(enabled=True, devices=DEVICES)),
    )
)
ALL = {"GPU-0", "GPU-1", "MIG-0", "MIG-1"}
PERIOD = 1.0


class World:
    """A belief, and the file that it comes from; a second goes by with each edit."""

    def __init__(self) -> None:
        self.now, self.file, self.incidents = 0.0, WELL, 0
        self.belief = Belief(WELL, frozenset(), PERIOD, 1.0)
        self.edit()

    def edit(self, sure: bool = True, holders: dict[str, frozenset[str]] | None = None, **changes: Any) -> None:
        """A version of the file is seen."""
        self.now += 1
        self.file = self.file.but(**changes)
        self.belief = oracle.saw(self.belief, self.file, holders or {}, self.now, sure=sure)

    def gpu(self, index: int, **changes: Any) -> None:
        """A GPU is seen to be otherwise."""
        gpus = self.file.gpus or ()
        self.edit(gpus=tuple(gpu.but(**changes) if gpu.index == index else gpu for gpu in gpus))

    def show(self, index: int, *codes: str) -> None:
        """A GPU is seen to have exactly these faults."""
        self.gpu(index, faults=tuple(Fault(code, code) for code in codes))

    def happen(self, code: str, index: int = 0, sure: bool = True, holders: Any = None, **more: Any) -> None:
        """Something befalls a GPU."""
        incident = Incident(index, code, kernel_log_number=self.incidents, **more)
        self.incidents += 1
        self.edit(sure=sure, holders=holders, incidents=(*self.file.incidents, incident))

    def quiet(self, **shown: str) -> None:
        """A quiet moment, long after, in which kubelet is shown what it has to be, and this of what is in doubt."""
        self.now += 100
        view = {unit: shown.get(unit.replace("-", ""), self.verdicts()[unit]) for unit in ALL}
        self.belief = oracle.confirmed(self.belief, view, self.now)

    def verdicts(self) -> dict[str, str]:
        """What has to be shown."""
        return {unit: self.belief.verdict(unit, self.now) for unit in self.belief.units()}

    def ill(self) -> set[str]:
        """What must be shown unhealthy."""
        return {unit for unit, verdict in self.verdicts().items() if verdict == "Unhealthy"}


@pytest.fixture
def world() -> World:
    """All is well."""
    return World()


def test_a_fault_takes_its_scope_and_nothing_else(world: World) -> None:
    """The GPU with all its MIG devices, one of these alone, or the node with everything."""
    world.happen("xid-94", 2, gpu_instance=1, pids=(7,))
    world.edit(processes=(GpuProcess(2, 7),))
    world.show(0, "gpu-lost")
    assert world.ill() == {"GPU-0"}

    world.happen("xid-48", 2, gpu_instance=2)
    assert world.ill() == {"GPU-0", "MIG-1"}

    world.happen("xid-79", 2, gpu_instance=2)
    assert world.ill() == {"GPU-0", "MIG-0", "MIG-1"}

    world.edit(failures=(InjectedFailure("hang"),))
    assert world.ill() == ALL


def test_a_reset_ends_what_happened_before_it_alone(world: World) -> None:
    """The GPU was seen to go and come back; what happened within the same look may be of before or after."""
    world.happen("xid-79", 0)
    world.happen("xid-110", 1)
    world.quiet()
    world.edit(gpus=WELL.gpus and WELL.gpus[2:])
    world.edit(gpus=WELL.gpus)
    assert world.verdicts() == {**dict.fromkeys(ALL, "Healthy"), "GPU-1": "Unhealthy"}

    world.show(0, "recovery-reset")
    incident = Incident(0, "xid-79", kernel_log_number=world.incidents)
    world.file = world.file.but(incidents=(*world.file.incidents, incident))
    world.show(0)
    assert world.verdicts()["GPU-0"] == "either"


def test_a_process_has_to_end_unless_a_reset_has_ended_it(world: World) -> None:
    """A person's word does not end it."""
    world.edit(processes=(GpuProcess(0, 7), GpuProcess(1, 8)))
    for index, pid in ((0, 7), (1, 8)):
        world.happen("xid-79", index, pids=(pid,))
        world.belief = oracle.restored(world.belief, f"GPU-{index}", world.now)
    assert world.ill() == {"GPU-0", "GPU-1"}

    world.show(0, "recovery-reset")
    world.show(0)
    assert world.ill() == {"GPU-1"}

    world.edit(processes=())
    assert world.ill() == set()


def test_a_pod_has_to_end_that_held_the_device(world: World) -> None:
    """Where no process is named."""
    world.belief = oracle.ran(world.belief, frozenset({"pod"}), False, world.now)
    world.happen("xid-94", 0, holders={"GPU-0": frozenset({"pod"})})
    assert world.ill() == {"GPU-0"}

    world.belief = oracle.ran(world.belief, frozenset(), False, world.now)
    assert world.ill() == set()


def test_a_person_ends_what_only_a_person_or_a_reboot_can(world: World) -> None:
    """Once it is not shown any more."""
    world.show(0, "remap-failed")
    world.belief = oracle.restored(world.belief, "GPU-0", world.now)
    assert world.ill() == {"GPU-0"}

    world.show(0)
    assert world.ill() == {"GPU-0"}
    world.belief = oracle.restored(world.belief, "GPU-0", world.now)
    assert world.ill() == set()


def test_no_part_recovers_with_pending_rows(world: World) -> None:
    """One that was ill stays so; one that was well is served on; of one between the two the view tells."""
    world.happen("xid-94", 0, pids=(7,))
    world.edit(processes=(GpuProcess(0, 8),))
    world.quiet()
    world.happen("xid-32", 0, pids=(8,))
    world.show(0, "remap-pending")
    world.edit(processes=())
    assert world.ill() == {"GPU-0"}

    world.happen("xid-94", 1)
    world.show(1, "remap-pending")
    assert world.verdicts()["GPU-1"] == "either"
    world.quiet(GPU1="Unhealthy")
    assert world.ill() == {"GPU-0", "GPU-1"}


def test_what_cannot_be_seen_is_not_over(world: World) -> None:
    """While a GPU cannot be asked, or the driver does not answer, what was shown stands."""
    world.show(0, "node-missing")
    world.show(0, "gpu-hang")
    world.show(1, "node-missing")
    world.edit(failures=(InjectedFailure("crash"),))
    world.show(1)
    assert world.ill() == {"GPU-0", "GPU-1"}

    world.edit(failures=())
    world.show(0)
    assert world.ill() == set()


def test_an_incident_that_a_killed_agent_may_not_have_heard_of_is_in_doubt(world: World) -> None:
    """Unless the kernel log tells of it. The next quiet moment tells."""
    world.happen("xid-79", 0, sure=False, in_kernel_log=False)
    world.happen("xid-79", 1, sure=False)
    assert (world.verdicts()["GPU-0"], world.verdicts()["GPU-1"]) == ("either", "Unhealthy")

    world.quiet(GPU0="Unhealthy")
    assert world.ill() == {"GPU-0", "GPU-1"}


def test_each_relapse_doubles_the_time_that_a_recovery_may_take(world: World) -> None:
    """Two probe periods, twice as long for each time that the device fell ill."""
    due = []
    for _ in range(3):
        world.show(0, "gpu-lost")
        world.show(0)
        due.append(world.belief.due("GPU-0") - world.now)
        world.quiet()

    assert due == [4 * PERIOD, 8 * PERIOD, 16 * PERIOD]


def test_a_drain_is_kept_until_its_end(world: World) -> None:
    """Around it the device may be shown either way."""
    world.belief = oracle.drained(world.belief, "GPU-2", world.now + 10)
    assert world.ill() == {"MIG-0", "MIG-1"}
    world.now += 10
    assert world.verdicts()["MIG-0"] == "either"
    world.now += 10
    assert world.ill() == set()
