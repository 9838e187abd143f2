"""What a node would advertise, and why: the same decisions that the agent makes, with the lines that made them.

For `gpuplane config explain`: it asks the very functions that the agent asks, so what it shows is what would happen.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.core import mps
from gpuplane.core.advertising import offer
from gpuplane.core.choice.explain import rule
from gpuplane.core.config.resolve import Resolved
from gpuplane.core.containers.strategy import AUTO, Strategy
from gpuplane.core.health import judge
from gpuplane.core.health.catalogue import CATALOGUE
from gpuplane.core.inventory.names import decide
from gpuplane.core.inventory.naming import Decision, matches
from gpuplane.core.inventory.sharing import entries, ids
from gpuplane.core.step import step
from gpuplane.core.text import amount
from gpuplane.model.config import Config, MemoryResource, Mps, ReplicatedResource, Settings
from gpuplane.model.facts import MachineObserved
from gpuplane.model.health import FaultOverride
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Resource


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
    """How many ids of one resource kubelet would be told of, and which of them are advised to a container."""

    devices: int
    healthy: int
    advised: str


class Judged(Value):
    """Faults that are judged otherwise than by the catalogue, all in the same way."""

    codes: tuple[str, ...]  # "xid-…" stands for the XIDs that neither the catalogue nor the configuration names
    how: str  # "severity note instead of unhealthy"
    said: tuple[str, ...]  # where


class Explanation(Value):
    """A whole node. `notes`: what was said and does nothing here, or not what one may think."""

    waiting: str  # why nothing could be advertised yet
    strategy: Strategy  # how containers would be given devices
    resources: Mapping[str, Count]
    units: tuple[Explained, ...]
    faults: tuple[Judged, ...]
    notes: tuple[str, ...]


def explain(machine: Machine, resolved: Resolved) -> Explanation:
    """What a node with this machine and these settings would advertise while no container holds anything."""
    unseen = Snapshot(config=Config(settings=resolved.settings), allocations=())
    offered = offer(mps.served(step(unseen, MachineObserved(machine), 0.0)))
    decisions = decide(machine, resolved.settings)
    troubles = {device.unit.id: device.unavailable for each in offered.resources for device in each.devices}
    return Explanation(
        waiting=offered.waiting,
        strategy=_strategy(resolved),
        resources={each.name: _count(each, resolved) for each in offered.resources},
        units=tuple(_explained(decision, resolved, troubles) for decision in decisions),
        faults=tuple(_judged(resolved)),
        notes=(
            *resolved.warnings,
            *(f"{where}: {why}" for where, why in resolved.idle.items()),
            *_idle_patterns(decisions, resolved),
            *_idle_shares(decisions, resolved),
            *_mixed(decisions),
            *_limits(decisions, resolved),
            *_clients(decisions, resolved),
            *(["this machine has no GPU, so nothing would be advertised"] * (not offered.waiting and not machine.gpus)),
        ),
    )


def _strategy(resolved: Resolved) -> Strategy:
    said = resolved.settings.device_list_strategy
    return Strategy(said, AUTO if said == ("auto",) else resolved.sources["device_list_strategy"])


def _count(resource: Resource, resolved: Resolved) -> Count:
    healthy = sum(not device.reasons for device in resource.devices)
    return Count(len(resource.devices), healthy, _advised(resource, resolved))


def _advised(resource: Resource, resolved: Resolved) -> str:
    policy, at = resolved.settings.sharing_policy, _at(resolved, "sharing_policy")
    if resource.share_mib or len({device.unit.gpu for device in resource.devices}) < len(resource.devices):
        return rule(resource, policy, at)
    return f"the GPUs with the best links{f', on as few NUMA nodes as possible{at}' * (policy == 'numa')}"


def _explained(decision: Decision, resolved: Resolved, troubles: Mapping[str, str]) -> Explained:
    unit, name = decision.unit, decision.name
    return Explained(
        index=unit.index,
        uuid=unit.id,
        model=unit.model,
        profile=unit.profile,
        resource=name,
        ids=tuple(ids(decision)) if name else (),
        why=f"{_named_by(decision, resolved)}{_shared_by(decision, resolved)}" if name else _left(decision, resolved),
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


def _left(decision: Decision, resolved: Resolved) -> str:
    return f"{decision.reason}{_at(resolved, decision.shared_by)}"


def _shared_by(decision: Decision, resolved: Resolved) -> str:
    if not decision.shared_by:
        return ""
    how = "".join(_how(decision, resolved.settings)) if decision.shared else "not shared"
    return f", {how}{_at(resolved, decision.shared_by)}"


def _how(decision: Decision, settings: Settings) -> Iterator[str]:
    yield f"{decision.replicas} share{'s' if decision.replicas > 1 else ''}"
    if grain := decision.grain_mib:
        unit, over = settings.sharing.memory_unit, decision.unit.memory_mib % grain
        yield f" of {amount(grain, unit)}"
        yield f" ({amount(over, unit)} left over)" if over else ""
    if decision.mps:
        yield "".join((" by MPS", *_set(settings.sharing.mps)))
    if decision.distinct:
        yield ", each of a container's of another GPU"
    entry = entries(settings.sharing)[decision.shared_by]
    if isinstance(entry, ReplicatedResource) and entry.time_slice:
        yield f", time slice {entry.time_slice}"


def _set(how: Mps) -> Iterator[str]:
    """What is said of MPS daemons beside what holds without a word."""
    if how.compute_mode != Mps().compute_mode:
        yield f", computeMode {how.compute_mode}"
    if how.multi_user:
        yield ", multiUser"
    if how.active_thread_percentage is not None:
        yield f", activeThreadPercentage {how.active_thread_percentage}"


REST, SPECIMEN = "xid-…", "xid-99999"
"""The XIDs that are named nowhere, and one of them."""


def _judged(resolved: Resolved) -> Iterator[Judged]:
    """Together what the same was said of at the same places."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for code in _codes(resolved.settings):
        if changes := _otherwise(code, resolved):
            said = tuple(dict.fromkeys(_said(code, changes, resolved)))
            alike.setdefault((", ".join(changes.values()), said), []).append(REST if code == SPECIMEN else code)
    for (how, said), codes in alike.items():
        yield Judged(codes=tuple(codes), how=how, said=said)


def _codes(settings: Settings) -> Iterable[str]:
    listed = (number for field in judge.VARIABLES for number in sorted(judge.listed(getattr(settings, field)).xids))
    return dict.fromkeys((*CATALOGUE, *settings.faults, *(f"xid-{number}" for number in listed), SPECIMEN))


def _otherwise(code: str, resolved: Resolved) -> dict[str, str]:
    """Field of a fault's entry → how it differs from the catalogue's.

    Time is nothing to what something else ends: it has none there that would be replaced.
    """
    plain, judged = judge.entry(code, None), judge.entry(code, resolved.settings)
    fields = ((field, getattr(judged, field), getattr(plain, field)) for field in plain.__struct_fields__)
    keys = {field.name: field.encode_name for field in msgspec.structs.fields(FaultOverride)}
    timeless = {"clear_after"} if plain.cleared_by != "time" else set()
    return {
        field: f"{keys.get(field, field)} {_word(is_)}" + ("" if field in timeless else f" instead of {_word(was)}")
        for field, is_, was in fields
        if is_ != was
    }


def _word(value: object) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else repr(value) if " " in str(value) else str(value)


def _said(code: str, fields: Iterable[str], resolved: Resolved) -> Iterator[str]:
    for field in fields:
        by = judge.decided(code, resolved.settings) if field == "severity" else ""
        yield resolved.sources[by or f"faults.{code}"]


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
    named: dict[str, list[Decision]] = {}
    every = entries(resolved.settings.sharing)
    for decision in decisions:
        if decision.shared_by:
            named.setdefault(every[decision.shared_by].name, []).append(decision)
    for by, entry in every.items():
        fitting = [
            each for each in named.get(entry.name, ()) if not entry.model or matches(entry.model, each.unit.model)
        ]
        if what := _unfilled(by, entry, fitting, resolved):
            yield f"{resolved.sources[by]}: {what}"


def _unfilled(by: str, entry: ReplicatedResource | MemoryResource, fitting: list[Decision], resolved: Resolved) -> str:
    """What an entry does not get. `fitting`: the devices that it or another takes and that are as it wants them."""
    taken = [decision for decision in fitting if decision.shared_by == by]
    others = [decision for decision in fitting if decision.shared_by != by]
    where = _takers(others, resolved)
    named = f"{entry.name} with a model that matches {entry.model!r}" if entry.model else entry.name
    match entry.devices:
        case None if taken:
            return ""
        case None if others:
            return f"all that is named {named} here is taken before, by {where}"
        case None:
            return f"no device here is named {named}"
        case int(count):
            before = f"; taken before, by {where}: {len(others)}" if others else ""
            return "" if len(taken) == count else f"{count} devices of {named} wanted, {len(taken)} here{before}"
        case references:
            missing = [each for each in references if not _among(each, taken)]
            gone = [each for each in missing if _among(each, others)]
            nowhere = ", ".join(each for each in missing if each not in gone)
            found = f"no device of {named} here is {nowhere}" if nowhere else ""
            where = _takers([each for each in others if any(_among(reference, [each]) for reference in gone)], resolved)
            before = f"taken before, by {where}: {', '.join(gone)}" if gone else ""
            return "; ".join(filter(None, (found, before)))


def _takers(decisions: Iterable[Decision], resolved: Resolved) -> str:
    return " and ".join(dict.fromkeys(resolved.sources[decision.shared_by] for decision in decisions))


def _among(reference: str, decisions: Iterable[Decision]) -> bool:
    return any(reference in (decision.unit.id, decision.unit.index) for decision in decisions)


def _mixed(decisions: list[Decision]) -> Iterator[str]:
    shared = {decision.name for decision in decisions if decision.shared}
    for name in sorted({decision.name for decision in decisions if not decision.shared and decision.name in shared}):
        yield f"{name} has whole devices and shares of others, and a pod cannot choose which it gets; rename the shares"


def _limits(decisions: list[Decision], resolved: Resolved) -> Iterator[str]:
    """What shares of memory do not do."""
    memory = [decision for decision in decisions if decision.grain_mib]
    if not memory:
        return
    kept = (
        "an MPS daemon keeps each process, not each container, within its container's share, and only a process that "
        "is its client and leaves the limit in its environment as it is"
        if resolved.settings.sharing.memory_by_mps
        else "nothing keeps a container within its share but the limit that its environment tells it"
    )
    yield f"{resolved.sources['memory']}: {kept}"
    if len({decision.unit.gpu for decision in memory}) > 1:
        most = amount(max(each.replicas * each.grain_mib for each in memory), resolved.settings.sharing.memory_unit)
        yield (
            f"{resolved.sources['memory']}: a container's memory comes from one GPU, {most} at most, and the scheduler "
            "sees only the sum of the node's: a pod that no single GPU has room for is refused when it starts"
        )


def _clients(decisions: list[Decision], resolved: Resolved) -> Iterator[str]:
    """What MPS needs, and what it does not do."""
    by = next((decision.shared_by for decision in decisions if decision.mps and decision.name), "")
    if by:
        at = resolved.sources[by]
        yield f"{at}: {mps.AS_IF}"
        yield (
            f"{at}: MPS does not isolate: a fault of one client ends the work of all on its GPU, and its limits are "
            "each process's, and only as long as that keeps to them"
        )
