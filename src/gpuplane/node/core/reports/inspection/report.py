"""An inspection: what an agent answers, put together for whoever asks."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from gpuplane.base.text import join
from gpuplane.node.core.advertising import missing_kind_reasons
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.availability import device_health_with_availability
from gpuplane.node.core.commands import RESUME, WITHDRAW, command_line
from gpuplane.node.core.containers.strategy import decision_if_inputs_known
from gpuplane.node.core.dra.twice import devices_offered_twice
from gpuplane.node.core.partitions.desired import MIG_LABEL, requested_name
from gpuplane.node.core.partitions.progress import partitions_progress
from gpuplane.node.core.reports.inspection.clock import CLOCK_WITH_BOOT_AT_EPOCH, Clock
from gpuplane.node.core.reports.inspection.devices import MIB, health_fields, inspect_devices, node_health
from gpuplane.node.core.reports.migstate import mig_state
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model.control import AgentInfo, NodeState
from gpuplane.node.model.inspection import (
    VERSION,
    Agent,
    Driver,
    HealthInspection,
    Inspection,
    Kind,
    Node,
    NotOffered,
    PartStatus,
    Release,
    RequestedLayouts,
    Resource,
    Strategy,
)
from gpuplane.node.model.machine import NVIDIA_GPU
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import Resource as Offered


def build_inspection(state: NodeState, agent: AgentInfo, wall_time: float) -> Inspection:
    """What `gpuplane inspect` shows of an agent. `wall_time`: when `state` was answered, in seconds since 1970."""
    return _inspect(state, agent, Clock(state.now, wall_time))


def inspection_without_times(state: NodeState, agent: AgentInfo) -> Inspection:
    """The same without the time of asking: as long as it stays equal, there is nothing new to show."""
    whole = _inspect(state, agent, CLOCK_WITH_BOOT_AT_EPOCH)
    return whole.but(time=CLOCK_WITH_BOOT_AT_EPOCH.to_utc(0.0), agent=whole.agent.but(generation=0))


def _inspect(state: NodeState, agent: AgentInfo, clock: Clock) -> Inspection:
    snapshot = state.snapshot
    why, stand = not_ready_reason(snapshot), device_health_with_availability(snapshot, state.offer)
    return Inspection(
        version=VERSION,
        time=clock.to_utc(state.now),
        agent=_inspect_agent(snapshot, agent, clock),
        node=Node(name=agent.node).but(**health_fields(node_health(stand), clock)),
        ready=why is None,
        not_ready_reason=why.text if why is not None else "",
        not_ready_code=why.code if why is not None else "",
        waiting_reason=state.offer.waiting_reason,
        waiting_code=state.offer.waiting_code,
        release=_driver_release(snapshot, agent.node, clock),
        layouts=_requested_layouts(snapshot, agent.node),
        unlisted=snapshot.machine.unlisted if snapshot.machine is not None else {},
        driver=_inspect_driver(snapshot),
        device_list_strategy=_device_list_strategy(snapshot),
        kinds=tuple(_inspect_kinds(snapshot)),
        resources=tuple(_inspect_resources(state)),
        devices=inspect_devices(state, stand, clock),
        not_offered=tuple(_inspect_not_offered(state)),
        offered_twice=tuple(uuid for uuid, _ in devices_offered_twice(snapshot)),
        parts=tuple(_inspect_parts(snapshot, clock)),
    )


def health_inspection(inspection: Inspection) -> HealthInspection:
    """What of an inspection is about health."""
    return HealthInspection(
        version=inspection.version,
        time=inspection.time,
        node=inspection.node,
        waiting_reason=inspection.waiting_reason,
        devices=inspection.devices,
    )


def _inspect_agent(snapshot: Snapshot, agent: AgentInfo, clock: Clock) -> Agent:
    waits_for = standby_reason(snapshot)
    return Agent(
        version=agent.version,
        mode="standby" if waits_for else "serving",
        waits_for=waits_for,
        started=clock.to_utc_or_none(agent.started_at),
        generation=snapshot.generation,
    )


def _driver_release(snapshot: Snapshot, node: str, clock: Clock) -> Release | None:
    why, release = driver_release_reason(snapshot), snapshot.ledger.release
    if not why:
        return None
    if release is not None:
        return Release(why, clock.to_utc(release.until), command_line(RESUME, snapshot.state_dir))
    annotation = command_line(("kubectl", "annotate", "node", node or "NODE", "gpuplane.io/driver-release-"))
    return Release(why, None, f"{annotation}, or remove the label nvidia.com/gpu.deploy.device-plugin if that is set")


def _requested_layouts(snapshot: Snapshot, node: str) -> RequestedLayouts | None:
    label, request = requested_name(snapshot), snapshot.ledger.layout_request
    if not label and request is None:
        return None
    label_command = ("kubectl", "label", "node", node or "NODE", f"{MIG_LABEL}-")
    progress = partitions_progress(snapshot)
    left = [each.reason for each in progress.gpus if each.state != "done"] if progress is not None else []
    return RequestedLayouts(
        config=label or (request.name if request is not None else ""),
        requested_by="label" if label else "command",
        state=mig_state(progress) if progress is not None else "pending",
        reason=join("; ", [progress.problem] if progress is not None and progress.problem else left),
        withdraw=command_line(label_command if label else WITHDRAW, snapshot.state_dir),
    )


def _inspect_driver(snapshot: Snapshot) -> Driver | None:
    driver = snapshot.machine.driver if snapshot.machine else None
    return None if driver is None else Driver(version=driver.version, cuda=driver.cuda)


def _device_list_strategy(snapshot: Snapshot) -> Strategy | None:
    decided, settings = decision_if_inputs_known(snapshot), snapshot.config.settings
    if decided is None or settings is None:
        return None
    return Strategy(strategies=decided.strategies, reason=decided.reason, stand_ins=settings.stand_ins)


def _inspect_kinds(snapshot: Snapshot) -> Iterator[Kind]:
    """The GPUs, and each other kind that the agent knows or was told of."""
    missing, counts = missing_kind_reasons(snapshot), {NVIDIA_GPU: len(snapshot.gpus)}
    counts |= {kind: len(found.devices or ()) for kind, found in snapshot.devices.items()}
    for kind, count in counts.items():
        why = missing.get(kind)
        code, text = ("", "") if why is None else (why.code, why.text)
        yield Kind(name=kind, devices=count, counted=why is None, code=code, reason=text)


def _inspect_resources(state: NodeState) -> Iterator[Resource]:
    allocations = held_allocations(state.snapshot)
    held = Counter(each.resource for each in allocations or () for _ in each.devices)
    for resource in state.offer.resources:
        healthy = sum(not device.reasons for device in resource.devices)
        yield Resource(
            name=resource.name,
            devices=len(resource.devices),
            healthy=healthy,
            unhealthy=len(resource.devices) - healthy,
            held=None if allocations is None else held[resource.name],
            sharing=_sharing_kind(resource),
            share_memory_bytes=resource.share_mib * MIB or None,
        )


def _sharing_kind(resource: Offered) -> Literal["none", "time-slicing", "mps", "memory"]:
    if resource.share_mib:
        return "memory"
    if resource.uses_mps:
        return "mps"
    return "time-slicing" if resource.shared else "none"


def _inspect_not_offered(state: NodeState) -> Iterator[NotOffered]:
    for left in state.offer.not_offered:
        yield NotOffered(index=left.index, uuid=left.device, reason_kind=left.kind, code=left.code, reason=left.reason)


def _inspect_parts(snapshot: Snapshot, clock: Clock) -> Iterator[PartStatus]:
    for name, status in sorted((part.name, status) for part, status in snapshot.statuses.items()):
        since = clock.to_utc(status.since)
        yield PartStatus(name=name, state=status.state, code=status.code, reason=status.text, since=since)
