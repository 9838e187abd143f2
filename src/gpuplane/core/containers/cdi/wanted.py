"""Which specifications this node's configuration wants, what of older ones stays for whom, and whom they fail.

Rules that must stay put:
- Nothing goes for lack of knowledge. Before the machine and the configuration are known, and while `auto` does not know
  the runtime, files are left as they are; before it is known what containers hold, nothing is taken out of them.
- What a container holds stays, whatever is wanted: kubelet names it again at every restart of that container. So it is
  kept as the machine is now, and as it was where the machine has it no longer. Kubelet holds UUIDs, so a device that
  is named otherwise (an index, a channel, a feature) stays while any container holds anything.
- Two files that define one device make it nobody's. What another file defines is left to it, and not given out while
  that is so. Only what this machine could not describe again stays.
- A device is given out once the disk has what is wanted of it now. The common part of a file may change under it.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.core.containers.cdi import condition
from gpuplane.core.containers.cdi.driverfiles import LIBCUDA_PREFIX
from gpuplane.core.containers.cdi.names import VENDOR, qualified_name
from gpuplane.core.containers.cdi.specbuilder import BuiltSpec, build_spec
from gpuplane.core.containers.cdi.specrequest import HookProgram, Mode, SpecRequest
from gpuplane.core.containers.cdi.version import lowest_version
from gpuplane.core.containers.strategy import effective_strategies
from gpuplane.core.requests import node_requests
from gpuplane.core.shares import unit_of
from gpuplane.core.text import format_count
from gpuplane.core.view import part_view, view
from gpuplane.model.cdi import CdiDevice, Spec
from gpuplane.model.config import Settings
from gpuplane.model.machine import Machine
from gpuplane.model.reasons import ReasonCode
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.status import CDI_FILES, AnyPart, CdiConflictStatus, Part, cdi_conflict
from gpuplane.model.text import Text
from gpuplane.model.value import Value
from gpuplane.model.views import Reason, Unit

GPU = f"{VENDOR}/gpu"
FEATURES: tuple[Mode, ...] = ("gdrcopy", "gds", "mofed")
"""Each by the setting of that name; its only device is `all`."""

WRITING = "CDI: its specification is being written"
WAY_OUT = "a runtime takes no device that two files define; remove it from that file"
UUIDS = ("GPU-", "MIG-")


@view
def wanted(snapshot: Snapshot) -> Mapping[str, BuiltSpec]:
    """Kind → document, for each kind that the strategies in force name. {} where they name none."""
    by_cdi = condition.kept(snapshot) and any(each.startswith("cdi-") for each in effective_strategies(snapshot))
    return _described(snapshot) if by_cdi else {}


def _described(snapshot: Snapshot) -> Mapping[str, BuiltSpec]:
    """Kind → document, of all that the configuration names; {} before enough is known."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if machine is None or machine.gpus is None or settings is None:
        return {}
    return _documents.of(snapshot, machine, tuple(_requests(settings, condition.hook(snapshot))))


@part_view
def _documents(machine: Machine, requests: tuple[SpecRequest, ...]) -> Mapping[str, BuiltSpec]:
    return {request.kind: build_spec(machine, request) for request in requests}


def _requests(settings: Settings, ours: str) -> Iterator[SpecRequest]:
    """`ours`: our hook's path, "" where it is not installed."""
    request = SpecRequest(
        kind=GPU,
        naming=(settings.device_id_strategy,),
        driver_root=settings.driver_root,
        dev_root=settings.dev_root,
        hook_program=_program(settings, ours),
        disabled_hooks=settings.cdi_disabled_hooks,
        feature_flags=settings.cdi_features,
    )
    yield request
    if channels := tuple(map(str, settings.imex_channels)):
        yield request.but(kind=f"{VENDOR}/imex-channel", mode="imex", ids=channels)
    for feature in FEATURES:
        if getattr(settings, feature):
            yield request.but(kind=f"{VENDOR}/{feature}", mode=feature)


def _program(settings: Settings, ours: str) -> HookProgram | None:
    if settings.cdi_hook == "nvidia":
        return HookProgram(path=settings.cdi_hook_path, is_nvidia=True)
    return HookProgram(path=ours) if ours and settings.cdi_hook == "auto" else None


def absent(snapshot: Snapshot) -> frozenset[str]:
    """The features that are configured and that this machine has not: no container is given their devices."""
    return frozenset(kind.partition("/")[2] for kind, each in wanted(snapshot).items() if each.spec is None)


def notes(snapshot: Snapshot) -> Iterator[Text]:
    """What is worth saying of what is wanted: what containers may miss."""
    for kind, each in wanted(snapshot).items():
        yield from each.notes
        if kind != GPU:
            yield from (f"{kind.partition('/')[2]}: {what}: {why}" for what, why in each.omitted.items())


def summary(specs: Iterable[Spec]) -> str:
    """What files hold, in few words: "8 devices, driver 580.95.05"."""
    gpus = [spec for spec in specs if spec.kind == GPU]
    count = sum(len(spec.devices) for spec in gpus)
    libraries = (mount.host_path.rpartition(LIBCUDA_PREFIX) for spec in gpus for mount in spec.container_edits.mounts)
    version = next((f", driver {version}" for _, found, version in libraries if found), "")
    return f"{format_count(count, 'device')}{version}"


def known(snapshot: Snapshot) -> bool:
    """Whether machine and configuration are known, and with them what is wanted."""
    machine = snapshot.machine
    return machine is not None and machine.gpus is not None and snapshot.config.settings is not None


def merged(snapshot: Snapshot, kind: str, there: Spec | None) -> Spec | None:
    """What a kind's file shall hold that holds `there` now; None for no file.

    That is what is wanted, and of `there` each device that is not wanted but that some container holds: as the machine
    would be described now, so far as it has that device and is described at all.
    """
    if not known(snapshot) or (not wanted(snapshot) and _undecided(snapshot)):
        return there
    spec = _spec(wanted(snapshot), kind)
    now = spec or (_spec(_described(snapshot), kind) if there else None)
    names = {device.name for device in spec.devices} if spec is not None else set()
    fresh = {device.name: device for device in now.devices} if now is not None else {}
    left = (each for each in (there.devices if there else ()) if each.name not in names)
    others = condition.conflicts(snapshot)
    devices = (
        *(each for each in (spec.devices if spec else ()) if qualified_name(kind, each.name) not in others),
        *(fresh.get(each.name, each) for each in left if _held(snapshot, kind, each)),
    )
    common = now or there
    if common is None or not devices:
        return None
    if common is there and devices == there.devices:
        return there
    whole = common.but(devices=devices)
    return whole.but(cdi_version=lowest_version(whole))


def _spec(documents: Mapping[str, BuiltSpec], kind: str) -> Spec | None:
    return documents[kind].spec if kind in documents else None


def _undecided(snapshot: Snapshot) -> bool:
    """Whether nobody has said yet what the node's runtime is, though that decides."""
    settings = snapshot.config.settings
    return settings is not None and settings.device_list_strategy == ("auto",) and not node_requests(snapshot).runtime


def _held(snapshot: Snapshot, kind: str, device: CdiDevice) -> bool:
    """Whether some container may hold a device, as far as is known."""
    if snapshot.allocations is None:
        return True
    if kind == GPU and device.name.startswith(UUIDS):
        return device.name in _units.of(snapshot, snapshot.allocations)
    return bool(snapshot.allocations)


@part_view
def _units(allocations: tuple[Allocation, ...]) -> frozenset[str]:
    return frozenset(unit_of(id) for each in allocations for id in each.devices)


def conflicts(
    snapshot: Snapshot, ours: Mapping[str, Spec], foreign: Mapping[str, Spec]
) -> Mapping[Part[CdiConflictStatus], CdiConflictStatus]:
    """Part → status, of each file of others that defines a device which is ours to define.

    `ours`: kind → what our file of it holds now. `foreign`: path → document, of the other files of the directory.
    """
    found = {kind: each.spec for kind, each in wanted(snapshot).items() if each.spec is not None}
    names = {
        qualified_name(kind, device.name)
        for specs in (found, ours)
        for kind, spec in specs.items()
        for device in spec.devices
    }
    found_conflicts: dict[Part[CdiConflictStatus], CdiConflictStatus] = {}
    for path, spec in sorted(foreign.items()):
        twice = sorted(name for device in spec.devices if (name := qualified_name(spec.kind, device.name)) in names)
        if twice:
            what = twice[0] + f" and {len(twice) - 1} more" * (len(twice) > 1)
            reason = f"it defines {what}, as this agent's own file would: {WAY_OUT}"
            found_conflicts[cdi_conflict(path)] = CdiConflictStatus("failing", reason, devices=tuple(twice))
    return found_conflicts


def reason(snapshot: Snapshot, unit: Unit) -> Reason | None:
    """Why a container that is given this unit by CDI could not start; None where it could, or no CDI is in force."""
    documents, settings = wanted(snapshot), snapshot.config.settings
    if settings is None or GPU not in documents:
        return None
    needed, name = _needed.of(snapshot, documents), unit.index if settings.device_id_strategy == "index" else unit.id
    if (why := documents[GPU].omitted.get(unit.id)) or name not in needed.gpus:
        return _problem("cdi-no-device", why or "the specification has no device for it")
    marks = {qualified_name(GPU, name): needed.gpus[name], **needed.others}
    return _unwritten(snapshot, marks, needed.common)


class _Needed(Value):
    """The marks that have to be on disk: of each GPU's or MIG device's name, and by qualified name of what every
    container gets beside them."""

    gpus: Mapping[str, str]
    others: Mapping[str, str]
    common: frozenset[str]  # of what each file gives with any device


@part_view
def _needed(documents: Mapping[str, BuiltSpec]) -> _Needed:
    marks = {
        kind: {device.name: condition.mark(kind, device) for device in found.spec.devices}
        for kind, found in documents.items()
        if found.spec is not None
    }
    others = {qualified_name(kind, name): mark for kind in marks if kind != GPU for name, mark in marks[kind].items()}
    common = frozenset(condition.common_mark(found.spec) for found in documents.values() if found.spec is not None)
    return _Needed(gpus=marks.get(GPU, {}), others=others, common=common)


def _problem(code: ReasonCode, why: Text, part: AnyPart = CDI_FILES) -> Reason:
    return Reason(kind="problem", text=f"CDI: {why}", part=part.name, code=code)


def _unwritten(snapshot: Snapshot, marks: Mapping[str, str], common: frozenset[str]) -> Reason | None:
    """Why the disk does not have all that is wanted, of these qualified names and marks; None where it has.

    What all devices have in common may lag behind for the moment of a write, but not where the disk refuses it: the
    old one may name files of a driver that is no more.
    """
    foreign = condition.conflicts(snapshot)
    for name in marks:
        if name in foreign:
            why = f"{foreign[name]} defines {name} too: {WAY_OUT}"
            return _problem("cdi-conflict", why, cdi_conflict(foreign[name]))
    status, there = snapshot.status[CDI_FILES], condition.on_disk(snapshot)
    refused = status.state == "failing"
    if there.issuperset(marks.values()) and (not refused or there >= common):
        return None
    if refused:
        return _problem("cdi-write-failed", status.text)
    return Reason(kind="waiting", text=WRITING, part=CDI_FILES.name, code="cdi-not-written")


def waiting(snapshot: Snapshot) -> bool:
    """Whether the files have to be written for the first time: until then nothing can be given out by CDI."""
    return bool(wanted(snapshot)) and snapshot.status[CDI_FILES].state == "waiting"


def unready(snapshot: Snapshot) -> Reason | None:
    """Why the files are not what is wanted; None where they are, or no CDI is in force."""
    status = snapshot.status.of(CDI_FILES)
    failing = status is not None and status.state == "failing" and bool(wanted(snapshot))
    return _problem("cdi-write-failed", status.text) if status is not None and failing else None
