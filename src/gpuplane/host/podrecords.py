"""The names of containers, by the records that kubelet keeps on the node.

A cgroup says a pod's UID and a container's id. Kubelet's directories of logs have both with names: a link
`/var/log/containers/<pod>_<namespace>_<container>-<id>.log` for each container, and a directory
`/var/log/pods/<namespace>_<pod>_<uid>/<container>` (kubelet: pkg/kubelet/kuberuntime/legacy.go and helpers.go). Only
names are read: no link is followed and no log is opened. A link whose name was cut off at 255 characters has no whole
id, and names nothing.

Only root, and a pod that mounts /var/log of the host, can write there. What both directories say has to agree.
"""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path

from gpuplane.model.pod import ContainerId, PodRef

CONTAINERS, PODS = "var/log/containers", "var/log/pods"
LINK = re.compile(r"(?P<pod>[a-z0-9.-]+)_(?P<namespace>[a-z0-9-]+)_(?P<container>[a-z0-9-]+)-(?P<id>[0-9a-f]{64})\.log")
DIRECTORY = re.compile(r"(?P<namespace>[a-z0-9-]+)_(?P<pod>[a-z0-9.-]+)_(?P<uid>[0-9a-f-]{32,36})")
MOST_NAMES = 100_000
"""Names of a directory that are read: those of all pods of a node, some times over."""
PAUSE = 1.0
"""Seconds between two readings of the directories."""


class PodRecords:
    """The records below a root. Belongs to one thread at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: Mapping[ContainerId, PodRef] = {}
        self._read_at = -PAUSE

    def names(self, containers: Collection[ContainerId]) -> Mapping[ContainerId, PodRef]:
        """The names of these containers, as far as the records have them. Others are forgotten.

        The directories are read only where one is not known yet, and not more often than each second.
        """
        known = {each: self._known[each] for each in containers if each in self._known}
        now = time.monotonic()
        if len(known) < len(set(containers)) and now - self._read_at >= PAUSE:
            self._read_at = now
            known = dict(self._read(containers))
        self._known = known
        return known

    def _read(self, containers: Collection[ContainerId]) -> Iterator[tuple[ContainerId, PodRef]]:
        wanted_ids, wanted_uids = ({each.container_id for each in containers}, {each.pod_uid for each in containers})
        links = {
            found["id"]: PodRef(namespace=found["namespace"], name=found["pod"], container=found["container"])
            for name in self._list(CONTAINERS)
            if (found := LINK.fullmatch(name)) is not None and found["id"] in wanted_ids
        }
        pods = {
            found["uid"]: PodRef(namespace=found["namespace"], name=found["pod"], uid=found["uid"])
            for name in self._list(PODS)
            if (found := DIRECTORY.fullmatch(name)) is not None and found["uid"] in wanted_uids
        }
        for each in containers:
            link, pod = links.get(each.container_id), pods.get(each.pod_uid)
            if pod is not None and link is not None and (link.namespace, link.name) == (pod.namespace, pod.name):
                yield each, pod.but(container=link.container)
            elif pod is not None and link is None:
                yield each, pod.but(container=self._only_container(pod))
            elif pod is None and link is not None:
                yield each, link.but(uid=each.pod_uid)

    def _only_container(self, pod: PodRef) -> str:
        """The name of a pod's container, where it has one only; else ""."""
        found = list(islice(self._list(f"{PODS}/{pod.namespace}_{pod.name}_{pod.uid}"), 2))
        return found[0] if len(found) == 1 else ""

    def _list(self, directory: str) -> Iterator[str]:
        """The names in a directory; none where it cannot be read."""
        try:
            with os.scandir(self._root / directory) as entries:
                yield from (each.name for each in islice(entries, MOST_NAMES))
        except OSError:
            return
