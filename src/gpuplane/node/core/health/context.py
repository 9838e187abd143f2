"""What the health of a device is judged by, beside its own record."""

from collections.abc import Iterable, Mapping

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodRef, find_same_container
from gpuplane.node.core.commands import Command, advise, command_line
from gpuplane.node.core.faults.overrides import effective_entry
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.core.lookup import ALL_DEVICES_NAME
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.health import NODE_RECORD_KEY, CatalogueEntry, DeviceRecord, FaultCatalogue, HealthRecords
from gpuplane.node.model.machine import Device
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot, StoredLedger
from gpuplane.node.model.status import DRIVER_PART, Statuses


class HealthContext(Value):
    """What a device record is judged by. It holds no time: a function that needs `now` takes it as an argument.

    `settings`: their fault overrides change the catalogue. `holders`: the containers that hold a device now; None: not
    known. `can_probe`: whether the driver can be asked. `is_node_drained`: whether all devices of the node are
    drained, by the node's own record. `state_dir` and `mig_parents` (UUID of a MIG device → of its GPU) are for the
    commands that a text names; `names_devices`: whether with the name of the device.
    """

    settings: Settings | None = None
    holders: frozenset[PodRef] | None = None
    can_probe: bool = True
    is_node_drained: bool = False
    catalogue: FaultCatalogue = FAULTS
    state_dir: str = ""
    mig_parents: Mapping[str, str] = {}
    names_devices: bool = True

    def effective_entry(self, code: str) -> CatalogueEntry:
        """How a fault is judged: the catalogue's entry, with the overrides of the configuration."""
        return effective_entry(code, self.settings, self.catalogue)

    def command_line(self, command: Command, key: str) -> str:
        """A command about the device of a record, as it is typed."""
        return command_line(command, self.state_dir, self._names(key))

    def advice(self, entry: CatalogueEntry, key: str) -> Text:
        """What to do about a fault of the device of a record, with the commands that do it."""
        return advise(entry.advice, entry.commands, self.state_dir, self._names(key))

    def _names(self, key: str) -> Mapping[str, str]:
        if key == NODE_RECORD_KEY:
            return {"DEVICE": ALL_DEVICES_NAME}
        return {"DEVICE": key, "GPU": self.mig_parents.get(key, key)} if self.names_devices else {}

    def holds_any_device(self, holder: PodRef) -> bool:
        """Whether a container is known to hold a device now."""
        holders = self.holders or frozenset()
        return holder in holders or find_same_container(holder, holders) is not None

    @property
    def probe_period(self) -> float:
        """Seconds between two probes."""
        return (self.settings or Settings()).probe_period


def health_context(snapshot: Snapshot) -> HealthContext:
    """What the records of a snapshot are judged by."""
    driver, allocations = snapshot.statuses.of(DRIVER_PART), snapshot.allocations
    driver_answers = driver is None or driver.state == "ok"
    return HealthContext(
        settings=snapshot.config.settings,
        holders=None if allocations is None else holders_of(allocations),
        can_probe=driver_answers and not driver_release_reason(snapshot),
        is_node_drained=device_record(snapshot, NODE_RECORD_KEY).drain is not None,
        state_dir=snapshot.state_dir,
        mig_parents=snapshot.machine.mig_parents if snapshot.machine is not None else {},
    )


def with_health_inputs_alone(snapshot: Snapshot) -> Snapshot:
    """The snapshot with only the fields on which the health of devices depends: a view of it is rarely asked anew."""
    driver = snapshot.statuses.of(DRIVER_PART)
    return snapshot.but(
        generation=0,
        config=Config(settings=snapshot.config.settings),
        statuses=Statuses({} if driver is None else {DRIVER_PART: driver}),
        ledger=Ledger(
            release=snapshot.ledger.release,
            node_requests=snapshot.ledger.node_requests,
            health=snapshot.ledger.health,
        ),
        stored_ledger=StoredLedger(),
        checkpoint_rewrite=0,
    )


def devices_of_kind(snapshot: Snapshot, kind: str) -> tuple[Device, ...]:
    """The devices of a plain kind that were counted last; () where they have not been counted."""
    return (snapshot.devices[kind].devices if kind in snapshot.devices else None) or ()


def holders_of(allocations: Iterable[Allocation]) -> frozenset[PodRef]:
    """The containers of these allocations, as far as they are known."""
    return frozenset(each.holder for each in allocations if each.holder.identifies_pod)


def health_records(snapshot: Snapshot) -> HealthRecords:
    """The records of all devices; none before the first observation."""
    return snapshot.ledger.health or HealthRecords()


def device_record(snapshot: Snapshot, key: str) -> DeviceRecord:
    """The record of one device, by its UUID, or of the node; an empty one where there is none."""
    return health_records(snapshot).devices.get(key, DeviceRecord())
