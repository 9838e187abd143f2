"""A node whose facts a test tells by hand, at times that it chooses: a machine that changes, and what becomes of it.

The clock is the test's. Between two facts it stops wherever `due` says that time alone changes something.
"""

from collections.abc import Iterable, Mapping

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.health.context import health_context
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.health.probes import requested_probe_times
from gpuplane.node.core.health.reasons import unavailable_reasons
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.step import next_due_time, step
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    Fact,
    FaultOccurred,
    MachineObserved,
    ProbeFinished,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.health import DeviceHealth
from gpuplane.node.model.machine import Fault, Gpu, Link, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from gpuplane.node.model.views import News
from tests.texts import as_shown

BOOT = "boot"
SETTINGS = Settings(mig_strategy="mixed", device_list_strategy=("envvar",))


def machine(gpus: int, parts: Iterable[int] = (), lanes: int = 0) -> Machine:
    """So many GPUs, of which `parts` are cut into two MIG devices; `lanes` NVLinks each."""
    return Machine(gpus=tuple(_gpu(index, index in parts, lanes) for index in range(gpus)))


def _gpu(index: int, cut: bool, lanes: int) -> Gpu:
    devices = (
        MigDevice(uuid=f"MIG-{index}-{n}", profile="3g.40gb", gpu_instance=n + 1, mig_index=n, memory_mib=40192)
        for n in range(2)
    )
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        model="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        pci=f"0000:0{index + 1}:00.0",
        mig=Mig(enabled=cut, devices=tuple(devices) if cut else ()),
        links=(Link(peer="nvswitch", nvlink_count=lanes),) if lanes else (),
        uncorrected_errors=0,
    )


def trouble(snapshot: Snapshot, gpu: Gpu) -> str:
    """What health or a person has against giving a GPU out, in words; "" for nothing."""
    return "; ".join(as_shown(each.text) for each in unavailable_reasons(snapshot, health_context(snapshot), gpu))


class World:
    """One node. `said` is the news so far, with its times, where somebody `listens`."""

    listens = True

    def __init__(self, machine: Machine, settings: Settings | None = SETTINGS, now: float = 1000.0) -> None:
        self.machine, self.now = machine, now
        self.snapshot = Snapshot(ledger=Ledger(boot_id=BOOT))
        self.processes: dict[int, tuple[int, ...]] = {}  # GPU index → pids
        self.looks, self.ticks = True, 0
        self.broken: Machine | None = None  # as it is while the driver fails
        self.said: list[tuple[float, News]] = []
        if settings is not None:
            self.apply(ConfigLoaded(settings))
        self.apply(AllocationsListed((), self.now))
        self.look()

    def apply(self, fact: Fact) -> None:
        """A fact, now."""
        before, self.snapshot = self.snapshot, step(self.snapshot, fact, self.now)
        if self.listens and self.snapshot is not before:
            self.said += [(self.now, each) for each in news(before, self.snapshot)]

    def look(self) -> None:
        """A look that shows the machine as it is; none where nobody `looks`."""
        if not self.looks:
            return
        self.apply(MachineObserved(self.machine))
        if self.machine.gpus is not None:
            self.apply(StatusChanged(DRIVER_PART, DriverStatus(state="ok")))
        else:
            self.apply(StatusChanged(DRIVER_PART, DriverStatus(state="failing", text=self.machine.faults[0].message)))

    def gpu(self, index: int) -> Gpu:
        """A GPU as it is."""
        return next(gpu for gpu in self.machine.gpus or () if gpu.index == index)

    def become(self, gpu: Gpu) -> None:
        """Another state of the GPU of that index; nobody has looked yet."""
        others = tuple(gpu if each.index == gpu.index else each for each in self.machine.gpus or ())
        self.machine = self.machine.but(gpus=others)

    def show(self, device: str, *codes: str) -> None:
        """A look at which a device ("0", or "0:1" for a MIG device) has exactly these faults."""
        told = (code.partition("=") for code in codes)
        faults = tuple(Fault(code=code, message=message or f"{code} is shown") for code, _, message in told)
        index, _, slot = device.partition(":")
        gpu = self.gpu(int(index))
        if slot:
            assert gpu.mig is not None
            devices = (d.but(faults=faults) if d.mig_index == int(slot) else d for d in gpu.mig.devices)
            self.become(gpu.but(mig=gpu.mig.but(devices=tuple(devices))))
        else:
            self.become(gpu.but(faults=faults))
        self.look()

    def fail(self, *codes: str) -> None:
        """A look that cannot count the GPUs, for a fault of the driver; none: it works again."""
        whole = self.broken or self.machine
        faults = tuple(Fault(code=code, message=f"{code} is shown") for code in codes)
        self.machine, self.broken = (Machine(faults=faults), whole) if faults else (whole, None)
        self.look()

    def happen(self, gpu: int, code: str, **more: object) -> None:
        """Something befalls a GPU. `ago`: seconds since then, where it is heard of late."""
        at = self.now - float(str(more.pop("ago", 0.0)))
        self.apply(FaultOccurred(code=code, gpu=f"GPU-{gpu}", message=f"{code} happened", at=at, **more))  # type: ignore[arg-type]

    def hold(self, **pods: str) -> None:
        """All that containers hold: pod → id."""
        self.hold_by({PodRef("ns", pod, container="c"): id for pod, id in pods.items()})

    def hold_by(self, holders: Mapping[PodRef, str]) -> None:
        """All that containers hold: container → id."""
        held = tuple(Allocation("nvidia.com/gpu", (id,), holder) for holder, id in holders.items())
        self.apply(AllocationsListed(held, self.now))

    def wait(self, seconds: float, *, answer: bool = False) -> None:
        """Time passes, with a tick wherever one is due. `answer`: probes that are wished for are answered."""
        until = self.now + seconds
        while True:
            if answer:
                self.answer()
            at = next_due_time(self.snapshot)
            if at is None or at > until:
                break
            self.now = max(self.now, at)
            self.apply(Tick())
            self.ticks += 1
            assert (again := next_due_time(self.snapshot)) is None or again > at, (
                f"time stands still at {at}: {self.snapshot}"
            )
        self.now = until

    def wished(self) -> dict[str, float]:
        """The probes that are wished for."""
        return dict(requested_probe_times(self.snapshot))

    def answer(self) -> None:
        """Answer the probes that are wished for, by the machine as it is."""
        for uuid, asked in self.wished().items():
            self.probe(uuid, asked)

    def probe(self, uuid: str, asked: float) -> None:
        """What a probe of a GPU finds now."""
        gpu = self.machine.gpu(uuid)
        if gpu is None:
            gpu = Gpu(index=-1, uuid=uuid, faults=(Fault(code="gpu-missing", message="there is no such GPU"),))
        self.apply(ProbeFinished(requested_at=asked, gpu=gpu, pids=self.processes.get(gpu.index, ())))

    def diagnosis(self, device: str) -> DeviceHealth:
        """How a device stands, by its index, or "node"."""
        found = (
            each for each in health_without_parents(self.snapshot) if device in (each.index, each.device or "node")
        )
        return next(found, DeviceHealth(device="", index="", state="healthy"))

    def state(self, device: str) -> str:
        """Its state and the code that decides, "unhealthy gpu-lost"."""
        found = self.diagnosis(device)
        return f"{found.state} {found.code}".strip()

    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Device → (state, code), of those that are not healthy."""
        return {d.device: (d.state, d.code) for d in health_without_parents(self.snapshot) if d.state != "healthy"}

    def ill(self) -> set[str]:
        """The ids that kubelet is told are unhealthy."""
        return {d.id for resource in offer(self.snapshot).resources for d in resource.devices if d.unavailable_reason}
