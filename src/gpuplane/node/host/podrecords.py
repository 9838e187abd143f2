"""The names of containers, by the records that kubelet keeps on the node.

A cgroup says a pod's UID and a container's id. Kubelet's directories of logs have both with names: a link
`/var/log/containers/<pod>_<namespace>_<container>-<id>.log` for each container, and a directory
`/var/log/pods/<namespace>_<pod>_<uid>/<container>` (kubelet: pkg/kubelet/kuberuntime/legacy.go and helpers.go). Names
of pods, namespaces and containers have no `_`. Only names are read: no link is followed and no log is opened.

- What the two directories say has to agree. Where they contradict each other or themselves, there is no name.
- Kubelet makes the directory before a container is created, and the link after it has started
  (kuberuntime_container.go, startContainer). So a process may be seen before its link: it then has its pod's name, and
  is looked for again.
- A link whose name was cut off at 255 characters has no whole id, and names nothing. With Docker's log driver journald
  there are no links. Then a container is named where its pod has one only.
- A container's id is never given out again, so a name that was found stays right.

Who can write here can name processes at will: root, a pod that mounts the host's /var/log, and on Ubuntu the group
syslog, which may replace what is in /var/log.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.pauses import Backoff
from gpuplane.kubernetes.podref import ContainerId, PodRef

CONTAINER_LOGS, POD_LOGS = "var/log/containers", "var/log/pods"
DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
"""A name of a namespace or container (RFC 1123, as Kubernetes checks it)."""
DNS_SUBDOMAIN = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
"""A name of a pod."""
LINK_NAME = re.compile(
    rf"(?P<pod>{DNS_SUBDOMAIN})_(?P<namespace>{DNS_LABEL})_(?P<container>{DNS_LABEL})-(?P<id>[0-9a-f]{{64}})\.log",
    re.ASCII,
)
POD_DIRECTORY_NAME = re.compile(
    rf"(?P<namespace>{DNS_LABEL})_(?P<pod>{DNS_SUBDOMAIN})_(?P<uid>[0-9a-f-]{{32,36}})", re.ASCII
)
CONTAINER_NAME = re.compile(DNS_LABEL, re.ASCII)
ID_OF_LINK = slice(-len(".log") - 64, -len(".log"))
MAX_NAMES = 100_000
"""Names of a directory that are read: those of all pods of a node, some times over."""
READ_INTERVAL, MAX_READ_INTERVAL = 1.0, 60.0
"""Seconds between two readings: the fewest, and those after readings that found nothing new again and again."""


class PodRecords:
    """The records below a root. Belongs to one thread at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: Mapping[ContainerId, PodRef] = {}
        self._looked_for: Collection[ContainerId] = ()  # those that the last reading was for
        self._read_at, self._pauses = -MAX_READ_INTERVAL, Backoff(READ_INTERVAL, MAX_READ_INTERVAL)

    def has_all(self, containers: Collection[ContainerId]) -> bool:
        """Whether all names of these containers are known, so that `names` reads nothing."""
        return all(_is_whole(self._known.get(each)) for each in containers)

    def names(self, containers: Collection[ContainerId]) -> Mapping[ContainerId, PodRef]:
        """The names of these containers, as far as the records have them. Others are forgotten.

        The directories are read only where a name is missing, and not more often than each second.
        """
        if not self._known.keys() <= set(containers):
            self._known = {each: self._known[each] for each in containers if each in self._known}
        missing = {each for each in containers if not _is_whole(self._known.get(each))}
        if not missing <= set(self._looked_for):
            self._pauses.after(well=True)
        now = time.monotonic()
        if missing and now - self._read_at >= self._pauses.seconds:
            found = {**self._known, **dict(self._read(missing))}
            self._pauses.after(well=found != self._known)
            self._known, self._looked_for, self._read_at = found, missing, now
        return self._known

    def _read(self, containers: Collection[ContainerId]) -> Iterator[tuple[ContainerId, PodRef]]:
        pods = _by_key(self._pods({each.pod_uid for each in containers}))
        links = _by_key(self._links({each.container_id for each in containers}))
        for each in containers:
            pod, link = pods.get(each.pod_uid, PodRef()), links.get(each.container_id, PodRef())
            if pod is None or link is None or (pod.name and link.name and not _is_same_pod(pod, link)):
                continue
            container = link.container if link.name or not pod.name else self._only_container(pod)
            if found := pod if pod.name else link if link.name else None:
                yield each, found.but(uid=each.pod_uid, container=container)

    def _pods(self, uids: Collection[str]) -> Iterator[tuple[str, PodRef]]:
        """(UID, namespace and name) of each directory of a pod with one of these UIDs."""
        for name in self._list(POD_LOGS):
            if name.rpartition("_")[2] in uids and (found := POD_DIRECTORY_NAME.fullmatch(name)) is not None:
                yield found["uid"], PodRef(namespace=found["namespace"], name=found["pod"], uid=found["uid"])

    def _links(self, ids: Collection[str]) -> Iterator[tuple[str, PodRef]]:
        """(id, names) of each link of a container with one of these ids."""
        for name in self._list(CONTAINER_LOGS):
            if name[ID_OF_LINK] in ids and (found := LINK_NAME.fullmatch(name)) is not None:
                yield (
                    found["id"],
                    PodRef(namespace=found["namespace"], name=found["pod"], container=found["container"]),
                )

    def _only_container(self, pod: PodRef) -> str:
        """The name of a pod's container, where it has one only; else ""."""
        with (
            suppress(OSError),
            files.open_directory(self._root / POD_LOGS / f"{pod.namespace}_{pod.name}_{pod.uid}") as place,
        ):
            with os.scandir(place) as entries:
                found = [each.name for each in islice(entries, 2)]
            if len(found) == 1 and CONTAINER_NAME.fullmatch(found[0]):
                return found[0]
        return ""

    def _list(self, directory: str) -> Iterator[str]:
        """The names in a directory; none where it cannot be read."""
        with suppress(OSError), os.scandir(self._root / directory) as entries:
            yield from (each.name for each in islice(entries, MAX_NAMES))


def _is_whole(name: PodRef | None) -> bool:
    return name is not None and bool(name.container)


def _is_same_pod(one: PodRef, other: PodRef) -> bool:
    return (one.namespace, one.name) == (other.namespace, other.name)


def _by_key(found: Iterable[tuple[str, PodRef]]) -> Mapping[str, PodRef | None]:
    """By UID or id. None: there are several names."""
    names: dict[str, PodRef | None] = {}
    for key, name in found:
        names[key] = name if names.get(key, name) == name else None
    return names
