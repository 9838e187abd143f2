"""The plan: what is done to a node, burst after burst, as a function of a seed and a machine alone.

It never looks at what comes of it. So it keeps the machine file by itself, and what else it has to know so that each
step makes sense: a fault that is taken away was there, and no incident befalls a GPU that has gone.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

import msgspec

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.model.machine import Fault, Gpu, GpuProcess, Incident, InjectedFailure, MachineFile, MigDevice
from tests.chaos.steps import (
    Aside,
    Burst,
    Death,
    Drain,
    Edit,
    End,
    KubeletRestart,
    LostStreams,
    Nothing,
    Restore,
    Run,
    Step,
    Turn,
)

REMEMBERED = 30
"""Incidents that stay in the machine file, as a kernel log keeps its newest."""
MOST = 6
"""Things that may be wrong at the same time before one has to end."""
STORMY = 25
"""Bursts in a row in which the agent may be killed."""
CALM = (40, 80, 160, 320)
"""Bursts after these in which it lives on, so that its memory can be watched; the last number holds on."""
UNTOLD = frozenset({"not-looked", "gpu-absent", "gpu-unlisted"})
"""The faults of the catalogue that only the agent itself can find."""

SHOWN = {code: each for code, each in CATALOGUE.items() if each.detected_by == "look" and code not in UNTOLD}
OF_NODE = tuple(code for code, each in SHOWN.items() if each.scope == "node")
OF_GPU = tuple(code for code, each in SHOWN.items() if each.scope != "node")
OF_INSTANCE = tuple(code for code, each in SHOWN.items() if each.scope == "instance")
HAPPENS = (
    *(code for code, each in CATALOGUE.items() if each.detected_by == "event"),
    "xid-999",
)  # and one without a row
GPU_ERRORS = ("GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN")
DRIVER_ERRORS = ("UNKNOWN", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "NO_PERMISSION", "LIBRARY_NOT_FOUND")


def bursts(machine: MachineFile, seed: int) -> Iterator[Burst]:
    """What befalls the machine, without end."""
    plan = Plan(machine, random.Random(seed))
    for calm in chain(CALM, repeat(CALM[-1])):
        for number in range(STORMY + calm):
            yield plan.burst(deadly=number < STORMY)


def prepared(machine: MachineFile) -> MachineFile:
    """The machine as the play begins: well, with memory that counts its errors."""
    gpus = tuple(gpu.but(uncorrected_errors=0, faults=()) for gpu in machine.gpus or ())
    return machine.but(gpus=gpus, faults=(), failures=(), incidents=(), processes=())


def codes(file: MachineFile) -> set[str]:
    """The codes of all that a machine file has on anything."""
    found = {fault.code for fault in file.faults} | {incident.code for incident in file.incidents}
    for gpu in file.gpus or ():
        faults = [*gpu.faults, *(fault for device in gpu.mig_devices for fault in device.faults)]
        found |= {fault.code for fault in faults}
    return found


class Plan:
    """What the plan has to know."""

    def __init__(self, machine: MachineFile, chance: random.Random) -> None:
        self.chance = chance
        self.file = prepared(machine)
        self.whole = self.file.gpus or ()
        self.number = self.pid = 0
        self.spoiled = self.unseen = False
        self.unjudged: set[int] = set()  # GPUs with incidents that an agent may not have been able to judge yet
        self.recent: deque[tuple[int, str]] = deque(maxlen=16)
        self.fallen: dict[str, int] = {}  # how often each device fell ill since it was restored, about
        self.drained: list[str] = []

    def burst(self, deadly: bool) -> Burst:
        """A few turns."""
        turns = [self._turn(deadly) for _ in range(self.chance.randint(1, 5))]
        if self.spoiled:
            turns.append(Turn(self._edit(1)))
        weary = [device for device, times in self.fallen.items() if times > 2 and self._there(device)]
        if weary:
            turns.append(Turn(self._restore(self.chance.choice(weary))))
        return tuple(turns)

    def _turn(self, deadly: bool) -> Turn:
        pause = self.chance.choice((0.0, 0.0, self.chance.random()))
        step = self._step(deadly)
        return Turn(step, self._asides(step), pause)

    def _step(self, deadly: bool) -> Step:
        roll = self.chance.random()
        if deadly and roll < 0.15:
            return self._death()
        if roll < 0.18 and not (self.spoiled or self.unseen):
            return self._drain()
        if roll < 0.24 and not (self.spoiled or self.unseen) and (device := self._to_restore()):
            return self._restore(device)
        if roll < 0.34:
            return End(self.chance.random())
        if roll < 0.40:
            return Nothing()
        if roll < 0.44:
            self.spoiled = True
            return Edit(("bad edit",), "the machine file becomes invalid", None)
        return self._edit(self.chance.choice((1, 1, 1, 2, 3)))

    def _asides(self, step: Step) -> tuple[Aside, ...]:
        found: list[Aside] = []
        if self.chance.random() < (0.9 if isinstance(step, Nothing) else 0.25) and not _counts_holders(step):
            found.append(Run(self.chance.randint(1, 2), self.chance.random()))
        roll = self.chance.random()
        if roll < 0.03:
            found.append(KubeletRestart())
        elif roll < 0.06:
            found.append(LostStreams())
        return tuple(found)

    def _death(self) -> Death:
        amid = self.chance.random() < 0.5
        before = self._edit(1, pids=True) if amid else None
        during = () if amid else tuple(self._edit(1, pids=True) for _ in range(self.chance.randint(0, 2)))
        self.unseen = self.spoiled or self._fails()
        return Death(before, self.chance.random() * 0.4, during)

    def _drain(self) -> Drain:
        device = self.chance.choice(self._devices())
        self.drained.append(device)
        return Drain(device, self.chance.choice((None, 2.0 + 4 * self.chance.random())))

    def _restore(self, device: str) -> Restore:
        self.fallen.pop(device, None)
        self.drained = [each for each in self.drained if each != device]
        return Restore(device)

    def _to_restore(self) -> str:
        likely = [device for device in self.drained if self._there(device)]
        return self.chance.choice(likely or self._devices())

    def _devices(self) -> list[str]:
        parts = [device.uuid for gpu in self._gpus() for device in gpu.mig_devices]
        return [*(gpu.uuid for gpu in self._gpus()), *parts]

    def _there(self, device: str) -> bool:
        return device in self._devices() and not (self.spoiled or self.unseen)

    def _gpus(self) -> Sequence[Gpu]:
        return self.file.gpus or ()

    def _fails(self) -> bool:
        return any(failure.gpu is None for failure in self.file.failures)

    # the machine file

    def _edit(self, changes: int, pids: bool = False) -> Edit:
        """One edit of so many changes. `pids`: what happens names the processes that it befell, if it befalls any."""
        said: list[str] = []
        kinds: list[str] = []
        for _ in range(changes):
            kind, what = self._change(pids)
            kinds.append(kind)
            said.append(what)
        self.spoiled = False
        if not self._fails():
            self.unseen = False
            self.unjudged.clear()
        return Edit(tuple(kinds), "; ".join(said), self.file)

    def _change(self, pids: bool) -> tuple[str, str]:
        wrong = len(self._standing())
        if wrong and (wrong >= MOST or self.chance.random() < 0.4):
            return self.chance.choice(self._standing())()
        if self.file.faults and self.chance.random() < 0.7:
            return self._clear_node(self.file.faults[0])
        if self._fails() and self.chance.random() < 0.7:
            return self._mend(next(each for each in self.file.failures if each.gpu is None))
        happens: tuple[tuple[float, Callable[[], tuple[str, str]]], ...] = (
            (5, self._fault_of_gpu),
            (2, self._fault_of_instance),
            (0.7, self._fault_of_node),
            (6, lambda: self._happen(pids)),
            (2, self._fail_gpu),
            (0.7, self._fail_driver),
            (1, self._grow if not pids else self._fail_gpu),
            (1.5, self._vanish),
        )
        (act,) = self.chance.choices([each for _, each in happens], [weight for weight, _ in happens])
        return act()

    def _standing(self) -> list[Callable[[], tuple[str, str]]]:
        """What could end each thing that is wrong."""
        found: list[Callable[[], tuple[str, str]]] = []
        found += [lambda fault=fault: self._clear_node(fault) for fault in self.file.faults]  # type: ignore[misc]
        for gpu in self._gpus():
            found += [lambda gpu=gpu, fault=fault: self._clear(gpu, fault) for fault in gpu.faults]  # type: ignore[misc]
            for device in gpu.mig_devices:
                found += [
                    lambda gpu=gpu, device=device: self._clear_instance(gpu, device)  # type: ignore[misc]
                    for _ in device.faults
                ]
        found += [lambda failure=failure: self._mend(failure) for failure in self.file.failures]  # type: ignore[misc]
        found += [lambda process=process: self._finish(process) for process in self.file.processes]  # type: ignore[misc]
        there = {gpu.uuid for gpu in self._gpus()}
        found += [lambda gpu=gpu: self._return(gpu) for gpu in self.whole if gpu.uuid not in there]  # type: ignore[misc]
        return found

    def _victim(self) -> Gpu:
        return self.chance.choice(self._gpus())

    def _fell(self, device: str) -> None:
        self.fallen[device] = self.fallen.get(device, 0) + 1

    def _put(self, gpu: Gpu) -> None:
        self.file = self.file.but(gpus=tuple(gpu if each.index == gpu.index else each for each in self._gpus()))

    def _fault_of_gpu(self) -> tuple[str, str]:
        gpu, code = self._victim(), self.chance.choice(OF_GPU)
        if all(fault.code != code for fault in gpu.faults):
            self._fell(gpu.uuid)
            self._put(gpu.but(faults=(*gpu.faults, _fault(code))))
        return "fault shown", f"GPU {gpu.index} shows {code}"

    def _fault_of_instance(self) -> tuple[str, str]:
        split = [gpu for gpu in self._gpus() if gpu.mig_devices]
        if not split:
            return self._fault_of_gpu()
        gpu, code = self.chance.choice(split), self.chance.choice(OF_INSTANCE)
        assert gpu.mig is not None
        device = self.chance.choice(gpu.mig.devices)
        self._fell(device.uuid)
        self._put_instance(gpu, device.but(faults=(_fault(code),)))
        return "instance's fault shown", f"MIG device {gpu.index}:{device.mig_index} shows {code}"

    def _put_instance(self, gpu: Gpu, device: MigDevice) -> None:
        assert gpu.mig is not None
        devices = tuple(device if each.uuid == device.uuid else each for each in gpu.mig.devices)
        self._put(gpu.but(mig=gpu.mig.but(devices=devices)))

    def _fault_of_node(self) -> tuple[str, str]:
        code = self.chance.choice(OF_NODE)
        self.file = self.file.but(faults=(_fault(code),))
        return "node's fault shown", f"the node shows {code}"

    def _clear_node(self, fault: Fault) -> tuple[str, str]:
        self.file = self.file.but(faults=tuple(each for each in self.file.faults if each != fault))
        return "fault over", f"the node no longer shows {fault.code}"

    def _clear(self, gpu: Gpu, fault: Fault) -> tuple[str, str]:
        self._put(gpu.but(faults=tuple(each for each in gpu.faults if each != fault)))
        return "fault over", f"GPU {gpu.index} no longer shows {fault.code}"

    def _clear_instance(self, gpu: Gpu, device: MigDevice) -> tuple[str, str]:
        self._put_instance(gpu, device.but(faults=()))
        return "fault over", f"MIG device {gpu.index}:{device.mig_index} no longer shows a fault"

    def _happen(self, pids: bool) -> tuple[str, str]:
        fresh = [(gpu, code) for gpu in self._gpus() for code in HAPPENS if (gpu.index, code) not in self.recent]
        gpu, code = self.chance.choice(fresh)
        self.recent.append((gpu.index, code))
        judged, devices = CATALOGUE.get(code), gpu.mig_devices if gpu.mig_enabled else ()
        instance = self.chance.choice(devices) if devices and self.chance.random() < 0.7 else None
        small = judged is None or judged.scope in ("process", "instance")
        if judged is None or judged.severity == "unhealthy":
            self._fell(instance.uuid if instance and small else gpu.uuid)
        self.pid += 1
        named = pids or self.chance.random() < 0.6
        incident = Incident(
            gpu=gpu.index,
            code=code,
            message=f"chaos {self.number}",
            gpu_instance=instance.gpu_instance if instance else None,
            compute_instance=instance.compute_instance if instance and self.chance.random() < 0.5 else None,
            pids=(self.pid,) if named else (),
            in_kernel_log=self.chance.random() < 0.6,
            kernel_log_number=self.number,
        )
        self.number += 1
        if self.unseen or self._fails():
            self.unjudged.add(gpu.index)
        self.file = self.file.but(incidents=(*self.file.incidents, incident)[-REMEMBERED:])
        if incident.pids and self.chance.random() < 0.6:
            self.file = self.file.but(processes=(*self.file.processes, GpuProcess(gpu.index, self.pid)))
        where = f" in instance {incident.gpu_instance}/{incident.compute_instance}" if instance else ""
        log = "logged" if incident.in_kernel_log else "not logged"
        return f"incident, {log}", f"{code} on GPU {gpu.index}{where}, pids {list(incident.pids)}, {log}"

    def _finish(self, process: GpuProcess) -> tuple[str, str]:
        self.file = self.file.but(processes=tuple(each for each in self.file.processes if each != process))
        return "process ended", f"process {process.pid} ends on GPU {process.gpu}"

    def _fail_gpu(self) -> tuple[str, str]:
        gpu, effect = self._victim(), self.chance.choice(("error", "hang", "crash"))
        others = tuple(failure for failure in self.file.failures if failure.gpu != gpu.index)
        failure = _failure(effect, gpu.index, self.chance.choice(GPU_ERRORS))
        self._fell(gpu.uuid)
        self.file = self.file.but(failures=(*others, failure))
        return f"driver fails for a GPU: {effect}", f"the driver fails for GPU {gpu.index}: {effect} {failure.error}"

    def _fail_driver(self) -> tuple[str, str]:
        effect = self.chance.choice(("error", "hang", "crash"))
        failure = _failure(effect, None, self.chance.choice(DRIVER_ERRORS))
        others = tuple(each for each in self.file.failures if each.gpu is not None)
        self.file = self.file.but(failures=(*others, failure))
        return f"driver fails: {effect}", f"the whole driver fails: {effect} {failure.error}"

    def _mend(self, failure: InjectedFailure) -> tuple[str, str]:
        self.file = self.file.but(failures=tuple(each for each in self.file.failures if each != failure))
        whose = "the whole driver" if failure.gpu is None else f"the driver for GPU {failure.gpu}"
        return "driver works again", f"{whose} works again, no {failure.effect}"

    def _grow(self) -> tuple[str, str]:
        gpu = self._victim()
        if gpu.uncorrected_errors and self.chance.random() < 0.3:
            self._put(gpu.but(uncorrected_errors=0))
            return "error count reset", f"GPU {gpu.index} counts its memory errors from zero again"
        more = self.chance.randint(1, 5)
        self._fell(gpu.uuid)
        self._put(gpu.but(uncorrected_errors=(gpu.uncorrected_errors or 0) + more))
        return "errors counted", f"GPU {gpu.index} counts {more} more memory errors"

    def _vanish(self) -> tuple[str, str]:
        """A GPU goes, with all that is said of it. One to which another one's NVLinks lead stays."""
        linked = {link.peer for gpu in self._gpus() for link in gpu.links}
        able = [gpu for gpu in self._gpus() if gpu.pci not in linked and gpu.index not in self.unjudged]
        if self._fails() or self.unseen or len(self._gpus()) < 2 or not able:
            return self._fault_of_gpu()
        gpu = self.chance.choice(able)
        self.file = self.file.but(
            gpus=tuple(each for each in self._gpus() if each.index != gpu.index),
            failures=tuple(each for each in self.file.failures if each.gpu != gpu.index),
            incidents=tuple(each for each in self.file.incidents if each.gpu != gpu.index),
            processes=tuple(each for each in self.file.processes if each.gpu != gpu.index),
        )
        return "GPU gone", f"GPU {gpu.index} has gone"

    def _return(self, gpu: Gpu) -> tuple[str, str]:
        self.file = self.file.but(gpus=tuple(sorted((*self._gpus(), gpu), key=lambda each: each.index)))
        return "GPU back", f"GPU {gpu.index} is back"


def _fault(code: str) -> Fault:
    return Fault(code=code, message=f"{code}, injected by chaos")


def _failure(effect: str, gpu: int | None, error: str) -> InjectedFailure:
    """Of every call of the driver's library."""
    told = {"error": error} if effect == "error" else {}
    return msgspec.convert({"effect": effect, "gpu": gpu, **told}, InjectedFailure)


def _counts_holders(step: Step) -> bool:
    """Whether it matters who holds a device at the moment of this step."""
    edits = (step,) if isinstance(step, Edit) else (step.before, *step.during) if isinstance(step, Death) else ()
    kinds = {kind for edit in edits if edit is not None for kind in edit.kinds}
    return any(kind.startswith(("incident", "errors")) for kind in kinds)
