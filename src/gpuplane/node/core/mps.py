"""MPS: which control daemons a node should run, and why a unit that is shared by them is not available.

- One daemon for each resource: a container's ids can be of several GPUs, and a client uses one daemon. MIG devices have
  one daemon each: a CUDA program uses at most one of them, and a daemon serves only one.
- A daemon that can have clients is never restarted or ended for our convenience. So the desired state also has the
  daemons in use: kubelet knows a container before it computes, and while it does not.
- An unavailable device is left out of its daemon: a server that cannot open one of its devices serves none. If the
  driver has to be released, no daemon is desired.
- A device is also left out before it goes, because the MIG layout of its GPU is changed.
- A device is also left out while a container holds it in another way than as a client of this daemon, from before a
  change of the configuration: the server could not use it, and its compute mode must not change under that container.
- Nothing is desired before enough is known. The last desired state stays in force over our restart: the supervisor
  does not learn of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.health.context import health_context
from gpuplane.node.core.health.reasons import unavailable_reasons
from gpuplane.node.core.inventory.resources import node_resources
from gpuplane.node.core.partitions.plans import withdrawn_units
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.view import part_view, view, without_allocations
from gpuplane.node.core.withholding import withheld_reasons
from gpuplane.node.model import sharelayout
from gpuplane.node.model.config import MpsDaemonSettings, Settings
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons
from gpuplane.node.model.sharelayout import EncodedLayout
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import (
    MPS_COMPUTE_MODES_PART,
    MPS_REQUESTS_PART,
    MPS_SUPERVISOR_PART,
    AnyPart,
    ComputeModeStatus,
    MpsDaemonStatus,
    Part,
    PartState,
    Status,
    Statuses,
    mps_daemon_part,
)
from gpuplane.node.model.views import Reason, ReasonKind, Resource, Unit

SUPERVISOR_TIMEOUT_S = 5.0
"""Seconds without a report after which the state of the supervisor's daemons is unknown."""

NO_SUPERVISOR = "no MPS supervisor serves the directory {}: run gpuplane mps with this directory as --root"

ASSUMED_READY_NOTE = (
    "this result assumes that the MPS daemons are ready. They need the supervisor (gpuplane mps) on this node. "
    "Without the supervisor, all devices shared by MPS are unhealthy"
)
"""The note to show with the result of `assume_daemons_ready`."""


@view
def desired_daemons(snapshot: Snapshot) -> WantedDaemons | None:
    """The daemons that this node should run; None while too little is known."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if machine is None or machine.gpus is None or settings is None or (held := held_allocations(snapshot)) is None:
        return None
    unavailable, share_layouts = (
        _unavailable_device_uuids(without_allocations(snapshot)),
        snapshot.ledger.share_layouts or {},
    )
    clients = {
        (_daemon_of_id(each.resource, id), unit_of(id))
        for each in held
        for id in each.devices
        if id != unit_of(id) and _may_be_client(share_layouts.get(unit_of(id)))  # else it is a share of another kind
    }
    others = {
        unit_of(id) for name, id in withheld_reasons(snapshot) if (_daemon_of_id(name, id), unit_of(id)) not in clients
    }
    others |= withdrawn_units(snapshot).keys() - {unit for _, unit in clients}
    in_use = sorted({name for name, _ in clients})
    resources, _ = node_resources(snapshot, settings)
    return WantedDaemons(
        daemons=_build_daemon_per_resource_or_mig.of(snapshot, resources, machine, settings, unavailable | others),
        daemons_in_use=tuple(in_use),
    )


def _may_be_client(layout: EncodedLayout | None) -> bool:
    """Whether a container that holds a share of a unit with this layout can be a client of a daemon."""
    held = sharelayout.UNKNOWN if layout is None else sharelayout.decode(layout)
    return held.uses_mps or held == sharelayout.UNKNOWN


def _daemon_of_id(resource: str, id: str) -> str:
    """The name of the daemon that serves this device id, if one does."""
    return unit_of(id) if id.startswith("MIG-") else resource


def daemon_name(resource: str, unit: Unit) -> str:
    """The name of the daemon that serves this unit of a resource."""
    return unit.id if unit.profile else resource


def daemon_directory(name: str) -> str:
    """The path below the MPS root with a daemon's pipe, log and shm directories.

    That of a resource is NVIDIA's: nvidia.com/gpu. That of a MIG device has no resource in it: socket paths are short.
    """
    return name.replace("/", "_") if name.startswith("MIG-") else name


def unavailable_reason(snapshot: Snapshot, resource: str, unit: Unit) -> Reason | None:
    """Why a unit of a resource shared by MPS is not available now; None if it is."""
    name = daemon_name(resource, unit)
    if down := _daemon_down_reason(snapshot, name):
        return down.but(text=f"MPS: {down.text}")
    part = daemon_part(name)
    status = snapshot.statuses.of(part)
    if status is not None and unit.id in status.devices:
        return None
    return Reason(
        kind="held", text="MPS: the control daemon runs without this device", part=part.name, code="mps-without-device"
    )


def compute_mode_reason(snapshot: Snapshot, unit: Unit) -> Reason | None:
    """Why a unit that is no longer shared by MPS is not available yet: its GPU's compute mode; None if it is."""
    modes = snapshot.statuses.of(MPS_COMPUTE_MODES_PART)
    if modes is None or unit.gpu not in modes.exclusive_gpus:
        return None
    text = "MPS: the compute mode of its GPU is not restored yet"
    if modes.state == "ok":
        return Reason(kind="held", text=text, part=MPS_COMPUTE_MODES_PART.name, code="mps-compute-mode")
    return Reason(
        kind="problem", text=f"{text}: {modes.text}", part=MPS_COMPUTE_MODES_PART.name, code="mps-compute-mode"
    )


def not_ready_reason(snapshot: Snapshot) -> Reason | None:
    """Why some daemon is not ready; None if all are."""
    desired = desired_daemons(snapshot)
    down = ((each.name, _daemon_down_reason(snapshot, each.name)) for each in (desired.daemons if desired else ()))
    return next((why.but(text=f"MPS of {name}: {why.text}") for name, why in down if why), None)


def _daemon_down_reason(snapshot: Snapshot, name: str) -> Reason | None:
    """Why a daemon accepts no clients now; None if it does."""
    parts: tuple[tuple[AnyPart, str], ...] = (
        (MPS_REQUESTS_PART, ""),
        (MPS_SUPERVISOR_PART, "supervisor"),
        (daemon_part(name), "control daemon"),
    )
    for part, who in parts:
        status = snapshot.statuses.get(part)
        if status is None and who:
            return Reason(
                kind="waiting", text=f"the MPS {who} has not reported yet", part=part.name, code="mps-not-seen"
            )
        if status is not None and status.state != "ok":
            kind: ReasonKind = "problem" if status.state == "failing" else "waiting"
            return Reason(kind=kind, text=status.text, part=part.name, code="mps-not-serving")
    return None


def part_statuses(
    desired: WantedDaemons, status: SupervisorStatus | None, where: str, now: float
) -> Mapping[AnyPart, Status]:
    """Part → its status, as the supervisor reported last; {} if there is nothing to supervise."""
    if status is not None and status.at > now:  # of an earlier boot
        status = None
    has_changed_modes = status is not None and (status.exclusive_gpus or status.problem)
    modes: dict[AnyPart, Status] = (
        {MPS_COMPUTE_MODES_PART: _compute_mode_status(status)} if status and has_changed_modes else {}
    )
    if not (desired.daemons or modes or (status is not None and status.daemons)):
        return {}
    if status is None or now - status.at > SUPERVISOR_TIMEOUT_S:
        return {MPS_SUPERVISOR_PART: Status("failing", NO_SUPERVISOR.format(where)), **modes}
    daemons = {daemon_part(each.name): _daemon_status(each) for each in status.daemons}
    return {MPS_SUPERVISOR_PART: Status("ok", f"process {status.pid}"), **modes, **daemons}


def assume_daemons_ready(snapshot: Snapshot) -> Snapshot:
    """The node as if all desired daemons were ready: to judge a configuration, not what runs now."""
    desired = desired_daemons(snapshot) or WantedDaemons()
    running = (
        DaemonStatus(name=each.name, state="ok", reason="", devices=tuple(each.client_memory_mib_by_device))
        for each in desired.daemons
    )
    daemons = {daemon_part(each.name): _daemon_status(each) for each in running}
    supervisor = {MPS_SUPERVISOR_PART: Status("ok")} if daemons else {}
    return snapshot.but(statuses=Statuses({**snapshot.statuses, **supervisor, **daemons}))


def _compute_mode_status(status: SupervisorStatus) -> ComputeModeStatus:
    state: PartState = "failing" if status.problem else "ok"
    return ComputeModeStatus(state, status.problem or "compute modes are changed", exclusive_gpus=status.exclusive_gpus)


def _daemon_status(reported: DaemonStatus) -> MpsDaemonStatus:
    return MpsDaemonStatus(reported.state, reported.reason, devices=reported.devices)


def daemon_part(name: str) -> Part[MpsDaemonStatus]:
    """The part for a daemon."""
    return mps_daemon_part(daemon_directory(name))


@view
def _unavailable_device_uuids(snapshot: Snapshot) -> frozenset[str]:
    """The UUIDs of devices that are unavailable because of their health."""
    return frozenset(_iterate_unavailable_uuids(snapshot))


def _iterate_unavailable_uuids(snapshot: Snapshot) -> Iterator[str]:
    context = health_context(snapshot)
    for gpu in snapshot.gpus:
        if unavailable_reasons(snapshot, context, gpu):
            yield gpu.uuid
        for part in gpu.mig_devices:
            if unavailable_reasons(snapshot, context, gpu, part):
                yield part.uuid


@part_view
def _build_daemon_per_resource_or_mig(
    resources: tuple[Resource, ...], machine: Machine, settings: Settings, without: frozenset[str]
) -> tuple[MpsDaemon, ...]:
    partitioned = {gpu.uuid for gpu in machine.gpus or () if gpu.mig_enabled}
    return tuple(
        _build_daemon(name, devices, resource.share_mib > 0, settings.sharing.mps, partitioned)
        for resource in resources
        if resource.uses_mps
        for name, devices in _units_by_daemon(resource, without).items()
    )


def _units_by_daemon(resource: Resource, without: Set[str]) -> Mapping[str, Sequence[Unit]]:
    """Daemon → the units that it serves, once for each share."""
    found: dict[str, list[Unit]] = {}
    for device in resource.devices:
        if device.is_share and without.isdisjoint((device.unit.id, device.unit.gpu)):
            found.setdefault(daemon_name(resource.name, device.unit), []).append(device.unit)
    return found


def _build_daemon(
    name: str, shares: Sequence[Unit], memory: bool, how: MpsDaemonSettings, partitioned: Set[str]
) -> MpsDaemon:
    """The limits of memory shares are in their container's environment, so the daemon has none for them."""
    units = {unit.id: unit for unit in shares}
    counts = Counter(unit.id for unit in shares)
    fair = 100 if memory else 100 // max(counts.values())
    return MpsDaemon(
        name=name,
        client_memory_mib_by_device={id: 0 if memory else unit.memory_mib // counts[id] for id, unit in units.items()},
        active_thread_percentage=fair if how.active_thread_percentage is None else how.active_thread_percentage,
        multi_user=how.multi_user,
        exclusive_compute_mode=how.compute_mode == "exclusive"
        and partitioned.isdisjoint(unit.gpu for unit in units.values()),
    )
