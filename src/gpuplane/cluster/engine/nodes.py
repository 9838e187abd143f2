"""The nodes of a cluster, a row each, and when each of them last changed.

Who keeps something of each row looks only at those that have changed since (changes.py).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gpuplane.base.value import Value
from gpuplane.kubernetes.selectors import Taint

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


class Gpu(Value):
    """A GPU of a node. `units`: how many ids the node offers for it; so many pods may share it. `link_group`: GPUs of
    one node with one number reach each other by NVLink; 0: by PCIe alone. `profiles`: MIG devices by profile; a GPU
    with MIG on is not given out whole. `resource`: the name by which the node offers it; "": not known. `containers`:
    how many may share it; 0: any number. `code`: why it is given to nobody; "" for none."""

    id: str
    model: str = ""
    memory_mib: int = 0
    units: int = 1
    link_group: int = 0
    is_partitioned: bool = False
    profiles: Mapping[str, int] = {}
    resource: str = ""
    containers: int = 0
    code: str = ""


class Node(Value):
    """A node of the cluster. `is_schedulable`: whether any pod may come. `taints`: those that a pod may tolerate.
    `others`: how much it has of each other resource, as kube-scheduler counts it, GPUs among them."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    labels: Mapping[str, str] = {}
    is_schedulable: bool = True
    taints: tuple[Taint, ...] = ()
    others: Mapping[str, int] = {}


class Rows:
    """`nodes`: one for each row; None where it has gone. `version` counts changes, from the one that is given."""

    def __init__(self, version: int = 0) -> None:
        self.nodes: list[Node | None] = []
        self.version = version
        self.inventory_version = 0  # the version when a node last came, went or was described anew
        self.changed_at = np.zeros(0, np.int64)  # the version when each row last changed
        self.described_at = np.zeros(0, np.int64)  # the same, of what the node has

    def rows_changed_since(self, version: int) -> Integers:
        """The rows that have changed since then, in order."""
        return np.flatnonzero(self.changed_at[: len(self.nodes)] > version)

    def rows_described_since(self, version: int) -> Integers:
        """Those whose node came, went or was described anew."""
        return np.flatnonzero(self.described_at[: len(self.nodes)] > version)

    def log(self, row: int, *, is_described: bool = False) -> None:
        """A row has changed; `is_described`: what its node has, too."""
        self.version += 1
        self.changed_at[row] = self.version
        if is_described:
            self.inventory_version = self.described_at[row] = self.version
