"""An inspection: what an agent answers, put together for whoever asks."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from gpuplane.core.availability import standing
from gpuplane.core.containers.strategy import current_decision
from gpuplane.core.reports.inspection.clock import Clock
from gpuplane.core.reports.inspection.devices import MIB, devices, health_fields, node_health
from gpuplane.core.reports.readiness import not_ready_reason
from gpuplane.core.requests import driver_release_reason
from gpuplane.core.serving import standby_reason
from gpuplane.model.control import AgentInfo, NodeState
from gpuplane.model.inspection import (
    VERSION,
    Agent,
    Driver,
    HealthInspection,
    Inspection,
    Node,
    NotOffered,
    PartStatus,
    Release,
    Resource,
    Strategy,
)
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Resource as Offered


def inspection(state: NodeState, agent: AgentInfo, wall_time: float) -> Inspection:
    """The picture of an agent at `wall`, in seconds since 1970, when it was given."""
    clock, snapshot = Clock(state.now, wall_time), state.snapshot
    why, stand = not_ready_reason(snapshot), standing(snapshot, state.offer)
    return Inspection(
        version=VERSION,
        time=clock.to_utc(state.now),
        agent=_agent(snapshot, agent, clock),
        node=Node(name=agent.node).but(**health_fields(node_health(stand), clock)),
        ready=why is None,
        not_ready=why.text if why is not None else "",
        not_ready_code=why.code if why is not None else "",
        waiting=state.offer.waiting,
        waiting_code=state.offer.waiting_code,
        release=_release(snapshot, clock),
        driver=_driver(snapshot),
        device_list_strategy=_device_list_strategy(snapshot),
        resources=tuple(_resources(state)),
        devices=devices(state, stand, clock),
        not_offered=tuple(_not_offered(state)),
        parts=tuple(_parts(snapshot, clock)),
    )


def without_times(state: NodeState, agent: AgentInfo) -> Inspection:
    """The same without the time of asking: as long as it stays equal, there is nothing new to show."""
    whole = inspection(state.but(now=0.0), agent, 0.0)
    return whole.but(agent=whole.agent.but(generation=0))


def health_inspection(whole: Inspection) -> HealthInspection:
    """What of an inspection is about health."""
    return HealthInspection(
        version=whole.version, time=whole.time, node=whole.node, waiting=whole.waiting, devices=whole.devices
    )


def _agent(snapshot: Snapshot, agent: AgentInfo, clock: Clock) -> Agent:
    waits_for = standby_reason(snapshot)
    return Agent(
        version=agent.version,
        mode="standby" if waits_for else "serving",
        waits_for=waits_for,
        started=clock.to_utc_or_none(agent.started_at),
        generation=snapshot.generation,
    )


def _release(snapshot: Snapshot, clock: Clock) -> Release | None:
    why, release = driver_release_reason(snapshot), snapshot.ledger.release
    return Release(reason=why, until=clock.to_utc_or_none(release.until if release else None)) if why else None


def _driver(snapshot: Snapshot) -> Driver | None:
    driver = snapshot.machine.driver if snapshot.machine else None
    return None if driver is None else Driver(version=driver.version, cuda=driver.cuda)


def _device_list_strategy(snapshot: Snapshot) -> Strategy | None:
    decided = current_decision(snapshot)
    return None if decided is None else Strategy(strategies=decided.strategies, reason=decided.reason)


def _resources(state: NodeState) -> Iterator[Resource]:
    allocations = state.snapshot.allocations
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
    if resource.mps:
        return "mps"
    return "time-slicing" if resource.shared else "none"


def _not_offered(state: NodeState) -> Iterator[NotOffered]:
    for left in state.offer.not_offered:
        yield NotOffered(index=left.index, uuid=left.device, kind=left.kind, code=left.code, reason=left.reason)


def _parts(snapshot: Snapshot, clock: Clock) -> Iterator[PartStatus]:
    for name, status in sorted((part.name, status) for part, status in snapshot.status.items()):
        since = clock.to_utc(status.since)
        yield PartStatus(name=name, standing=status.state, code=status.code, reason=status.text, since=since)
