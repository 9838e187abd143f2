"""The oracle: what kubelet has to be shown, by few and simple rules of its own.

It is told what the agent has been shown: each version of the machine file that a look has taken, each drain, each end
of a pod. From the fault catalogue it takes data (whom a fault befalls, how bad it is, what ends it), and asks nobody
what was decided. What it cannot know it says: a device in doubt may be shown either way, until the next quiet moment
shows which.

A part (the node, a GPU, a MIG device) is
    ill       something unhealthy is on it
    stuck     nothing is any more, but no probe can find it well: it stays unhealthy
    mending   nothing is any more: it comes back by itself
    doubtful  one of these, or well
    well
and a device is well where the node, its GPU and it itself are, and nobody has drained them.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from gpuplane.core.health.catalogue import BLIND, CATALOGUE, PENDING, RENEWING, UNASKED, UNKNOWN, UNLISTED
from gpuplane.model.health import Entry
from gpuplane.model.machine import Failure, Gpu, Incident, MachineFile
from gpuplane.model.value import Value

State = Literal["well", "ill", "stuck", "mending", "doubtful"]
Verdict = Literal["Healthy", "Unhealthy", "either"]

NODE = ""
"""The part that is the node itself."""
MOST_FLAPS = 7
LONGEST_PAUSE = 60.0
HEARD = 12.0
"""Seconds within which the agent hears of a pod's end: it asks kubelet every ten."""
HEARD_LATE = 75.0
"""The same after kubelet's restart: what it does not list counts as held for a while."""
CLOSE = 1.0
"""Seconds around a drain's end within which it may be over or not."""

GPU_ERRORS = {"GPU_IS_LOST": "gpu-lost", "RESET_REQUIRED": "reset-required"}
DRIVER_ERRORS = {
    "LIBRARY_NOT_FOUND": "driver-missing",
    "DRIVER_NOT_LOADED": "driver-not-loaded",
    "LIB_RM_VERSION_MISMATCH": "driver-mismatch",
    "NO_PERMISSION": "driver-denied",
}


def entry(code: str) -> Entry:
    """The catalogue's word about a fault."""
    return CATALOGUE.get(code, UNLISTED if code.startswith("xid-") else UNKNOWN)


class Cause(Value):
    """Something unhealthy that is on a part: an event, or what a look shows, or has `shown` and a person has to end.

    `sure` False: the agent was killed about then, and may never have heard of it. `pids`, `pods`: whose end ends it.
    """

    code: str
    ends: str
    event: bool = False
    shown: bool = True
    sure: bool = True
    pids: tuple[int, ...] = ()
    pods: tuple[str, ...] = ()


class Part(Value):
    """How one part stands. `since`: when it ceased to be well; `eased`: when it began to mend; CLOCK_MONOTONIC."""

    state: State = "well"
    causes: tuple[Cause, ...] = ()
    pending: bool = False  # a look shows what no part is well again with
    confirmed: bool = False  # it has surely been ill: kubelet was shown it, or nothing had to be waited for
    tried: bool = False  # probes may have failed, and the next one may be far
    falls: int = 0  # times that it fell ill since it was last taken for mended
    shown: frozenset[str] = frozenset()  # all that looks show of it, as far as they can tell
    errors: int = 0  # uncorrectable memory errors, as a look that could tell counted them last
    since: float = 0.0
    eased: float = 0.0
    drained: bool = False
    until: float | None = None  # of the drain


class Belief(Value):
    """What the oracle knows. `file` is the version that a look showed last; `counted` whether that told of the GPUs.

    A GPU that has gone keeps its last description in `gone`. `parts`: UUID, or NODE → how it stands.
    """

    file: MachineFile
    left: frozenset[str]  # MIG devices that are not offered
    period: float  # of recovery probes
    patience: float  # with a fault, at the most
    counted: bool = False
    driver: str = ""  # the fault for which the driver does not answer
    last: int = -1  # the number of the last incident
    gone: Mapping[str, Gpu] = {}
    reset: frozenset[str] = frozenset()  # GPUs that had a reset by the last look: before or after what happened then?
    parts: Mapping[str, Part] = {}
    pods: frozenset[str] = frozenset()
    late: float = 0.0  # until when the agent may believe that a pod runs which has ended

    def part(self, key: str) -> Part:
        """How a part stands."""
        return self.parts.get(key, Part())

    def units(self) -> dict[str, tuple[str, ...]]:
        """What kubelet may give out: id without its share → the parts on which that depends."""
        found: dict[str, tuple[str, ...]] = {}
        for gpu in self.file.gpus or ():
            if gpu.mig is not None and gpu.mig.enabled:
                devices = (device.uuid for device in gpu.mig.devices if device.uuid not in self.left)
                found |= {device: (NODE, gpu.uuid, device) for device in devices}
            else:
                found[gpu.uuid] = (NODE, gpu.uuid)
        return found

    def told(self, unit: str) -> str:
        """How its parts stand, for people."""
        parts = {key or "node": self.part(key) for key in self.units().get(unit, ())}
        return ", ".join(
            f"{key} is {part.state}{' and drained' * part.drained}{''.join(f' {each.code}' for each in part.causes)}"
            for key, part in parts.items()
        )

    def verdict(self, unit: str, now: float) -> Verdict:
        """What kubelet has to be shown of it, once all is quiet."""
        if not self.counted:
            return "Unhealthy"
        parts = [self.part(key) for key in self.units()[unit]]
        if any(part.state in ("ill", "stuck") or _drain(part, now) == "Unhealthy" for part in parts):
            return "Unhealthy"
        doubtful = any(part.state == "doubtful" or _drain(part, now) == "either" for part in parts)
        return "either" if doubtful else "Healthy"

    def touched(self, unit: str) -> bool:
        """Whether anything has to do with it, so that kubelet may be shown it unhealthy at this moment."""
        parts = [self.part(key) for key in self.units().get(unit, ())]
        return not self.counted or not parts or any(part.state != "well" or part.drained for part in parts)

    def surely_ill(self, unit: str, now: float) -> bool:
        """Whether kubelet may not be shown it healthy."""
        parts = [self.part(key) for key in self.units().get(unit, ())]
        standing = any(part.state in ("ill", "stuck") and part.confirmed for part in parts)
        return self.counted and (standing or any(_drain(part, now) == "Unhealthy" for part in parts))

    def due(self, unit: str) -> float:
        """By when kubelet has to be shown it as it is: what falls ill after its patience, what is over after two probe
        periods, each twice as long for every relapse, or when the pause after a failed probe is over."""
        return max(self._due(self.part(key)) for key in self.units()[unit])

    def _due(self, part: Part) -> float:
        if part.state in ("ill", "stuck", "doubtful"):
            patience = max((entry(each.code).patience for each in part.causes), default=0.0)
            return part.since + min(patience, self.patience)
        pause = min(LONGEST_PAUSE, part.eased - part.since + self.period) if part.tried else 0.0
        return part.eased + max(self.period * (2 << min(part.falls, MOST_FLAPS)), pause)


def _drain(part: Part, now: float) -> Verdict:
    if not part.drained:
        return "Healthy"
    if part.until is None or now < part.until - CLOSE:
        return "Unhealthy"
    return "either" if now < part.until + CLOSE else "Healthy"


def started(belief: Belief) -> Belief:
    """A new agent has looked at nothing yet."""
    return belief.but(counted=False)


def saw(
    belief: Belief, file: MachineFile, holders: Mapping[str, frozenset[str]], now: float, sure: bool = True
) -> Belief:
    """After a look has shown a version of the machine file. `holders`: which pods hold a unit.

    `sure` False: the agent was killed meanwhile, and may not have heard of what the kernel log does not tell again.
    """
    before, driver = belief, _driver(file)
    codes = {*(fault.code for fault in file.faults), *([driver] if driver else [])}
    loaded = "driver-not-loaded" in {each.code for each in before.part(NODE).causes} - codes
    node = _node(before.part(NODE), codes, now)
    parts = {key: _reset(part) if loaded else part for key, part in before.parts.items()}
    reset = frozenset(before.parts) if loaded else frozenset()
    belief = before.but(driver=driver, parts={**parts, NODE: node}, reset=reset)
    unseen = file.but(gpus=before.file.gpus)  # not seen is not gone
    belief = belief.but(file=unseen) if driver else _counted(belief, file, holders, now)
    for incident in file.incidents:
        if incident.number is not None and incident.number > belief.last:
            belief = _befallen(belief, incident, holders, now, incident.logged or (sure and belief.counted))
            belief = belief.but(last=incident.number)
    return settled(belief, now)


def _driver(file: MachineFile) -> str:
    """The fault for which the driver does not answer; "" where it does."""
    for failure in file.failures:
        if failure.gpu is None:
            if failure.effect == "error":
                return DRIVER_ERRORS.get(failure.error, "driver-failed")
            return f"driver-{failure.effect}"
    return ""


def _node(part: Part, codes: Iterable[str], now: float) -> Part:
    """The node is ill for as long as a look shows that, and needs no probe."""
    causes = tuple(Cause(code, entry(code).ends) for code in sorted(codes) if _unhealthy(code))
    if causes:
        return part.but(causes=causes, state="ill", since=part.since if part.state == "ill" else now)
    return part.but(causes=(), state="well" if part.state == "well" else "mending", since=now, eased=now)


def _unhealthy(code: str) -> bool:
    return entry(code).severity == "unhealthy"


def _reset(part: Part) -> Part:
    """What happened before a reset of the GPU, and needed one, is over, but for the processes that it befell."""
    return part.but(causes=tuple(_had(each) if each.event and each.ends == "reset" else each for each in part.causes))


def _had(cause: Cause) -> Cause:
    """What ends it was had: now only the processes that it befell have to have ended."""
    return cause.but(ends="process", pods=())


def _counted(belief: Belief, file: MachineFile, holders: Mapping[str, frozenset[str]], now: float) -> Belief:
    """After a look that counted the GPUs."""
    old, there = {gpu.uuid: gpu for gpu in belief.file.gpus or ()}, {gpu.uuid for gpu in file.gpus or ()}
    resets, gone, parts = (
        set(belief.reset),
        {**belief.gone, **{uuid: gpu for uuid, gpu in old.items() if uuid not in there}},
        dict(belief.parts),
    )
    for gpu in gone.values():
        for device in gpu.mig.devices if gpu.mig else ():
            parts[device.uuid] = _forgotten(parts.get(device.uuid, Part()))
    for gpu in file.gpus or ():
        back = gpu.uuid in gone
        gone.pop(gpu.uuid, None)
        codes, own = _codes(gpu, file.failures), parts.get(gpu.uuid, Part())
        blind = not codes.isdisjoint(BLIND)
        asked = not own.shown.isdisjoint(RENEWING)
        errors, partitioned = gpu.uncorrected or 0, gpu.mig is not None and gpu.mig.enabled
        reset = not blind and (back or errors < own.errors or (asked and codes.isdisjoint(RENEWING)))
        grown = not blind and errors > own.errors and not partitioned
        resets |= {gpu.uuid} if reset else set()
        own = _show(_reset(own) if reset else own, codes, blind, now)
        if grown:
            pods = tuple(sorted(holders.get(gpu.uuid, ())))
            own = _happen(own, Cause("ecc-uncorrectable", "process", event=True, shown=False, pods=pods), belief, now)
        parts[gpu.uuid] = own if blind else own.but(errors=errors)
        for device in gpu.mig.devices if gpu.mig else ():
            inside, part = {fault.code for fault in device.faults}, parts.get(device.uuid, Part())
            unseen = blind or not inside.isdisjoint(BLIND)
            parts[device.uuid] = _show(_reset(part) if reset else part, inside, unseen, now)
    return belief.but(file=file, counted=True, gone=gone, parts=parts, reset=frozenset(resets))


def _forgotten(part: Part) -> Part:
    """A MIG device that is made again is new, but for a person's word."""
    return Part(drained=part.drained, until=part.until)


def _codes(gpu: Gpu, failures: Iterable[Failure]) -> set[str]:
    codes = {fault.code for fault in gpu.faults}
    for failure in failures:
        if failure.gpu == gpu.index:
            error = GPU_ERRORS.get(failure.error, "query-failed")
            codes.add(error if failure.effect == "error" else f"gpu-{failure.effect}")
            break
    return codes


def _show(part: Part, codes: set[str], blind: bool, now: float) -> Part:
    """A part after a look shows these faults. `blind`: what it does not show is not over."""
    causes = []
    for each in part.causes:
        if each.code in codes and not each.event:
            causes.append(each.but(shown=True))
        elif blind or not each.shown:
            causes.append(each)
        elif each.ends in ("reboot", "operator"):
            causes.append(each.but(shown=False))
    for code in sorted(codes - {each.code for each in causes}):
        if _unhealthy(code):
            causes.append(Cause(code, entry(code).ends))
            part = _fall(part, now, confirmed=not entry(code).patience)
    shown = frozenset(codes | part.shown if blind else codes)
    return part.but(causes=tuple(causes), pending=not codes.isdisjoint(PENDING), shown=shown)


def _fall(part: Part, now: float, confirmed: bool = True) -> Part:
    """A part after something unhealthy has come to it."""
    fresh = part.state in ("well", "mending", "doubtful")
    return part.but(
        state="ill",
        falls=part.falls + fresh,
        since=now if fresh else part.since,
        confirmed=confirmed or (part.confirmed and not fresh),
    )


def _befallen(
    belief: Belief, incident: Incident, holders: Mapping[str, frozenset[str]], now: float, sure: bool
) -> Belief:
    judged = entry(incident.code)
    gpu = next((gpu for gpu in belief.file.gpus or () if gpu.index == incident.gpu), None)
    if judged.severity != "unhealthy" or gpu is None:
        return belief
    devices = gpu.mig.devices if gpu.mig is not None and gpu.mig.enabled else ()
    named = [
        device.uuid
        for device in devices
        if device.gpu_instance == incident.gpu_instance and incident.compute_instance in (None, device.compute_instance)
    ]
    small = judged.scope in ("process", "instance") and named
    sure = sure and (judged.ends != "reset" or gpu.uuid not in belief.reset)
    parts = dict(belief.parts)
    for key in named if small else [gpu.uuid]:
        units = [key] if small else [gpu.uuid, *(device.uuid for device in devices)]
        pods = {pod for unit in units for pod in holders.get(unit, ())} if not incident.pids else set()
        cause = Cause(
            incident.code, judged.ends, event=True, shown=False, sure=sure, pids=incident.pids, pods=tuple(sorted(pods))
        )
        parts[key] = _happen(belief.part(key), cause, belief, now)
    return belief.but(parts=parts)


def _happen(part: Part, cause: Cause, belief: Belief, now: float) -> Part:
    """A part after something happened. What happens once more also counts against those whom it befell before."""
    if any(each.code == cause.code for each in part.causes):
        old = next(each for each in part.causes if each.code == cause.code)
        cause = cause.but(
            sure=old.sure or cause.sure, pids=(*old.pids, *cause.pids), pods=tuple({*old.pods, *cause.pods})
        )
    part = part.but(causes=(*(each for each in part.causes if each.code != cause.code), cause))
    if not cause.sure:
        return part.but(state="doubtful") if part.state == "well" else part
    part = _fall(part, now)
    return part.but(eased=max(now, belief.late)) if cause.ends == "process" and not cause.pids else part


def drained(belief: Belief, key: str, until: float | None) -> Belief:
    """After a person drained a part."""
    return _with(belief, key, belief.part(key).but(drained=True, until=until))


def restored(belief: Belief, key: str, now: float) -> Belief:
    """After a person said that it is mended. What is still shown, or still runs, is not."""
    part = belief.part(key)
    left = tuple(each if each.shown else _had(each) for each in part.causes)
    part = part.but(causes=left, drained=False, until=None, falls=0, eased=max(part.eased, now))
    if part.state == "well":  # a drain was all
        part = part.but(state="mending", since=now)
    return settled(_with(belief, key, part), now)


def ran(belief: Belief, pods: frozenset[str], restarted: bool, now: float) -> Belief:
    """With these pods running now; `restarted`: kubelet has been, too."""
    over, late = belief.pods - pods, belief.late
    if over:
        late = max(late, now + HEARD)
    if restarted:
        late = max(late, now + HEARD_LATE)
    parts = {key: part if over.isdisjoint(_pods(part)) else part.but(eased=late) for key, part in belief.parts.items()}
    return settled(belief.but(pods=pods, late=late, parts=parts), now)


def _pods(part: Part) -> set[str]:
    return {pod for cause in part.causes for pod in cause.pods}


def _with(belief: Belief, key: str, part: Part) -> Belief:
    return belief.but(parts={**belief.parts, key: part})


def settled(belief: Belief, now: float) -> Belief:
    """The parts as what stands makes them."""
    parts = {NODE: belief.part(NODE)}
    processes = {(each.gpu, each.pid) for each in belief.file.processes}
    for gpu in (*(belief.file.gpus or ()), *belief.gone.values()):
        running = {pid for index, pid in processes if index == gpu.index}
        stopped = bool(belief.driver) or not belief.counted or gpu.uuid in belief.gone
        own = _settled(belief.part(gpu.uuid), running, belief, stopped, now)
        parts[gpu.uuid] = own
        stopped = stopped or own.pending or any(cause.shown for cause in own.causes)
        for device in gpu.mig.devices if gpu.mig else ():
            parts[device.uuid] = _settled(belief.part(device.uuid), running, belief, stopped, now)
    return belief.but(parts=parts)


def _settled(part: Part, running: set[int], belief: Belief, stopped: bool, now: float) -> Part:
    """`stopped`: no probe can find it well for a reason that is not its own."""
    left = tuple(each for each in part.causes if _goes_on(each, running, belief.pods))
    blocked = stopped or part.pending
    tried = part.tried or any(each.code in UNASKED or each.pids for each in left)
    part = part.but(causes=left, tried=tried)
    if any(each.sure for each in left):
        return part if part.state == "ill" else _fall(part, now)
    if left:
        return part.but(state="doubtful", since=now) if part.state != "doubtful" else part
    match part.state, blocked:
        case "well", _:
            return part
        case "ill", True:
            return part.but(state="stuck" if part.confirmed else "doubtful", tried=True)
        case "mending", True:
            return part.but(state="doubtful", tried=True)
        case (("ill" | "stuck" | "doubtful"), False):
            return part.but(state="mending", eased=max(now, part.eased))
    return part


def _goes_on(cause: Cause, running: set[int], pods: frozenset[str]) -> bool:
    """Whether what happened is not over by itself."""
    if cause.shown or cause.ends != "process":
        return True
    return not (running.isdisjoint(cause.pids) and pods.isdisjoint(cause.pods))


def confirmed(belief: Belief, view: Mapping[str, str], now: float) -> Belief:
    """With what kubelet is shown in a quiet moment (unit → health): it ends the doubts."""
    parts = dict(belief.parts)
    for unit, keys in belief.units().items():
        standing = [key for key in keys if parts.get(key, Part()).state != "well"]
        over = {key for key in keys if (part := belief.part(key)).drained and _drain(part, now) == "Healthy"}
        for key in over:
            parts[key] = parts[key].but(drained=False, until=None)
        if not belief.counted:
            continue
        if view[unit] == "Healthy":
            for key in standing:
                part = parts[key]
                parts[key] = part.but(state="well", causes=(), confirmed=False, tried=False)
        elif len(standing) == 1 and not any(parts.get(key, Part()).drained for key in keys):
            parts[standing[0]] = _surely(parts[standing[0]])
        else:
            for key in standing:
                if parts[key].state == "ill":
                    parts[key] = parts[key].but(confirmed=True)
    return belief.but(parts=parts)


def _surely(part: Part) -> Part:
    """A part of which kubelet is shown that it is not well."""
    causes = tuple(each.but(sure=True) for each in part.causes)
    state: State = ("ill" if causes else "stuck") if part.state == "doubtful" else part.state
    return part.but(state=state, causes=causes, confirmed=part.state in ("ill", "stuck", "doubtful"))
