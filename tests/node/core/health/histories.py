"""Random fault histories: what befalls a machine of three GPUs, the first of them cut into two MIG devices.

A history is made beforehand, and is data: the same one can be lived through again under other circumstances.
"""

import random
from typing import Literal

from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.health.absence import ABSENT_CODE, UNLISTED_CODE
from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.model.facts import AllocationsListed, DrainRequested, DriverReleaseRequested, FaultOccurred
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault, Link, Machine, MigDevice
from gpuplane.node.model.snapshot import Allocation, DriverRelease
from tests.node.core.health.world import machine

WHOLE = machine(3, parts=[0], lanes=4)
OF_UNLISTED = (ABSENT_CODE, UNLISTED_CODE)  # which no driver shows of a GPU that it lists
SHOWN = tuple(
    code
    for code, entry in CATALOGUE.items()
    if entry.detected_by == "look" and entry.scope != "node" and code not in OF_UNLISTED
)
OF_DRIVER = tuple(code for code, entry in CATALOGUE.items() if entry.scope == "node" and code != "not-looked")
EVENTS = (*(code for code, entry in CATALOGUE.items() if entry.detected_by == "event"), "xid-999")
RELEASE = 30.0
GAPS = (0.3, 1.5, 4.0, 6.0, 20.0, 70.0)


class Moment(Value):
    """One thing that happens, `after` so many seconds.

    `gpus`: the GPUs that it concerns. A `change` is of the machine: `machine` as it is from then on; with `mends` a
    reset may be what a look shows of it. A `word` is a person's, a `hold` is kubelet's.
    """

    kind: Literal["change", "event", "word", "hold"]
    after: float
    gpus: frozenset[int]
    machine: Machine = Machine()
    processes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    mends: bool = False
    fact: FaultOccurred | DrainRequested | AllocationsListed | DriverReleaseRequested | None = None


class Maker:
    """Makes histories; `seed` decides all."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.gpus = {gpu.index: gpu for gpu in WHOLE.gpus or ()}
        self.away = set[int]()
        self.taken_out = set[int]()  # those of them of which a person said so
        self.failing: tuple[Fault, ...] = ()
        self.processes: dict[int, tuple[int, ...]] = {}
        self.logged = 0
        self.time = self.taken = 0.0  # when the driver is taken up again

    def history(self, length: int, gpus: tuple[int, ...] = (0, 1, 2)) -> tuple[Moment, ...]:
        """So many moments, about these GPUs; in the end the driver works, so that the verdicts are about devices."""
        moments = [self.moment(self.random.choice(gpus)) for _ in range(length)]
        if self.failing:
            moments.append(self.driver(0).but(after=5.0))
        return tuple(moments)

    def moment(self, index: int) -> Moment:
        """Something happens to one GPU, or to all."""
        weights = {self.change: 9, self.event: 9, self.word: 2, self.hold: 2, self.driver: 1}
        after = self.random.choice(GAPS)
        self.time += after
        [happens] = self.random.choices(tuple(weights), tuple(weights.values()))
        return happens(index).but(after=after)

    def machine(self) -> Machine:
        """As it is now."""
        if self.failing:
            return Machine(faults=self.failing)
        return Machine(gpus=tuple(gpu for index, gpu in self.gpus.items() if index not in self.away))

    def _changed(self, gpus: frozenset[int], mends: bool) -> Moment:
        processes = tuple(sorted(self.processes.items()))
        return Moment("change", 0.0, gpus, machine=self.machine(), processes=processes, mends=mends)

    def change(self, index: int) -> Moment:
        """A GPU falls ill, is mended, goes, returns; its count grows, or begins anew; links; processes."""
        changes = (self._fault, self._fault, self._part, self._count, self._links, self._goes, self._computes)
        return self._changed(frozenset((index,)), self.random.choice(changes)(index))

    def _fault(self, index: int) -> bool:
        gpu = self.gpus[index]
        if gpu.faults and self.random.random() < 0.6:
            self.gpus[index] = gpu.but(faults=gpu.faults[1:])
            return True
        code = self.random.choice(SHOWN)
        others = tuple(fault for fault in gpu.faults if fault.code != code)
        self.gpus[index] = gpu.but(faults=(*others, Fault(code=code, message=f"{code} is shown")))
        return bool(gpu.faults)  # a blind look that is no longer blind may show as mended what it hid

    def _part(self, index: int) -> bool:
        gpu = self.gpus[index]
        if gpu.mig is None or not gpu.mig.devices:
            return self._fault(index)
        n = self.random.randrange(2)
        devices = (self._ill(d) if d.mig_index == n else d for d in gpu.mig.devices)
        self.gpus[index] = gpu.but(mig=gpu.mig.but(devices=tuple(devices)))
        return True

    def _ill(self, device: MigDevice) -> MigDevice:
        code = self.random.choice(("node-missing", "query-failed"))
        return device.but(faults=() if device.faults else (Fault(code=code, message=f"{code} is shown"),))

    def _count(self, index: int) -> bool:
        gpu = self.gpus[index]
        anew = bool(gpu.uncorrected_errors) and self.random.random() < 0.5
        self.gpus[index] = gpu.but(uncorrected_errors=0 if anew else (gpu.uncorrected_errors or 0) + 1)
        return anew

    def _links(self, index: int) -> bool:
        gpu = self.gpus[index]
        if gpu.links and not gpu.mig_enabled:
            fewer = gpu.links[0].nvlink_count == 4
            self.gpus[index] = gpu.but(links=(Link(peer="nvswitch", nvlink_count=3 if fewer else 4),))
        return True

    def _goes(self, index: int) -> bool:
        self.away ^= {index}
        self.taken_out.discard(index)
        return True

    def _computes(self, index: int) -> bool:
        self.processes[index] = self.random.choice(((), (7,), (7, 8)))
        return True

    def driver(self, index: int) -> Moment:
        """The driver as a whole fails, or works again."""
        code = self.random.choice(OF_DRIVER)
        self.failing = () if self.failing else (Fault(code=code, message=f"{code} is shown"),)
        return self._changed(frozenset(self.gpus), mends=True)

    def event(self, index: int) -> Moment:
        """Something befalls a GPU that is in the machine, or a MIG device of it. Four of five are in the kernel log."""
        if index in self.taken_out:
            return self.change(index)
        logged = self.random.random() < 0.8
        self.logged += logged
        gpu = self.gpus[index]
        named = self.random.random() < 0.3
        fact = FaultOccurred(
            code=self.random.choice(EVENTS),
            gpu=self.random.choice((gpu.uuid, gpu.pci)),
            message="it happened",
            at=0.0,
            gpu_instance=self.random.choice((None, 1, 2)) if self._parted(index) else None,
            pids=(self.random.choice((7, 8, 9)),) if named else (),
            kernel_log_number=self.logged if logged else None,
        )
        return Moment("event", 0.0, frozenset((index,)), fact=fact)

    def _parted(self, index: int) -> bool:
        """Whether an event may name an instance. Of a GPU that is not counted none does: its instances went with it,
        and an agent that reads of it when the GPU is back cannot know that they were others."""
        mig = self.gpus[index].mig
        return mig is not None and mig.enabled and index not in self.away

    def word(self, index: int) -> Moment:
        """A person drains a device or restores it, or lets go of the driver for a while.

        Who takes a GPU out sees that it is not listed; what the kernel log said of it has been read then.
        """
        if index in self.away and (self.failing or self.time < self.taken + 1):
            return self.event(index)
        gpu = self.gpus[index]
        device = self.random.choice((gpu.uuid, *(device.uuid for device in gpu.mig_devices)))
        match self.random.randrange(4):
            case 0:
                fact: DrainRequested | DriverReleaseRequested = DrainRequested(
                    device, Drain(reason="a new fan", until=self.random.choice((None, 1.0)))
                )
            case 1:
                fact = DriverReleaseRequested(DriverRelease(until=0.0, reason="maintenance"))
                self.taken = self.time + RELEASE
            case _:
                fact = DrainRequested(device, None)
                self.taken_out |= {index} & self.away
        return Moment("word", 0.0, frozenset((index,)), fact=fact)

    def hold(self, index: int) -> Moment:
        """Pods come and go, while GPUs can be counted: who held one at an XID that is read later is not known then."""
        if self.failing or self.time < self.taken + 1:
            return self.event(index)
        ids = ("MIG-0-0", "MIG-0-1", "GPU-1", "GPU-2")
        held = (
            Allocation("nvidia.com/gpu", (id,), PodRef("ns", self.random.choice("abc"), container="c"))
            for id in ids
            if self.random.random() < 0.5
        )
        return Moment("hold", 0.0, frozenset(self.gpus), fact=AllocationsListed(tuple(held), requested_at=0.0))
