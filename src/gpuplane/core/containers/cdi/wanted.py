"""Which specifications this node's configuration wants, what of older ones stays for whom, and whom they fail."""

from collections.abc import Mapping

from gpuplane.core.containers.cdi.document import Document
from gpuplane.model.cdi import Spec
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Unit


def wanted(snapshot: Snapshot) -> Mapping[str, Document]:
    """Kind → document, for each kind that the strategies in force name. {} where they name none."""
    raise NotImplementedError


def merged(snapshot: Snapshot, kind: str, there: Spec | None) -> Spec | None:
    """What a kind's file shall hold that holds `there` now; None for no file.

    That is what is wanted, and of `there` each device that is not wanted but that some container holds: kubelet names
    it again at every restart of that container.
    """
    raise NotImplementedError


def trouble(snapshot: Snapshot, unit: Unit) -> str:
    """Why a container that is given this unit by CDI could not start; "" where it could, or no CDI is in force."""
    raise NotImplementedError
