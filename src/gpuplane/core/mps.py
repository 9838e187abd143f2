"""MPS: which control daemons a node wants, and why a unit shared by them must not be given out.

- One daemon for each resource, for a container's ids may be of several GPUs, and a client speaks to one daemon. MIG
  devices have one each: a CUDA program uses one of them at most, and a daemon serves no more.
- What a container may be a client of is never restarted or ended for our convenience. So beside what is wanted stands
  what is held: kubelet knows of a container before it computes, and while it does not.
- A device in trouble is left out of its daemon. A server that cannot open one of its devices serves none of them; and
  where the driver has to be let go of, no daemon is wanted.
- So is one that a container holds otherwise than as a client of this very daemon, from before the configuration said
  so: no server would get it, and its compute mode must not change under that container.
- Nothing is wanted before enough is known. The last wish stands over our restart, for nobody tells the daemons of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from gpuplane.core.health.context import health_context
from gpuplane.core.health.reasons import unavailable_reasons
from gpuplane.core.inventory.resources import list_resources
from gpuplane.core.shares import unit_of
from gpuplane.core.view import part_view, view
from gpuplane.core.withholding import withheld, without_allocations
from gpuplane.model import sharelayout
from gpuplane.model.config import Mps, Settings
from gpuplane.model.machine import Machine
from gpuplane.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons
from gpuplane.model.sharelayout import EncodedLayout
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import (
    MPS_COMPUTE_MODES,
    MPS_REQUESTS,
    MPS_SUPERVISOR,
    AnyPart,
    ComputeModeStatus,
    MpsDaemonStatus,
    Part,
    State,
    Status,
    Statuses,
    mps_daemon,
)
from gpuplane.model.views import Reason, ReasonKind, Resource, Unit

PATIENCE = 5.0
"""Seconds without a word of the supervisor after which nobody knows how its daemons stand."""

SILENT = "no MPS supervisor is seen at {}: run gpuplane mps there"

AS_IF = (
    "MPS is shown as if its daemons served; they need the supervisor, gpuplane mps, beside the agent, and without it "
    "all that is shared by MPS is unhealthy"
)
"""What has to be said beside what `served` makes of a node."""


@view
def wanted(snapshot: Snapshot) -> WantedDaemons | None:
    """The daemons that this node wants; None while too little is known to say."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if machine is None or machine.gpus is None or settings is None or snapshot.allocations is None:
        return None
    ill, share_layouts = _ill(without_allocations(snapshot)), snapshot.ledger.share_layouts or {}
    clients = {
        (_of(each.resource, id), unit_of(id))
        for each in snapshot.allocations
        for id in each.devices
        if id != unit_of(id) and _may_be_client(share_layouts.get(unit_of(id)))  # else it is a share of another kind
    }
    others = {unit_of(id) for name, id in withheld(snapshot) if (_of(name, id), unit_of(id)) not in clients}
    held = sorted({name for name, _ in clients})
    resources, _ = list_resources.of(snapshot, machine, settings)
    return WantedDaemons(daemons=_daemons.of(snapshot, resources, machine, settings, ill | others), in_use=tuple(held))


def _may_be_client(layout: EncodedLayout | None) -> bool:
    """Whether a container that holds a share of a unit with this layout may be a client of a daemon."""
    held = sharelayout.UNKNOWN if layout is None else sharelayout.decode(layout)
    return held.mps or held == sharelayout.UNKNOWN


def _of(resource: str, id: str) -> str:
    """The daemon of which a container is a client that holds this id, if it is of one."""
    return unit_of(id) if id.startswith("MIG-") else resource


def daemon(resource: str, unit: Unit) -> str:
    """The name of the daemon of which a container is a client that holds this unit of a resource."""
    return unit.id if unit.profile else resource


def directory(name: str) -> str:
    """Where a daemon has its pipe, log and shm directories, below the MPS root.

    A resource's is NVIDIA's, nvidia.com/gpu. A MIG device's has no resource's name in it: paths of sockets are short.
    """
    return name.replace("/", "_") if name.startswith("MIG-") else name


def reason(snapshot: Snapshot, resource: str, unit: Unit) -> Reason | None:
    """Why a unit of a resource shared by MPS must not be given out now; None if it may."""
    name = daemon(resource, unit)
    if down := _down(snapshot, name):
        return down.but(text=f"MPS: {down.text}")
    part = daemon_part(name)
    status = snapshot.status.of(part)
    if status is not None and unit.id in status.devices:
        return None
    return Reason(
        kind="held", text="MPS: the control daemon runs without this device", part=part.name, code="mps-without-device"
    )


def leaving(snapshot: Snapshot, unit: Unit) -> Reason | None:
    """Why a unit that is not shared by MPS must wait for the end of MPS on its GPU; None if it need not."""
    modes = snapshot.status.of(MPS_COMPUTE_MODES)
    if modes is None or unit.gpu not in modes.exclusive:
        return None
    text = "MPS: the compute mode of its GPU is not restored yet"
    if modes.state == "ok":
        return Reason(kind="held", text=text, part=MPS_COMPUTE_MODES.name, code="mps-compute-mode")
    return Reason(kind="problem", text=f"{text}: {modes.text}", part=MPS_COMPUTE_MODES.name, code="mps-compute-mode")


def unready(snapshot: Snapshot) -> Reason | None:
    """Why some of what is shared by MPS is not served; None if all is."""
    wishes = wanted(snapshot)
    down = ((each.name, _down(snapshot, each.name)) for each in (wishes.daemons if wishes else ()))
    return next((why.but(text=f"MPS of {name}: {why.text}") for name, why in down if why), None)


def _down(snapshot: Snapshot, name: str) -> Reason | None:
    """Why nobody can become a client of a daemon now; None if it serves."""
    parts: tuple[tuple[AnyPart, str], ...] = (
        (MPS_REQUESTS, ""),
        (MPS_SUPERVISOR, "supervisor"),
        (daemon_part(name), "control daemon"),
    )
    for part, who in parts:
        status = snapshot.status.get(part)
        if status is None and who:
            return Reason(kind="waiting", text=f"its {who} has not been seen yet", part=part.name, code="mps-not-seen")
        if status is not None and status.state != "ok":
            kind: ReasonKind = "problem" if status.state == "failing" else "waiting"
            return Reason(kind=kind, text=status.text, part=part.name, code="mps-not-serving")
    return None


def statuses(
    wishes: WantedDaemons, status: SupervisorStatus | None, where: str, now: float
) -> Mapping[AnyPart, Status]:
    """Part → its status, as the supervisor reported last; nothing where there is nothing to supervise."""
    if status is not None and status.at > now:  # of an earlier boot
        status = None
    has_changed_modes = status is not None and (status.exclusive or status.problem)
    modes: dict[AnyPart, Status] = {MPS_COMPUTE_MODES: _modes(status)} if status and has_changed_modes else {}
    if not (wishes.daemons or modes or (status is not None and status.daemons)):
        return {}
    if status is None or now - status.at > PATIENCE:
        return {MPS_SUPERVISOR: Status("failing", SILENT.format(where)), **modes}
    daemons = {daemon_part(each.name): _daemon_status(each) for each in status.daemons}
    return {MPS_SUPERVISOR: Status("ok", f"process {status.pid}"), **modes, **daemons}


def served(snapshot: Snapshot) -> Snapshot:
    """The node when all daemons run that it wants: a configuration is not at fault for what does not run yet."""
    wishes = wanted(snapshot) or WantedDaemons()
    running = (
        DaemonStatus(name=each.name, state="ok", reason="", devices=tuple(each.devices)) for each in wishes.daemons
    )
    daemons = {daemon_part(each.name): _daemon_status(each) for each in running}
    supervisor = {MPS_SUPERVISOR: Status("ok")} if daemons else {}
    return snapshot.but(status=Statuses({**snapshot.status, **supervisor, **daemons}))


def _modes(status: SupervisorStatus) -> ComputeModeStatus:
    state: State = "failing" if status.problem else "ok"
    return ComputeModeStatus(state, status.problem or "compute modes are changed", exclusive=status.exclusive)


def _daemon_status(daemon: DaemonStatus) -> MpsDaemonStatus:
    return MpsDaemonStatus(daemon.state, daemon.reason, devices=daemon.devices)


def daemon_part(name: str) -> Part[MpsDaemonStatus]:
    """The part that a daemon is."""
    return mps_daemon(directory(name))


@view
def _ill(snapshot: Snapshot) -> frozenset[str]:
    """Devices that health does not give out."""
    return frozenset(_troubled(snapshot))


def _troubled(snapshot: Snapshot) -> Iterator[str]:
    context = health_context(snapshot)
    for gpu in snapshot.gpus:
        if unavailable_reasons(snapshot, context, gpu):
            yield gpu.uuid
        for part in gpu.mig_devices:
            if unavailable_reasons(snapshot, context, gpu, part):
                yield part.uuid


@part_view
def _daemons(
    resources: tuple[Resource, ...], machine: Machine, settings: Settings, without: frozenset[str]
) -> tuple[MpsDaemon, ...]:
    partitioned = {gpu.uuid for gpu in machine.gpus or () if gpu.mig_enabled}
    return tuple(
        _daemon(name, devices, resource.share_mib > 0, settings.sharing.mps, partitioned)
        for resource in resources
        if resource.mps
        for name, devices in _by_daemon(resource, without).items()
    )


def _by_daemon(resource: Resource, without: Set[str]) -> Mapping[str, Sequence[Unit]]:
    """Daemon → the unit of each share that it serves."""
    found: dict[str, list[Unit]] = {}
    for device in resource.devices:
        if device.id != device.unit.id and without.isdisjoint((device.unit.id, device.unit.gpu)):
            found.setdefault(daemon(resource.name, device.unit), []).append(device.unit)
    return found


def _daemon(name: str, shares: Sequence[Unit], memory: bool, how: Mps, partitioned: Set[str]) -> MpsDaemon:
    """Shares of memory have their limits with them, in the environment of their container."""
    units = {unit.id: unit for unit in shares}
    counts = Counter(unit.id for unit in shares)
    fair = 100 if memory else 100 // max(counts.values())
    return MpsDaemon(
        name=name,
        devices={id: 0 if memory else unit.memory_mib // counts[id] for id, unit in units.items()},
        active_thread_percentage=fair if how.active_thread_percentage is None else how.active_thread_percentage,
        multi_user=how.multi_user,
        exclusive=how.compute_mode == "exclusive" and partitioned.isdisjoint(unit.gpu for unit in units.values()),
    )
