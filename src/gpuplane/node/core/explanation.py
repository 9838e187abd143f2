"""What a node would advertise with a configuration, and why, with the lines of the configuration that decide.

For `gpuplane config explain`. It calls the same functions as the agent, so it shows what the agent would do.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.base.text import Text, format_memory, matches_pattern
from gpuplane.base.value import Value
from gpuplane.node.core import mps
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.explanation import describe_policy
from gpuplane.node.core.config.resolve import ResolvedConfig
from gpuplane.node.core.config.schema import FaultOverrideEntry
from gpuplane.node.core.containers.strategy import AUTO_STRATEGY_TEXT, StrategyDecision
from gpuplane.node.core.faults import overrides as judge
from gpuplane.node.core.inventory.resources import NO_DEVICES, assign_units
from gpuplane.node.core.inventory.sharing import sharing_entry_by_name
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.core.kinds.unitresource import UnitResource
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config, MemorySharedResource, MpsDaemonSettings, ReplicatedResource, Settings
from gpuplane.node.model.facts import DevicesObserved, Fact, MachineObserved
from gpuplane.node.model.machine import NVIDIA_GPU, DeviceList, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import Resource


class UnitExplanation(Value):
    """One unit. Where `resource` is "", it is not offered, and `assignment_reason` says why not."""

    index: str  # "0", or "0:1" for MIG device 1 of GPU 0
    uuid: str
    model: str
    profile: str  # "" for a whole GPU
    resource: str
    ids: tuple[str, ...]
    assignment_reason: Text
    unavailable_reason: Text  # why kubelet would be told that it is unhealthy; "" where it would be healthy


class ResourceCount(Value):
    """How many device ids of one resource kubelet would be sent, and which of them a container would preferably get."""

    devices: int
    healthy: int
    preference: str


class FaultChange(Value):
    """The faults of which the configuration changes the same fields of the catalogue's entry to the same values."""

    codes: tuple[str, ...]  # "xid-…" stands for the XIDs that neither the catalogue nor the configuration names
    change: str  # "severity note instead of unhealthy"
    sources: tuple[str, ...]  # where the configuration says so


class Explanation(Value):
    """A whole node. `notes`: what in the configuration has no effect here, or not the effect that one may expect."""

    waiting_reason: Text  # why nothing could be advertised yet
    strategy: StrategyDecision  # how containers would be given devices
    resources: Mapping[str, ResourceCount]
    units: tuple[UnitExplanation, ...]
    faults: tuple[FaultChange, ...]
    notes: tuple[Text, ...]


def explain_node(
    machine: Machine, resolved: ResolvedConfig, devices: Mapping[str, DeviceList] = NO_DEVICES
) -> Explanation:
    """What a node with this machine and these settings would advertise while no container holds anything.

    `devices`: those of plain kinds, by kind.
    """
    node = Snapshot(config=Config(settings=resolved.settings), allocations=())
    facts: list[Fact] = [MachineObserved(machine), *(DevicesObserved(kind, each) for kind, each in devices.items())]
    for fact in facts:
        node = step(node, fact, now=0.0)  # its clock begins here
    offered = offer(mps.assume_daemons_ready(node))
    decisions = assign_units(machine, resolved.settings, devices)
    unavailable = {device.unit.id: device.unavailable_reason for each in offered.resources for device in each.devices}
    return Explanation(
        waiting_reason=offered.waiting_reason,
        strategy=_device_list_strategy(resolved),
        resources={each.name: _resource_count(each, resolved) for each in offered.resources},
        units=tuple(_explain_unit(decision, resolved, unavailable) for decision in decisions),
        faults=tuple(_fault_changes(resolved)),
        notes=(
            *resolved.warnings,
            *(f"{where}: {why}" for where, why in resolved.ignored_settings.items()),
            *_unused_pattern_notes(decisions, resolved),
            *_unused_sharing_notes(decisions, resolved),
            *_partly_shared_resource_notes(decisions),
            *_memory_sharing_limit_notes(decisions, resolved),
            *_mps_notes(decisions, resolved),
            *(
                ["this machine has no GPU, so nothing would be advertised"]
                * (not offered.waiting_reason and not decisions)
            ),
        ),
    )


def _device_list_strategy(resolved: ResolvedConfig) -> StrategyDecision:
    strategies = resolved.settings.device_list_strategy
    return StrategyDecision(
        strategies, AUTO_STRATEGY_TEXT if strategies == ("auto",) else resolved.sources["device_list_strategy"]
    )


def _resource_count(resource: Resource, resolved: ResolvedConfig) -> ResourceCount:
    healthy = sum(not device.reasons for device in resource.devices)
    return ResourceCount(len(resource.devices), healthy, _describe_preferred_allocation(resource, resolved))


def _describe_preferred_allocation(resource: Resource, resolved: ResolvedConfig) -> str:
    if resource.devices[0].unit.kind != NVIDIA_GPU:
        return "devices of as few NUMA nodes as possible"
    policy, at = resolved.settings.sharing_policy, _source_note(resolved, "sharing_policy")
    if resource.share_mib or len({device.unit.gpu for device in resource.devices}) < len(resource.devices):
        return describe_policy(resource, policy, at)
    return f"the best connected GPUs{f', on as few NUMA nodes as possible{at}' * (policy == 'numa')}"


def _explain_unit(decision: UnitResource, resolved: ResolvedConfig, unavailable: Mapping[str, Text]) -> UnitExplanation:
    unit, name = decision.unit, decision.resource
    return UnitExplanation(
        index=unit.index,
        uuid=unit.id,
        model=unit.model,
        profile=unit.profile,
        resource=name,
        ids=tuple(decision.device_ids) if name else (),
        assignment_reason=f"{_naming_reason(decision, resolved)}{_sharing_reason(decision, resolved)}"
        if name
        else _not_offered_reason(decision, resolved),
        unavailable_reason=unavailable.get(unit.id, "") if name else "",
    )


def _naming_reason(decision: UnitResource, resolved: ResolvedConfig) -> str:
    settings = resolved.settings
    field, _, number = decision.deciding_setting.partition(".")
    if number:
        pattern = (settings.gpus if field == "gpus" else settings.mig)[int(number)].pattern
        return f"pattern {pattern!r}{_source_note(resolved, decision.deciding_setting)}"
    if decision.unit.kind != NVIDIA_GPU:
        return f"a {decision.unit.kind} device"
    if not decision.unit.profile:
        return f"a whole GPU{' that no pattern matches' * bool(settings.gpus)}"
    return f"migStrategy {settings.mig_strategy}{_source_note(resolved, decision.deciding_setting)}"


def _not_offered_reason(decision: UnitResource, resolved: ResolvedConfig) -> str:
    return f"{decision.not_offered_reason}{_source_note(resolved, decision.sharing_entry)}"


def _sharing_reason(decision: UnitResource, resolved: ResolvedConfig) -> str:
    if not decision.sharing_entry:
        return ""
    how = "".join(_describe_sharing(decision, resolved.settings)) if decision.is_shared else "not shared"
    return f", {how}{_source_note(resolved, decision.sharing_entry)}"


def _describe_sharing(decision: UnitResource, settings: Settings) -> Iterator[str]:
    yield f"{decision.replicas} share{'s' if decision.replicas > 1 else ''}"
    if grain := decision.share_mib:
        unit, over = settings.sharing.memory_unit, decision.unit.memory_mib % grain
        yield f" of {format_memory(grain, unit)}"
        yield f" ({format_memory(over, unit)} left over)" if over else ""
    if decision.is_shared_by_mps:
        yield "".join((" by MPS", *_describe_mps_settings(settings.sharing.mps)))
    if decision.distinct_gpus:
        yield ", the shares of a container are of different GPUs"
    entry = sharing_entry_by_name(settings.sharing)[decision.sharing_entry]
    if isinstance(entry, ReplicatedResource) and entry.time_slice:
        yield f", time slice {entry.time_slice}"


def _describe_mps_settings(how: MpsDaemonSettings) -> Iterator[str]:
    """The settings of MPS daemons that are not the defaults."""
    if how.compute_mode != MpsDaemonSettings().compute_mode:
        yield f", computeMode {how.compute_mode}"
    if how.multi_user:
        yield ", multiUser"
    if how.active_thread_percentage is not None:
        yield f", activeThreadPercentage {how.active_thread_percentage}"


OTHER_XIDS, EXAMPLE_OF_OTHER_XIDS = "xid-…", "xid-99999"
"""How the XIDs are shown that neither the catalogue nor the configuration names, and one of them as their example."""


def _fault_changes(resolved: ResolvedConfig) -> Iterator[FaultChange]:
    """The changed faults. Those with the same changes from the same places are grouped."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for code in _fault_codes(resolved.settings):
        if changes := _changed_fields(code, resolved):
            sources = tuple(dict.fromkeys(_fault_sources(code, changes, resolved)))
            alike.setdefault((", ".join(changes.values()), sources), []).append(
                OTHER_XIDS if code == EXAMPLE_OF_OTHER_XIDS else code
            )
    for (change, sources), codes in alike.items():
        yield FaultChange(codes=tuple(codes), change=change, sources=sources)


def _fault_codes(settings: Settings) -> Iterable[str]:
    listed = (
        number
        for field in judge.HEALTH_CHECK_VARIABLES
        for number in sorted(judge.parse_health_check_list(getattr(settings, field)).xids)
    )
    return dict.fromkeys(
        (*FAULTS.entries, *settings.faults, *(f"xid-{number}" for number in listed), EXAMPLE_OF_OTHER_XIDS)
    )


def _changed_fields(code: str, resolved: ResolvedConfig) -> dict[str, str]:
    """Field of the catalogue's entry for a fault → how the configuration changes it, for people.

    A fault that time does not clear has no time in the catalogue, so nothing is replaced there.
    """
    plain, judged = judge.effective_entry(code, None), judge.effective_entry(code, resolved.settings)
    keys = {field.name: field.encode_name for field in msgspec.structs.fields(FaultOverrideEntry)}
    fields = ((each, getattr(judged, each), getattr(plain, each)) for each in plain.__struct_fields__ if each in keys)
    timeless = {"clear_after"} if plain.clear_when != "time-passed" else set()
    return {
        field: f"{keys[field]} {_format_value(is_)}"
        + ("" if field in timeless else f" instead of {_format_value(was)}")
        for field, is_, was in fields
        if is_ != was
    }


def _format_value(value: object) -> str:
    return f"{value:g} s" if isinstance(value, int | float) else repr(value) if " " in str(value) else str(value)


def _fault_sources(code: str, fields: Iterable[str], resolved: ResolvedConfig) -> Iterator[str]:
    for field in fields:
        by = judge.overriding_variable(code, resolved.settings) if field == "severity" else ""
        yield resolved.sources[by or f"faults.{code}"]


def _source_note(resolved: ResolvedConfig, setting: str) -> str:
    return f" ({resolved.sources[setting]})" if setting in resolved.sources else ""


def _unused_pattern_notes(decisions: list[UnitResource], resolved: ResolvedConfig) -> Iterator[str]:
    used = {decision.deciding_setting for decision in decisions}
    for field, namings in (("gpus", resolved.settings.gpus), ("mig", resolved.settings.mig)):
        texts = {each.unit.profile if field == "mig" else each.unit.model for each in decisions}
        for i, naming in enumerate(namings):
            if f"{field}.{i}" not in used:
                why = _unused_pattern_reason(field, naming.pattern, texts - {""}, resolved.settings.mig_strategy)
                yield f"{resolved.sources[f'{field}.{i}']}: {why}"


def _unused_pattern_reason(field: str, pattern: str, texts: set[str], strategy: str) -> str:
    if field == "mig" and strategy == "none":
        return "migStrategy is none, so patterns of resources.mig have no effect"
    if any(matches_pattern(pattern, text) for text in texts):
        return (
            f"the pattern {pattern!r} has no effect: its devices on this machine are not offered, or an "
            "earlier pattern matches them"
        )
    return f"no {'profile' if field == 'mig' else 'model'} here matches {pattern!r}"


def _unused_sharing_notes(decisions: list[UnitResource], resolved: ResolvedConfig) -> Iterator[str]:
    named: dict[str, list[UnitResource]] = {}
    every = sharing_entry_by_name(resolved.settings.sharing)
    for decision in decisions:
        if decision.sharing_entry:
            named.setdefault(every[decision.sharing_entry].name, []).append(decision)
    for by, entry in every.items():
        fitting = [
            each
            for each in named.get(entry.name, ())
            if not entry.model or matches_pattern(entry.model, each.unit.model)
        ]
        if what := _describe_unobtained_devices(by, entry, fitting, resolved):
            yield f"{resolved.sources[by]}: {what}"


def _describe_unobtained_devices(
    by: str, entry: ReplicatedResource | MemorySharedResource, fitting: list[UnitResource], resolved: ResolvedConfig
) -> str:
    """Which devices an entry does not get, and why; "" if it gets all. `fitting`: the shared devices that match it."""
    taken = [decision for decision in fitting if decision.sharing_entry == by]
    others = [decision for decision in fitting if decision.sharing_entry != by]
    where = _sources_of_sharing(others, resolved)
    named = f"{entry.name} with a model that matches {entry.model!r}" if entry.model else entry.name
    match entry.devices:
        case None if taken:
            return ""
        case None if others:
            return f"all devices of {named} here are already shared by {where}"
        case None:
            return f"this machine has no device of {named}"
        case int(count):
            before = f"; {len(others)} already shared by {where}" if others else ""
            return (
                ""
                if len(taken) == count
                else f"the entry requests {count} devices of {named} but gets {len(taken)}{before}"
            )
        case references:
            missing = [each for each in references if not _has_device_with_reference(each, taken)]
            gone = [each for each in missing if _has_device_with_reference(each, others)]
            nowhere = ", ".join(each for each in missing if each not in gone)
            found = f"this machine has no device of {named} with the reference {nowhere}" if nowhere else ""
            where = _sources_of_sharing(
                [each for each in others if any(_has_device_with_reference(reference, [each]) for reference in gone)],
                resolved,
            )
            before = f"already shared by {where}: {', '.join(gone)}" if gone else ""
            return "; ".join(filter(None, (found, before)))


def _sources_of_sharing(decisions: Iterable[UnitResource], resolved: ResolvedConfig) -> str:
    return " and ".join(dict.fromkeys(resolved.sources[decision.sharing_entry] for decision in decisions))


def _has_device_with_reference(reference: str, decisions: Iterable[UnitResource]) -> bool:
    return any(reference in (decision.unit.id, decision.unit.index) for decision in decisions)


def _partly_shared_resource_notes(decisions: list[UnitResource]) -> Iterator[str]:
    shared = {decision.resource for decision in decisions if decision.is_shared}
    for name in sorted(
        {decision.resource for decision in decisions if not decision.is_shared and decision.resource in shared}
    ):
        yield (
            f"{name} names both whole devices and shares, and a pod cannot choose which it gets; set another "
            "name for the shares (rename)"
        )


def _memory_sharing_limit_notes(decisions: list[UnitResource], resolved: ResolvedConfig) -> Iterator[str]:
    """The limits of sharing memory."""
    memory = [decision for decision in decisions if decision.share_mib]
    if not memory:
        return
    kept = (
        "the MPS daemon limits the memory of each process, not of the whole container; a process that is not an MPS "
        "client has no limit; a process can change its limit in its environment"
        if resolved.settings.sharing.mps_limits_memory
        else "the memory limit of a share is not enforced; a container only reads it in its environment"
    )
    yield f"{resolved.sources['memory']}: {kept}"
    if len({decision.unit.gpu for decision in memory}) > 1:
        most = format_memory(
            max(each.replicas * each.share_mib for each in memory), resolved.settings.sharing.memory_unit
        )
        yield (
            f"{resolved.sources['memory']}: a container gets memory of one GPU only, at most {most}. The scheduler "
            "sees only the sum of all GPUs. If no single GPU has enough memory for a pod, kubelet refuses the pod "
            "when it starts"
        )


def _mps_notes(decisions: list[UnitResource], resolved: ResolvedConfig) -> Iterator[str]:
    """The requirements and limits of MPS."""
    by = next((decision.sharing_entry for decision in decisions if decision.is_shared_by_mps and decision.resource), "")
    if by:
        at = resolved.sources[by]
        yield f"{at}: {mps.ASSUMED_READY_NOTE}"
        yield (
            f"{at}: MPS does not isolate clients: a fault of one client ends all clients on its GPU; MPS limits "
            "apply to each process, and a process can remove its own limits"
        )
