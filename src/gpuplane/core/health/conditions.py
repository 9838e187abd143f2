"""What Kubernetes is told of health: our Node's condition `GPUProblem`, and Events.

Both follow from how each device stands. As for node-problem-detector, "True" means that there is a problem. A device
that a person has drained is none, and neither is one that is only suspect. What ails the driver is told of the node and
not again of each GPU. A condition is a state and can be written at any time; an Event is the difference of two states,
the one that was told last and the one now.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from gpuplane.core.health import diagnose, records
from gpuplane.core.sight import NOT_LOOKED
from gpuplane.core.text import clip, counted
from gpuplane.model.config import Config
from gpuplane.model.health import Diagnosis, Health, Record
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import NodeCondition, NodeEvent

LONGEST = 1000
"""Characters of a message at the most. (An Event's has 1024 bytes, pkg/apis/core/validation/events.go, where its writer
speaks events.k8s.io; for core/v1 there is no limit.)"""

Kind = Literal["well", "degraded", "unhealthy", "failing", "drained"]


class Standing(Value):
    """How one device stands for Kubernetes. `failing` is the driver, that is the node."""

    name: str  # for people
    kind: Kind
    why: str = ""
    advice: str = ""


REASONS: Mapping[Kind, str] = {"failing": "DriverFailing", "unhealthy": "GPUUnhealthy", "degraded": "GPUDegraded"}
"""What counts as a problem → the condition's reason, the worst first; and the reason of the Event."""

WELL = Standing(name="", kind="well")


def known(snapshot: Snapshot) -> bool:
    """Whether enough is known to judge by: the machine was looked at, and the configuration says what counts."""
    config = snapshot.conditions.get("config")
    settled = snapshot.config.settings is not None or (config is not None and config.standing == "failing")
    return snapshot.machine is not None and settled


def condition(snapshot: Snapshot) -> NodeCondition | None:
    """The condition `GPUProblem`; None while nothing can be said, so that what was said last stays."""
    driver = snapshot.conditions.get("driver")
    found = [*standings(snapshot).values()] if known(snapshot) else []
    if snapshot.machine is None and driver is not None and driver.standing == "failing":
        found = [Standing(name="the driver", kind="failing", why=driver.reason)]
    for kind, reason in REASONS.items():
        if any(each.kind == kind for each in found):
            return NodeCondition(status="True", reason=reason, message=clip(_problems(found), LONGEST))
    if away := diagnose.released(snapshot):
        message = clip(f"the driver is let go of: {away}", LONGEST)
        return NodeCondition(status="Unknown", reason="DriverReleased", message=message)
    machine = snapshot.machine
    if not known(snapshot) or machine is None or machine.gpus is None or NOT_LOOKED in machine.faults:
        return None
    message = clip("; ".join(_fine(snapshot, found)), LONGEST)
    return NodeCondition(status="False", reason="NoProblem", message=message)


def _problems(found: list[Standing]) -> str:
    """The problems in words, the worst first."""
    ill = [each for kind in REASONS for each in found if each.kind == kind]
    count = f"{len(ill)} problems: " if len(ill) > 1 else ""
    return count + "; ".join(f"{each.name}: {each.why}" for each in ill)


def _fine(snapshot: Snapshot, found: list[Standing]) -> Iterator[str]:
    gpus = (snapshot.machine.gpus if snapshot.machine else None) or ()
    yield f"{counted(len(gpus), 'GPU')}, no problem" if gpus else "the driver counts no GPU"
    for each in found:
        if each.kind == "drained":
            yield f"{each.name} is drained: {each.why}"
    for name in diagnose.asked(snapshot).drains:
        if name != diagnose.ALL and diagnose.find(snapshot, name) is None:
            yield f"no device here is {name!r}, which our Node object wants drained"


def remembered(snapshot: Snapshot, now: Snapshot) -> Mapping[str, Standing]:
    """How the devices stood when the ledger of a snapshot was written, judged and named as they are now.

    It is what Kubernetes was told before our restart, as far as anybody knows.
    """
    return standings(snapshot.but(machine=now.machine, config=Config(settings=now.config.settings)))


def standings(snapshot: Snapshot) -> Mapping[str, Standing]:
    """UUID → how each device stands; "" is the node."""
    found = {records.NODE: _driver(snapshot)}
    for each in diagnose.diagnoses(snapshot):
        if each.device != records.NODE:
            found[each.device] = Standing(name=_name(each), kind=_kind(each), why=each.reason, advice=each.advice)
    return found


def _driver(snapshot: Snapshot) -> Standing:
    """The driver by the node's own record. That it was let go of, and not looked at since, is nobody's failure."""
    by = diagnose.terms(snapshot, 0.0)
    record = (snapshot.ledger.health or Health()).devices.get(records.NODE, Record())
    ill = [each for each in record.findings if each.standing and each.code != NOT_LOOKED.code]
    ill = [each for each in ill if by.entry(each.code).severity != "note"]
    if not ill:
        return WELL.but(name="the driver")
    why = "; ".join(f"{each.code}: {each.message}" for each in ill)
    return Standing(name="the driver", kind="failing", why=why, advice=by.entry(ill[0].code).advice)


def _kind(diagnosis: Diagnosis) -> Kind:
    match diagnosis.state:
        case "unhealthy" | "probing":
            return "unhealthy"
        case "degraded" | "drained":
            return diagnosis.state
        case "healthy" | "suspect":
            return "well"


def _name(diagnosis: Diagnosis) -> str:
    if not diagnosis.index:
        return diagnosis.device
    kind = "MIG device" if ":" in diagnosis.index else "GPU"
    return f"{kind} {diagnosis.index} ({diagnosis.device})"


def events(before: Mapping[str, Standing], after: Mapping[str, Standing]) -> Iterator[NodeEvent]:
    """What is worth an Event between two standings."""
    for device, now in after.items():
        was = before.get(device, WELL)
        if now.kind != was.kind:
            yield _event(device, *_said(was, now))
    for device, was in before.items():
        if device not in after and was.kind in REASONS:
            yield _event(device, "Normal", "GPURemoved", f"{was.name} is no longer there; it was {was.kind}: {was.why}")


def _said(was: Standing, now: Standing) -> tuple[Literal["Normal", "Warning"], str, str]:
    """(type, reason, message) of a change."""
    if now.kind in REASONS:
        return "Warning", REASONS[now.kind], f"{now.name}: {now.why}" + (f" ({now.advice})" if now.advice else "")
    if now.kind == "drained":
        return "Normal", "GPUDrained", f"{now.name} is given out no more: {now.why}"
    if was.kind == "drained":
        return "Normal", "GPURestored", f"{now.name} is given out again; it was drained: {was.why}"
    reason = "DriverRecovered" if was.kind == "failing" else "GPURecovered"
    return "Normal", reason, f"{now.name} is well again; it was {was.kind}: {was.why}"


def _event(device: str, type: Literal["Normal", "Warning"], reason: str, message: str) -> NodeEvent:
    return NodeEvent(device=device, type=type, reason=reason, message=clip(message, LONGEST))
