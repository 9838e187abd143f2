"""Which rows of a cluster have changed since the last look, for whoever keeps something of each row."""

from typing import TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt

from gpuplane.cluster.engine.nodes import Integers, Rows

Scalar = TypeVar("Scalar", bound=np.generic)
NOTHING = np.zeros(0, np.int64)


class Changes:
    """Of one cluster at a time: when another one is looked at, all of its rows have changed. `of_nodes`: only those
    count whose node came, went or was described anew."""

    def __init__(self, *, of_nodes: bool = False) -> None:
        self._of_nodes = of_nodes
        self._cluster: ref[Rows] | None = None
        self._version = -1

    def is_of(self, cluster: Rows) -> bool:
        """Whether this is the cluster that was looked at last."""
        return self._cluster is not None and self._cluster() is cluster

    def look(self, cluster: Rows) -> Integers:
        """The rows that have changed since the last look, in order."""
        if not self.is_of(cluster):
            self._cluster, self._version = ref(cluster), -1
        since, self._version = self._version, cluster.version
        if self._of_nodes:
            return cluster.rows_described_since(since) if cluster.inventory_version > since else NOTHING
        return cluster.rows_changed_since(since) if cluster.version > since else NOTHING


def with_rows(array: npt.NDArray[Scalar], rows: int) -> npt.NDArray[Scalar]:
    """The same array with so many rows: new ones are 0."""
    if len(array) >= rows:
        return array[:rows]
    return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))
