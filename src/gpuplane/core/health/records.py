"""The records of a node's devices: what each fact does to them.

A fault belongs to the node, to a GPU or to a MIG device, and to nothing else: what ails a GPU ails its MIG devices and
shares because views say so, not because it is written down for each.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from gpuplane.core.faults.catalogue import BLOCKING_RECOVERY, CLEARED_ONLY_BY_RESET, HIDING_OTHERS, NEEDING_PROBE
from gpuplane.core.health import state_machine
from gpuplane.core.health.state_machine import Terms
from gpuplane.core.shares import unit_of
from gpuplane.model.facts import DrainRequested, FaultOccurred, ProbeFinished
from gpuplane.model.health import DeviceRecord, Finding, HealthRecords
from gpuplane.model.machine import Fault, Gpu, Machine, MigDevice
from gpuplane.model.pod import PodRef, find, joined, may_be_same
from gpuplane.model.snapshot import Allocation
from gpuplane.model.text import Text

NODE = ""
"""The key of the node's own record: what befalls every GPU of it."""

NOT_LISTED = PodRef()
"""Who held a device when kubelet had not listed yet who holds what: whoever it lists then."""

LOADED = "driver-loaded"
"""The code of what the kernel log says when the driver is loaded: every GPU begins anew."""


def looked(
    health: HealthRecords,
    before: Machine | None,
    machine: Machine,
    counted: bool,
    allocations: Iterable[Allocation] | None,
    terms: Terms,
) -> HealthRecords:
    """The records after a look: `machine` is what to believe in after it, `counted` whether it counted the GPUs."""
    known = _keys(before)
    devices = dict(health.devices)
    news = before is not None and not any(fault.code == "not-looked" for fault in before.faults)
    node, faults = devices.pop(NODE, DeviceRecord()), _told(machine.faults)
    if any(each.code == "driver-not-loaded" for each in node.findings) and "driver-not-loaded" not in faults:
        devices = _renewed(devices, terms.now)
    devices[NODE] = _node(node, faults, terms, news=news)
    if not counted:
        return _kept(health, devices)
    for gpu in machine.gpus or ():
        if gpu.uuid:
            record = devices.get(gpu.uuid, DeviceRecord())
            devices[gpu.uuid] = _look(record, gpu, _holders(_units(gpu), allocations), terms, news=gpu.uuid in known)
        renewed = devices.get(gpu.uuid, DeviceRecord()).reset_at
        for device in gpu.mig_devices:
            record, told = devices.get(device.uuid, DeviceRecord()), _told(device.faults)
            if told or device.uuid in devices:
                record = record.but(reset_at=max(record.reset_at, renewed))
                blind = _blind((*gpu.faults, *device.faults))
                record = state_machine.show(record, told, terms, news=device.uuid in known, blind=blind)
                devices[device.uuid] = record.but(absent=False, pci=gpu.pci)
    there, places = _keys(machine), {gpu.pci for gpu in machine.gpus or () if gpu.uuid}
    for key in devices.keys() - there - {NODE}:
        if key.startswith("MIG-"):
            devices[key] = DeviceRecord(
                drain=devices[key].drain, absent=True
            )  # made again it has the same UUID, and is new
        elif devices[key].pci and devices[key].pci in places:
            del devices[key]  # another card is in its place
        else:
            devices[key] = devices[key].but(absent=True)
    return _kept(health, devices)


def _node(node: DeviceRecord, faults: Mapping[str, Text], terms: Terms, *, news: bool) -> DeviceRecord:
    """The node's record after a look. However its faults follow each other, it is one time that they go on for."""
    since = min((each.since for each in node.findings if terms.entry(each.code).severity == "unhealthy"), default=None)
    shown = state_machine.show(node, faults, terms, news=news and not state_machine.ill(node, terms), blind=False)
    findings = (
        each.but(since=each.since if since is None else since) for each in shown.findings if each.last_seen is None
    )
    return DeviceRecord(findings=tuple(findings), drain=node.drain)


def _look(record: DeviceRecord, gpu: Gpu, holders: tuple[PodRef, ...], terms: Terms, *, news: bool) -> DeviceRecord:
    """The record of a GPU that a look tells of, and who holds it."""
    now, faults, blind = terms.now, _told(gpu.faults), _blind(gpu.faults)
    lanes, whole = sum(link.lanes for link in gpu.links), not blind and not gpu.mig_enabled
    if whole and lanes < record.most_links:
        faults.setdefault("nvlink-down", _lanes(lanes, record.most_links))
    absent = [
        each
        for each in record.findings
        if each.code in CLEARED_ONLY_BY_RESET and not each.is_event and each.last_seen is None
    ]
    cleared = any(each.code not in faults for each in absent) and faults.keys().isdisjoint(CLEARED_ONLY_BY_RESET)
    if record.absent or (cleared and not blind):
        record = record.but(reset_at=now)
    record = state_machine.show(record, faults, terms, news=news, blind=blind)
    if not blind and (grown := _grown(record, gpu)):
        event = Finding(
            code="ecc-uncorrectable", message=grown, since=now, last_seen=now, is_event=True, holders=holders
        )
        record = state_machine.happen(record, event, terms)
    return record.but(
        absent=False,
        pci=gpu.pci or record.pci,
        uncorrected_errors=record.uncorrected_errors if gpu.uncorrected is None or blind else gpu.uncorrected,
        most_links=max(lanes, record.most_links) if whole else record.most_links,
    )


def _grown(record: DeviceRecord, gpu: Gpu) -> Text:
    """What the count of memory errors says; in MIG mode nothing, for only an XID tells which instance it was."""
    if gpu.uncorrected is None or record.uncorrected_errors is None or gpu.uncorrected <= record.uncorrected_errors:
        return ""
    return "" if gpu.mig_enabled else f"{gpu.uncorrected - record.uncorrected_errors} more uncorrectable memory errors"


def _lanes(lanes: int, most: int) -> str:
    return f"{lanes} of {most} NVLinks are active"


def _blind(faults: Iterable[Fault]) -> bool:
    return any(fault.code in HIDING_OTHERS for fault in faults)


def _told(faults: Iterable[Fault]) -> dict[str, Text]:
    """code → message; several of one code in one message."""
    told: dict[str, Text] = {}
    for fault in faults:
        told[fault.code] = f"{told[fault.code]}; {fault.message}" if fault.code in told else fault.message
    return told


def _keys(machine: Machine | None) -> set[str]:
    gpus = (machine.gpus if machine else None) or ()
    inside = (device.uuid for gpu in gpus for device in gpu.mig_devices)
    return {key for key in (*(gpu.uuid for gpu in gpus), *inside) if key}


def _kept(health: HealthRecords, devices: Mapping[str, DeviceRecord]) -> HealthRecords:
    """The records that say anything."""
    kept = {key: record for key, record in sorted(devices.items()) if record.but(absent=False) != DeviceRecord()}
    return health if kept == health.devices else health.but(devices=kept)


def happened(
    health: HealthRecords,
    event: FaultOccurred,
    machine: Machine | None,
    allocations: Iterable[Allocation] | None,
    terms: Terms,
) -> HealthRecords:
    """The records after an event. One of the kernel log counts once, however often it is read."""
    if event.kernel_log_number is not None:
        if event.kernel_log_number <= health.last_kernel_log_number:
            return health
        health = health.but(last_kernel_log_number=event.kernel_log_number)
    if event.code == LOADED:
        return _kept(health, _renewed(health.devices, event.at))
    devices = dict(health.devices)
    for key, unit in _befallen(event, machine, health, terms):
        finding = Finding(
            code=event.code,
            message=event.message or terms.entry(event.code).title,
            since=event.at,
            last_seen=event.at,
            is_event=True,
            pids=event.pids,
            holders=() if event.pids else _holders(unit, allocations),
        )
        devices[key] = state_machine.happen(devices.get(key) or _fresh(unit, devices), finding, terms)
    return _kept(health, devices)


def _fresh(units: set[str], devices: Mapping[str, DeviceRecord]) -> DeviceRecord:
    """The record of a device that had none: a MIG device was reset with its GPU."""
    return DeviceRecord(
        reset_at=max((devices[each].reset_at for each in units if each in devices), default=DeviceRecord().reset_at)
    )


def _renewed(devices: Mapping[str, DeviceRecord], at: float) -> dict[str, DeviceRecord]:
    """The records after the driver was loaded."""
    return {key: each if key == NODE else each.but(reset_at=max(each.reset_at, at)) for key, each in devices.items()}


def _befallen(
    event: FaultOccurred, machine: Machine | None, health: HealthRecords, terms: Terms
) -> Iterator[tuple[str, set[str]]]:
    """(key, the units that belong to it) of what an event is about: MIG devices, or the whole GPU.

    One that is not counted now is known by its record; its MIG devices have gone with it, and what befell them.
    """
    gpus = (gpu for gpu in (machine.gpus if machine else None) or () if gpu.uuid)
    gpu = next((gpu for gpu in gpus if event.gpu and event.gpu in (gpu.uuid, gpu.pci)), None)
    contained = terms.entry(event.code).scope in ("process", "instance")
    if gpu is None:
        wholes = ((key, each.pci) for key, each in health.devices.items() if key != NODE and not key.startswith("MIG-"))
        if not (contained and event.gpu_instance is not None):
            yield from ((key, {key}) for key, pci in wholes if event.gpu and event.gpu in (key, pci))
        return
    if contained and gpu.mig_enabled:
        named = [device for device in gpu.mig_devices if _names(event, device)]
        if named:
            yield from ((device.uuid, {device.uuid, gpu.uuid}) for device in named)
            return
    yield gpu.uuid, _units(gpu)


def _units(gpu: Gpu) -> set[str]:
    """The ids of what can be given out of a GPU."""
    return {gpu.uuid, *(device.uuid for device in (gpu.mig_devices if gpu.mig_enabled else ()))}


def _names(event: FaultOccurred, device: MigDevice) -> bool:
    """An event names a GPU instance, and perhaps one compute instance of it."""
    return event.gpu_instance == device.gpu_instance and event.compute_instance in (None, device.compute_instance)


def listed(health: HealthRecords, machine: Machine | None, allocations: Iterable[Allocation]) -> HealthRecords:
    """The records after kubelet has said who holds what.

    Findings then name those holders too that were not listed yet, and those that kubelet now names in another way: its
    list tells a pod's name, its checkpoint the UID. A holder that is named in another way has not gone.
    """
    gpus, devices = {gpu.uuid: gpu for gpu in (machine.gpus if machine else None) or ()}, dict(health.devices)
    everywhere = holders(allocations)
    for key, record in devices.items():
        if any(not everywhere.issuperset(each.holders) for each in record.findings):
            on_device = _holders(_units(gpus[key]) if key in gpus else {key}, allocations)
            findings = (each.but(holders=_as_listed(each.holders, on_device, everywhere)) for each in record.findings)
            devices[key] = record.but(findings=tuple(findings))
    return _kept(health, devices)


def _as_listed(
    holders: tuple[PodRef, ...], on_device: tuple[PodRef, ...], everywhere: frozenset[PodRef]
) -> tuple[PodRef, ...]:
    """The holders of a finding as kubelet lists them: `on_device` those of its device, `everywhere` all of the node."""
    return joined(chain.from_iterable(_candidates(each, on_device, everywhere) for each in holders))


def _candidates(holder: PodRef, on_device: tuple[PodRef, ...], everywhere: frozenset[PodRef]) -> tuple[PodRef, ...]:
    """The listed containers that a holder may be. One that is not listed any more stays as it is."""
    if holder == NOT_LISTED:
        return on_device
    if holder in everywhere or find(holder, everywhere) is not None:
        return (holder,)
    return tuple(each for each in on_device if may_be_same(holder, each)) or (holder,)


def _holders(units: set[str], allocations: Iterable[Allocation] | None) -> tuple[PodRef, ...]:
    if allocations is None:
        return (NOT_LISTED,)
    found = holders(each for each in allocations if not units.isdisjoint(map(unit_of, each.devices)))
    return tuple(sorted(found, key=str))


def holders(allocations: Iterable[Allocation]) -> frozenset[PodRef]:
    """The containers that hold them, as far as they are known."""
    return frozenset(each.holder for each in allocations if each.holder.is_known)


def probed(
    health: HealthRecords, fact: ProbeFinished, machine: Machine | None, terms: Terms
) -> tuple[HealthRecords, bool]:
    """The records after a probe, and whether it found something well: then it is the newest look at that GPU.

    It answers every wish for that GPU and its MIG devices that is not newer than the one it was begun for.
    """
    devices, well = dict(health.devices), False
    known = (machine.gpu(fact.gpu.uuid) if machine else None) or fact.gpu
    found = {device.uuid: device.faults for device in fact.gpu.mig_devices}
    for key in (fact.gpu.uuid, *(device.uuid for device in known.mig_devices)):
        record = devices.get(key, DeviceRecord())
        asked = record.probe.requested_at if record.probe else None
        if asked is None or asked > fact.requested_at:
            continue
        faults = (*fact.gpu.faults, *found.get(key, ()))
        code, problem = _problem(devices.get(fact.gpu.uuid, DeviceRecord()), fact, faults, terms)
        problem = problem or _running(record, fact.pids, terms)
        if not problem and key not in (fact.gpu.uuid, *found):
            problem = "it is not there"
        if problem:
            costly = any(fault.code in NEEDING_PROBE for fault in faults)
            devices[key] = state_machine.fail(record, problem, terms, costly=costly, code=code)
        else:
            devices[key] = state_machine.heal(record, terms)
        well |= not problem
    return _kept(health, devices), well


def _problem(record: DeviceRecord, fact: ProbeFinished, faults: Iterable[Fault], terms: Terms) -> tuple[str, Text]:
    """Why a device is not well by what a probe saw, with the code of the fault, "" for none; ("", "") if it is."""
    for fault in faults:
        severity = terms.entry(fault.code).severity
        if severity == "unhealthy" or (severity == "degraded" and fault.code in BLOCKING_RECOVERY):
            return fault.code, f"{fault.code}: {fault.message}"
    lanes = sum(link.lanes for link in fact.gpu.links)
    if not fact.gpu.mig_enabled and lanes < record.most_links and terms.entry("nvlink-down").severity != "note":
        return "nvlink-down", f"nvlink-down: {_lanes(lanes, record.most_links)}"
    return "", _grown(record, fact.gpu)


def _running(record: DeviceRecord, pids: Iterable[int], terms: Terms) -> Text:
    still = sorted(set(state_machine.befallen(record, terms)) & set(pids))
    return f"process {', '.join(map(str, still))}, which it befell, still runs on it" if still else ""


def drained(health: HealthRecords, fact: DrainRequested, machine: Machine | None, terms: Terms) -> HealthRecords:
    """The records after a person's word about a device. Whoever restores it takes the links that it has for all: those
    that it has at the next look, where the driver cannot be asked now."""
    record = health.devices.get(fact.device, DeviceRecord()).but(drain=fact.drain)
    if fact.drain is None:
        record = record.but(repaired_at=terms.now, most_links=0, relapses=0, probe=None)
        gpu = machine.gpu(fact.device) if machine else None
        record = _look(record, gpu, (), terms, news=True) if gpu is not None and terms.probes else record
    return _kept(health, {**health.devices, fact.device: record})


def calm(health: HealthRecords) -> bool:
    """Whether time changes no record, whatever the terms: they hold what was learnt, and nothing that ends."""
    return all(state_machine.calm(record) for record in health.devices.values())


def settled(health: HealthRecords, terms: Terms) -> HealthRecords:
    """The records as time has made them."""
    devices = {
        key: record if key == NODE or record == DeviceRecord() else state_machine.settle(record, terms)
        for key, record in health.devices.items()
    }
    node = devices.get(NODE)
    if node is not None:
        devices[NODE] = state_machine.settle(node, terms.but(probes=False))
    return _kept(health, devices)


def due(health: HealthRecords, terms: Terms) -> float | None:
    """When time alone changes a record next, or None."""
    times = (
        at
        for key, record in health.devices.items()
        for at in state_machine.due(record, terms.but(probes=terms.probes and key != NODE))
    )
    return min(times, default=None)


def rebooted(health: HealthRecords, wall: float, now: float) -> HealthRecords:
    """The records as a reboot leaves them, at `wall` seconds since 1970 and `now` of the new boot.

    Drains go on by the clock on the wall. A fault is forgotten once it is known that no person has to end it; counts,
    and what was learnt of the machine, were of the boot before.
    """

    def carried(record: DeviceRecord) -> DeviceRecord:
        drain = record.drain
        if drain is not None:
            drain = drain.but(
                since=None, until=None if drain.until_wall_clock is None else now + drain.until_wall_clock - wall
            )
        old = tuple(
            each.but(since=0.0, last_seen=0.0, from_earlier_boot=True, pids=(), holders=())
            for each in record.findings
            if each.confirmed
        )
        return DeviceRecord(drain=drain, findings=old, pci=record.pci)

    devices = {key: carried(record) for key, record in health.devices.items()}
    devices[NODE] = DeviceRecord(drain=devices.get(NODE, DeviceRecord()).drain)
    return _kept(HealthRecords(), devices)
