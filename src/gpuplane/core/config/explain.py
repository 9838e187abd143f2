"""What a node would advertise, and why: the same decisions that the agent makes, with the lines that made them.

For `gpuplane config explain`: it asks the very functions that the agent asks, so what it shows is what would happen.
"""

from collections.abc import Iterator, Mapping

from gpuplane.core.config.resolve import Resolved
from gpuplane.core.resources.names import decide
from gpuplane.core.resources.naming import Decision, matches
from gpuplane.core.resources.offer import offer
from gpuplane.core.resources.sharing import share_ids
from gpuplane.core.step import step
from gpuplane.model.config import Config, Replication
from gpuplane.model.facts import Looked
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Offer


class Explained(Value):
    """One unit. Where `resource` is "" it is not offered, and `why` says why not."""

    index: str  # "0", or "0:1" for MIG device 1 of GPU 0
    uuid: str
    model: str
    profile: str  # "" for a whole GPU
    resource: str
    ids: tuple[str, ...]
    why: str
    trouble: str  # why kubelet would be told that it is unhealthy; "" where it would be healthy


class Count(Value):
    """How many ids of one resource kubelet would be told of."""

    devices: int
    healthy: int


class Explanation(Value):
    """A whole node. `notes`: what was said and does nothing here, or not what one may think."""

    waiting: str  # why nothing could be advertised yet
    resources: Mapping[str, Count]
    units: tuple[Explained, ...]
    notes: tuple[str, ...]


def explain(machine: Machine, resolved: Resolved) -> Explanation:
    """What a node with this machine and these settings would advertise while no container holds anything."""
    unseen = Snapshot(config=Config(settings=resolved.settings), allocations=())
    offered = offer(step(unseen, Looked(machine), 0.0))
    decisions = decide(machine, resolved.settings)
    troubles = {device.unit.id: device.trouble for each in offered.resources for device in each.devices}
    return Explanation(
        waiting=offered.waiting,
        resources=_counts(offered),
        units=tuple(_explained(decision, resolved, troubles) for decision in decisions),
        notes=(
            *(f"{where}: {why}" for where, why in resolved.idle.items()),
            *_idle_patterns(decisions, resolved),
            *_idle_shares(decisions, resolved),
            *_mixed(decisions),
        ),
    )


def _counts(offered: Offer) -> dict[str, Count]:
    return {
        each.name: Count(len(each.devices), sum(not device.trouble for device in each.devices))
        for each in offered.resources
    }


def _explained(decision: Decision, resolved: Resolved, troubles: Mapping[str, str]) -> Explained:
    unit, name = decision.unit, decision.name
    return Explained(
        index=unit.index,
        uuid=unit.id,
        model=unit.model,
        profile=unit.profile,
        resource=name,
        ids=tuple(share_ids(unit.id, decision.replicas)) if name else (),
        why=f"{_named_by(decision, resolved)}{_shared_by(decision, resolved)}" if name else decision.reason,
        trouble=troubles.get(unit.id, "") if name else "",
    )


def _named_by(decision: Decision, resolved: Resolved) -> str:
    settings = resolved.settings
    field, _, number = decision.by.partition(".")
    if number:
        pattern = (settings.gpus if field == "gpus" else settings.mig)[int(number)].pattern
        return f"pattern {pattern!r}{_at(resolved, decision.by)}"
    if not decision.unit.profile:
        return f"a whole GPU{' that no pattern matches' * bool(settings.gpus)}"
    return f"migStrategy {settings.mig_strategy}{_at(resolved, decision.by)}"


def _shared_by(decision: Decision, resolved: Resolved) -> str:
    if not decision.shared_by:
        return ""
    shares = f"{decision.replicas} shares" if decision.replicas > 1 else "not shared"
    return f", {shares}{_at(resolved, decision.shared_by)}"


def _at(resolved: Resolved, setting: str) -> str:
    return f" ({resolved.sources[setting]})" if setting in resolved.sources else ""


def _idle_patterns(decisions: list[Decision], resolved: Resolved) -> Iterator[str]:
    used = {decision.by for decision in decisions}
    for field, namings in (("gpus", resolved.settings.gpus), ("mig", resolved.settings.mig)):
        texts = {each.unit.profile if field == "mig" else each.unit.model for each in decisions}
        for i, naming in enumerate(namings):
            if f"{field}.{i}" not in used:
                why = _missed(field, naming.pattern, texts - {""}, resolved.settings.mig_strategy)
                yield f"{resolved.sources[f'{field}.{i}']}: {why}"


def _missed(field: str, pattern: str, texts: set[str], strategy: str) -> str:
    if field == "mig" and strategy == "none":
        return "migStrategy is none, so patterns of resources.mig do nothing"
    if any(matches(pattern, text) for text in texts):
        return f"what {pattern!r} matches here is not offered, or goes by a pattern above it"
    return f"no {'profile' if field == 'mig' else 'model'} here matches {pattern!r}"


def _idle_shares(decisions: list[Decision], resolved: Resolved) -> Iterator[str]:
    for i, entry in enumerate(resolved.settings.sharing.resources):
        taken = [decision for decision in decisions if decision.shared_by == f"sharing.{i}"]
        if what := _unfilled(entry, taken):
            yield f"{resolved.sources[f'sharing.{i}']}: {what}"


def _unfilled(entry: Replication, taken: list[Decision]) -> str:
    match entry.devices:
        case None:
            return "" if taken else f"no device here is named {entry.name}"
        case int(count):
            return "" if len(taken) == count else f"{count} devices of {entry.name} wanted, {len(taken)} here"
        case references:
            there = {text for decision in taken for text in (decision.unit.id, decision.unit.index)}
            missing = [reference for reference in references if reference not in there]
            return f"no device of {entry.name} here is {', '.join(missing)}" if missing else ""


def _mixed(decisions: list[Decision]) -> Iterator[str]:
    shared = {decision.name for decision in decisions if decision.replicas > 1}
    for name in sorted({decision.name for decision in decisions if decision.replicas == 1 and decision.name in shared}):
        yield f"{name} has whole devices and shares of others, and a pod cannot choose which it gets; rename the shares"
