"""The table of kinds. A new kind is a row here."""

from collections.abc import Mapping

from gpuplane.node.core.kinds.devicenode import DEVICE_NODE
from gpuplane.node.core.kinds.dra import KindInDra
from gpuplane.node.core.kinds.kind import Kind
from gpuplane.node.core.kinds.nvidia.gpu import GPU
from gpuplane.node.model.health import FaultCatalogue

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (GPU, DEVICE_NODE)}
"""Name → kind. Where two kinds have the same resource name, the first has it."""

PLAIN_KINDS: Mapping[str, Kind] = {name: kind for name, kind in KINDS.items() if kind is not GPU}
"""Those whose devices are plain `Device`s."""

UNIT_ID_PREFIXES = tuple(prefix for kind in KINDS.values() for prefix in kind.id_prefixes)
"""How the ids of all units begin. Ids of other device plugins do not."""


def kind_of(unit_id: str) -> Kind | None:
    """The kind of a unit, or of a health record, by its id; None for an id that is no unit's."""
    return next((kind for kind in KINDS.values() if unit_id.startswith(kind.id_prefixes)), None)


def dra_of(unit_id: str) -> KindInDra:
    """What the kind of a unit says to Dynamic Resource Allocation."""
    kind = kind_of(unit_id)
    assert kind is not None  # a device that claims may have is of a kind
    return kind.dra


def is_plain_unit(unit_id: str) -> bool:
    """Whether an id is that of a unit of a plain kind."""
    kind = kind_of(unit_id)
    return kind is not None and kind.name in PLAIN_KINDS


def is_record_key_of_kind(key: str) -> bool:
    """Whether a key is that of the health record of a whole plain kind."""
    return any(key == kind.record_key for kind in PLAIN_KINDS.values())


def _merge_faults() -> FaultCatalogue:
    catalogues = [kind.faults for kind in KINDS.values()]
    return FaultCatalogue(
        entries={code: entry for each in catalogues for code, entry in each.entries.items()},
        codes_that_hide_others=frozenset().union(*(each.codes_that_hide_others for each in catalogues)),
        codes_that_block_recovery=frozenset().union(*(each.codes_that_block_recovery for each in catalogues)),
        codes_that_need_probe=frozenset().union(*(each.codes_that_need_probe for each in catalogues)),
        codes_cleared_only_by_reset=frozenset().union(*(each.codes_cleared_only_by_reset for each in catalogues)),
    )


FAULTS = _merge_faults()
"""The faults of all kinds together: a code means the same for each."""
