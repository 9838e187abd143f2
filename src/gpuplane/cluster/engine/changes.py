"""The nodes of a cluster, a row each, when each of them last changed, and who looks only at what has changed since."""

from weakref import ref

import numpy as np

from gpuplane.cluster.engine.arrays import Integers
from gpuplane.cluster.model.nodes import Node

NO_ROWS = np.zeros(0, np.int64)


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

    def rows_with_inventory_changed_since(self, version: int) -> Integers:
        """Those whose node came, went or was described anew."""
        return np.flatnonzero(self.described_at[: len(self.nodes)] > version)

    def log(self, row: int, *, is_described: bool = False) -> None:
        """A row has changed; `is_described`: what its node has, too."""
        self.version += 1
        self.changed_at[row] = self.version
        if is_described:
            self.inventory_version = self.described_at[row] = self.version


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
            return cluster.rows_with_inventory_changed_since(since) if cluster.inventory_version > since else NO_ROWS
        return cluster.rows_changed_since(since) if cluster.version > since else NO_ROWS
