"""GPUs that the driver listed once and lists no more: which are lost, and which have another card in their place.

A GPU that was listed is missed until it is listed again, or until somebody says that it was taken out (`gpuplane health
restore`). Its record is how it is remembered, over restarts and reboots. None is missed

- that another card has replaced: one that was not known before, at the same address; or all that are listed are such;
- that is a MIG device: those come and go with the layout;
- that was never listed: a person may drain what is not there yet;
- while the driver lists a GPU without its UUID that may be it;
- that a kernel driver keeps for virtual machines.

A GPU on the PCI bus that NVIDIA's driver does not have is missed too, by its address where it was never listed.
"""

from collections.abc import Collection
from datetime import UTC, datetime

from gpuplane.base.text import Text, clip
from gpuplane.node.core.health import state_machine
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.kinds.nvidia.gpu import is_mig_uuid
from gpuplane.node.core.kinds.table import is_plain_unit
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceRecord
from gpuplane.node.model.machine import Machine

ABSENT_CODE = "gpu-absent"
UNLISTED_CODE = "gpu-unlisted"
GUEST_DRIVERS = ("vfio", "pci-stub", "pciback")
"""In the names of kernel drivers that keep a GPU for a virtual machine: somebody wants that (vfio-pci, xen-pciback)."""
LISTING_PRECISION = 3600.0
"""Seconds after which it is noted again that a GPU is listed: each note is written to the state directory."""
LATEST_WALL_CLOCK = 253_402_300_799.0
"""The last second of the year 9999: a file that was edited may say more than can be written as a date."""


def with_last_listing(record: DeviceRecord, wall_clock: float | None) -> DeviceRecord:
    """The record of a GPU that is listed at `wall_clock`."""
    last = record.last_listed_at
    if wall_clock is None or (last is not None and 0 <= wall_clock - last < LISTING_PRECISION):
        return record
    return record.but(last_listed_at=wall_clock)


def without_absence(record: DeviceRecord) -> DeviceRecord:
    """The record of a GPU that is listed, perhaps again."""
    if not record.absent:
        return record
    return record.but(findings=tuple(each for each in record.findings if each.code != ABSENT_CODE))


def mark_absent_devices(
    devices: dict[str, DeviceRecord],
    machine: Machine,
    known: Collection[str],
    new: Collection[str],
    context: HealthContext,
    now: float,
    wall_clock: float | None,
) -> None:
    """Marks the records of devices that the machine does not have, and removes those of GPUs that were replaced.

    `known`: the devices of the look before; `new`: those of this look that were never seen before.
    """
    gpus = [gpu for gpu in machine.gpus or () if gpu.uuid]
    present = {gpu.uuid for gpu in gpus} | machine.mig_parents.keys()
    replaced = {gpu.pci for gpu in gpus if gpu.uuid in new and gpu.pci}
    all_are_new = bool(gpus) and all(gpu.uuid in new for gpu in gpus)
    for key in devices.keys() - present - {NODE_RECORD_KEY}:
        record = devices[key]
        if is_plain_unit(key) or _is_of_unlisted_gpu(key, record):
            continue
        if is_mig_uuid(key):  # created again it has the same UUID, and is new
            devices[key] = DeviceRecord(drain=record.drain, absent=True)
        elif all_are_new or record.pci in replaced:
            del devices[key]
        elif (
            not _was_listed(record)
            or _may_be_listed_without_uuid(record, machine)
            or is_for_guests(machine.unlisted.get(record.pci, ""))
        ):
            devices[key] = without_absence(record).but(absent=True)
        else:
            who = f"; {describe_owner(machine.unlisted[record.pci])}" if record.pci in machine.unlisted else ""
            devices[key] = _missed(record, who, key in known, context, now, wall_clock)
    _mark_unlisted_gpus(devices, machine, context, now, is_first_look=not known)


def _mark_unlisted_gpus(
    devices: dict[str, DeviceRecord], machine: Machine, context: HealthContext, now: float, *, is_first_look: bool
) -> None:
    """Puts a record of each GPU on the bus that is not listed and not known by its UUID; its key is its address."""
    missed = {each.pci for key, each in devices.items() if each.absent and key != each.pci}
    unlisted = {pci: who for pci, who in machine.unlisted.items() if pci not in missed and not is_for_guests(who)}
    for key in [key for key, each in devices.items() if _is_of_unlisted_gpu(key, each) and key not in unlisted]:
        del devices[key]
    for pci, who in unlisted.items():
        record = devices.get(pci, DeviceRecord(pci=pci, absent=True))
        devices[pci] = state_machine.apply_observed_faults(
            record,
            {UNLISTED_CODE: f"a GPU at this address is not listed; {describe_owner(who)}"},
            context,
            now,
            observed_before=not is_first_look,
            others_hidden=False,
        )


def _is_of_unlisted_gpu(key: str, record: DeviceRecord) -> bool:
    return bool(key) and key == record.pci


def is_for_guests(driver: str) -> bool:
    """Whether a kernel driver keeps GPUs for virtual machines."""
    return any(name in driver for name in GUEST_DRIVERS)


def describe_owner(driver: str) -> str:
    """Which kernel driver has a GPU that NVIDIA's driver does not list."""
    return f"the kernel driver {clip(driver)} has it" if driver else "no kernel driver has it: its probe failed"


def _was_listed(record: DeviceRecord) -> bool:
    """Whether a look has shown this GPU: a record can be of a drain alone."""
    return bool(record.pci) or record.last_listed_at is not None


def _may_be_listed_without_uuid(record: DeviceRecord, machine: Machine) -> bool:
    return any(gpu.pci in ("", record.pci) for gpu in machine.gpus or () if not gpu.uuid)


def _missed(
    record: DeviceRecord, who: str, was_known: bool, context: HealthContext, now: float, wall_clock: float | None
) -> DeviceRecord:
    """The record of a GPU that is not listed. `who`: has it; `was_known`: the look before, a moment ago, listed it."""
    if was_known and wall_clock is not None:
        record = record.but(last_listed_at=wall_clock)
    faults = {ABSENT_CODE: f"{_describe_absence(record)}{who}"}
    record = state_machine.apply_observed_faults(
        record, faults, context, now, observed_before=was_known, others_hidden=True
    )
    return record.but(absent=True)


def _describe_absence(record: DeviceRecord) -> Text:
    at = f" at {record.pci}" if record.pci else ""
    seen = last_listing(record)
    since = f", last seen {seen:%Y-%m-%dT%H:%M:%SZ}" if seen is not None else ""
    return f"the driver lists it no more{', it was' * bool(at)}{at}{since}"


def last_listing(record: DeviceRecord) -> datetime | None:
    """When the driver last listed a GPU, in UTC; None where nobody knows."""
    at = record.last_listed_at
    return datetime.fromtimestamp(round(at), UTC) if at is not None and 0 <= at <= LATEST_WALL_CLOCK else None
