"""The oracle: what kubelet has to be shown, by few and simple rules of its own.

It is told what the agent has been shown: each version of the machine file that a look has taken, each drain, each end
of a pod. From the fault catalogue it takes data (whom a fault befalls, how bad it is, what ends it), and asks nobody
what was decided. What it cannot know it says: a device in doubt may be shown either way, until the next quiet moment
shows which.
"""

from collections.abc import Iterable, Mapping

from gpuplane.node.core.kinds.nvidia.faults import (
    CODES_CLEARED_ONLY_BY_RESET,
    CODES_THAT_BLOCK_RECOVERY,
    CODES_THAT_HIDE_OTHERS,
    CODES_THAT_NEED_PROBE,
)
from gpuplane.node.model.machine import Gpu, Incident, InjectedFailure, MachineFile
from tests.chaos.belief import CLOSE, NODE, Belief, Cause, Part, State, drain, entry

HEARD = 2.0
"""Seconds within which the agent hears of a pod's end while a fault waits for that: it asks kubelet each second."""
HEARD_LATE = 75.0
"""The same after kubelet's restart: what it does not list counts as held for a while."""
SURE = 3.0
"""Seconds after which a part that could have recovered, and has not, will not."""

RESETS = ("gpu-reset", "process-ended")
"""What a reset of the GPU ends: no process that ran before goes on after it."""

GPU_ERRORS = {"GPU_IS_LOST": "gpu-lost", "RESET_REQUIRED": "reset-required"}
DRIVER_ERRORS = {
    "LIBRARY_NOT_FOUND": "driver-missing",
    "DRIVER_NOT_LOADED": "driver-not-loaded",
    "LIB_RM_VERSION_MISMATCH": "driver-mismatch",
    "NO_PERMISSION": "driver-denied",
}


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
        if incident.kernel_log_number is not None and incident.kernel_log_number > belief.last:
            belief = _befallen(belief, incident, holders, now, incident.in_kernel_log or (sure and belief.counted))
            belief = belief.but(last=incident.kernel_log_number)
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
    causes = tuple(Cause(code, entry(code).clear_when) for code in sorted(codes) if _unhealthy(code))
    if causes:
        agent_continues = part.state == "ill"
        confirmed = any(not entry(each.code).grace_period for each in causes) or (agent_continues and part.confirmed)
        return part.but(causes=causes, state="ill", since=part.since if agent_continues else now, confirmed=confirmed)
    return part.but(causes=(), state="well" if part.state == "well" else "mending", since=now, eased=now)


def _unhealthy(code: str) -> bool:
    return entry(code).severity == "unhealthy"


def _reset(part: Part) -> Part:
    """What happened before a reset of the GPU, and needed one or the end of a process, is over."""
    return part.but(causes=tuple(each for each in part.causes if not (each.event and each.ends in RESETS)))


def _had(cause: Cause) -> Cause:
    """What ends it was had: now only the processes that it befell have to have ended."""
    return cause.but(ends="process-ended", pods=())


def _counted(belief: Belief, file: MachineFile, holders: Mapping[str, frozenset[str]], now: float) -> Belief:
    """After a look that counted the GPUs."""
    old, there = {gpu.uuid: gpu for gpu in belief.file.gpus or ()}, {gpu.uuid for gpu in file.gpus or ()}
    resets, gone, parts = (
        set(belief.reset),
        {**belief.gone, **{uuid: gpu for uuid, gpu in old.items() if uuid not in there}},
        dict(belief.parts),
    )
    for gpu in gone.values():
        for device in gpu.mig_devices:
            parts[device.uuid] = _forgotten(parts.get(device.uuid, Part()))
    for gpu in file.gpus or ():
        back = gpu.uuid in gone
        gone.pop(gpu.uuid, None)
        codes, own = _codes(gpu, file.failures), parts.get(gpu.uuid, Part())
        blind = not codes.isdisjoint(CODES_THAT_HIDE_OTHERS)
        asked = not own.shown.isdisjoint(CODES_CLEARED_ONLY_BY_RESET)
        errors, partitioned = gpu.uncorrected_errors or 0, gpu.mig_enabled
        reset = not blind and (back or (asked and codes.isdisjoint(CODES_CLEARED_ONLY_BY_RESET)))
        grown = not blind and errors > own.errors and not partitioned
        resets |= {gpu.uuid} if reset else set()
        own = _show(_reset(own) if reset else own, codes, blind, now)
        if grown:
            pods = tuple(sorted(holders.get(gpu.uuid, ())))
            own = _happen(
                own, Cause("ecc-uncorrectable", "process-ended", event=True, shown=False, pods=pods), belief, now
            )
        parts[gpu.uuid] = own if blind else own.but(errors=errors)
        for device in gpu.mig_devices:
            inside, part = {fault.code for fault in device.faults}, parts.get(device.uuid, Part())
            unseen = blind or not inside.isdisjoint(CODES_THAT_HIDE_OTHERS)
            parts[device.uuid] = _show(_reset(part) if reset else part, inside, unseen, now)
    return belief.but(file=file, counted=True, gone=gone, parts=parts, reset=frozenset(resets))


def _forgotten(part: Part) -> Part:
    """A MIG device that is made again is new, but for a person's word."""
    return Part(drained=part.drained, until=part.until)


def _codes(gpu: Gpu, failures: Iterable[InjectedFailure]) -> set[str]:
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
        elif each.ends in ("node-rebooted", "restored-by-admin"):
            causes.append(each.but(shown=False))
    for code in sorted(codes - {each.code for each in causes}):
        if _unhealthy(code):
            causes.append(Cause(code, entry(code).clear_when))
            part = _fall(part, now, confirmed=not entry(code).grace_period)
    shown = frozenset(codes | part.shown if blind else codes)
    return part.but(causes=tuple(causes), pending=not codes.isdisjoint(CODES_THAT_BLOCK_RECOVERY), shown=shown)


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
    devices = gpu.mig_devices if gpu.mig_enabled else ()
    named = [
        device.uuid
        for device in devices
        if device.gpu_instance == incident.gpu_instance and incident.compute_instance in (None, device.compute_instance)
    ]
    small = judged.scope in ("process", "instance") and named
    sure = sure and (judged.clear_when not in RESETS or gpu.uuid not in belief.reset)
    parts = dict(belief.parts)
    for key in named if small else [gpu.uuid]:
        units = [key] if small else [gpu.uuid, *(device.uuid for device in devices)]
        pods = {pod for unit in units for pod in holders.get(unit, ())} if not incident.pids else set()
        cause = Cause(
            incident.code,
            judged.clear_when,
            event=True,
            shown=False,
            sure=sure,
            pids=incident.pids,
            pods=tuple(sorted(pods)),
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
        return part.but(state="doubtful", since=now) if part.state == "well" else part
    part = _fall(part, now)
    return part.but(eased=max(now, belief.late)) if cause.ends == "process-ended" and not cause.pids else part


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
        for device in gpu.mig_devices:
            parts[device.uuid] = _settled(belief.part(device.uuid), running, belief, stopped, now)
    return belief.but(parts=parts)


def _settled(part: Part, running: set[int], belief: Belief, stopped: bool, now: float) -> Part:
    """`stopped`: no probe can find it well for a reason that is not its own."""
    left = tuple(each for each in part.causes if _goes_on(each, running, belief.pods))
    blocked = stopped or part.pending
    tried = part.tried or any(each.code in CODES_THAT_NEED_PROBE or each.pids for each in left)
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
    if cause.shown or cause.ends != "process-ended":
        return True
    return not (running.isdisjoint(cause.pids) and pods.isdisjoint(cause.pods))


def confirmed(belief: Belief, view: Mapping[str, str], now: float) -> Belief:
    """With what kubelet is shown in a quiet moment (unit → health): it ends the doubts."""
    parts = dict(belief.parts)
    for unit, keys in belief.units().items():
        standing = [key for key in keys if parts.get(key, Part()).state != "well"]
        over = {key for key in keys if (part := belief.part(key)).drained and drain(part, now) == "Healthy"}
        for key in over:
            parts[key] = parts[key].but(drained=False, until=None)
        if not belief.counted:
            continue
        if view[unit] == "Healthy":
            for key in standing:
                part = parts[key]
                parts[key] = part.but(state="well", causes=(), confirmed=False, tried=False)
        elif len(standing) == 1 and not any(parts.get(key, Part()).drained for key in keys):
            parts[standing[0]] = _surely(parts[standing[0]], belief, now)
        else:  # what is shown for one of them says nothing of another that is only suspect yet
            for key in standing:
                if parts[key].state == "ill" and now > belief.fallen(parts[key]) + CLOSE:
                    parts[key] = parts[key].but(confirmed=True)
    return belief.but(parts=parts)


def _surely(part: Part, belief: Belief, now: float) -> Part:
    """A part of which kubelet is shown that it is not well; in doubt, it could have recovered if nothing were on it.

    While somebody goes on whom it befell, that alone may be why.
    """
    if part.state != "doubtful":
        return part.but(confirmed=part.state in ("ill", "stuck"))
    running = {each.pid for each in belief.file.processes}
    if any(not (running.isdisjoint(each.pids) and belief.pods.isdisjoint(each.pods)) for each in part.causes):
        return part.but(since=now)
    if now < part.since + belief.recovery(part) + SURE:
        return part
    causes = tuple(each.but(sure=True) for each in part.causes)
    state: State = "ill" if causes else "stuck"
    return part.but(state=state, causes=causes, confirmed=True)
