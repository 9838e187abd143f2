"""The edits of units of plain kinds, and the CDI specifications of these kinds."""

from collections.abc import Iterable

from gpuplane.node.core.containers.cdi.names import plain_cdi_kind, plain_cdi_name
from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult
from gpuplane.node.core.containers.cdi.standins import stand_in_edits
from gpuplane.node.core.containers.cdi.version import lowest_version
from gpuplane.node.core.kinds.table import PLAIN_KINDS
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.node.model.views import Unit


def container_edits(unit: Unit, stand_ins: bool) -> ContainerEdits:
    """What a container gets with a unit of a plain kind."""
    edits = PLAIN_KINDS[unit.kind].container_edits
    assert edits is not None  # of a plain kind
    return stand_in_edits(edits(unit)) if stand_ins else edits(unit)


def build_plain_spec(kind: str, units: Iterable[Unit], stand_ins: bool = False) -> SpecBuildResult:
    """The specification of a plain kind, with a device for each unit."""
    devices = tuple(
        CdiDevice(name=plain_cdi_name(unit).rpartition("=")[2], container_edits=container_edits(unit, stand_ins))
        for unit in units
    )
    if not devices:
        return SpecBuildResult(spec=None)
    spec = Spec(cdi_version="", kind=plain_cdi_kind(kind), devices=devices)
    return SpecBuildResult(spec=spec.but(cdi_version=lowest_version(spec)))
