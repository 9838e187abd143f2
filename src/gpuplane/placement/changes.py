"""Which rows of a cluster have changed since the last look, for whoever keeps something of each row."""

from typing import TYPE_CHECKING, TypeVar
from weakref import ref

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpuplane.placement.cluster import Cluster, Integers

Scalar = TypeVar("Scalar", bound=np.generic)
NOTHING = np.zeros(0, np.int64)


class Changes:
    """Of one cluster at a time: when another one is looked at, all of its rows have changed."""

    def __init__(self) -> None:
        self._cluster: ref[Cluster] | None = None
        self._version = -1

    def is_of(self, cluster: "Cluster") -> bool:
        """Whether this is the cluster that was looked at last."""
        return self._cluster is not None and self._cluster() is cluster

    def look(self, cluster: "Cluster") -> "tuple[Integers, Integers]":
        """(the rows that have changed since the last look, those of them whose nodes came, went or were described
        anew), in order."""
        since = self._version if self.is_of(cluster) else -1
        if cluster.version == since:
            return NOTHING, NOTHING
        self._cluster, self._version = ref(cluster), cluster.version
        described = cluster.rows_described_since(since) if cluster.inventory_version > since else NOTHING
        return cluster.rows_changed_since(since), described


def with_rows(array: npt.NDArray[Scalar], rows: int) -> npt.NDArray[Scalar]:
    """The same array with so many rows: new ones are 0."""
    if len(array) >= rows:
        return array[:rows]
    return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))
