"""The devices of all kinds, as claims may have them."""

from collections.abc import Mapping

from gpuplane.base.value import Value
from gpuplane.node.core.kinds.dra import DraDevice
from gpuplane.node.core.kinds.table import KINDS
from gpuplane.node.core.view import part_view
from gpuplane.node.model.machine import DeviceList, Machine
from gpuplane.node.model.snapshot import Snapshot

NOT_OBSERVED = DeviceList()


class DraDevices(Value):
    """Those that have a name, kind by kind. `uncounted_kinds`: those of which it is not known what there is."""

    by_name: Mapping[str, DraDevice] = {}  # of two with one name, the first
    uncounted_kinds: frozenset[str] = frozenset()

    def is_counted(self, name: str) -> bool:
        """Whether a device of this name would be known if it were there."""
        return not any(name.startswith(KINDS[kind].dra.name_prefix) for kind in self.uncounted_kinds)

    @property
    def are_awaited(self) -> bool:
        """Whether too little is known to publish any."""
        return any(KINDS[kind].dra.is_awaited for kind in self.uncounted_kinds)


def dra_devices(snapshot: Snapshot) -> DraDevices:
    """The devices of a node."""
    return _dra_devices.of(snapshot, snapshot.machine, snapshot.devices)


@part_view
def _dra_devices(machine: Machine | None, devices: Mapping[str, DeviceList]) -> DraDevices:
    found = {name: kind.dra.devices(machine, devices.get(name, NOT_OBSERVED)) for name, kind in KINDS.items()}
    by_name: dict[str, DraDevice] = {}
    for each in (device for of_kind in found.values() for device in of_kind or ()):
        if each.name:
            by_name.setdefault(each.name, each)
    return DraDevices(by_name, frozenset(name for name, of_kind in found.items() if of_kind is None))
