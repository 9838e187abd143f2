"""Which container a process is in, by its cgroup.

Kubelet names the cgroup of a pod, the container runtime that of a container in it (kubelet: pkg/kubelet/cm/
cgroup_manager_linux.go and pod_container_manager_linux.go):

- driver cgroupfs: `/kubepods/burstable/pod<UID>/<ID>`, of CRI-O `…/crio-<ID>`;
- driver systemd: `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID>.slice/`, with `_` for `-` in the
  UID, and in it `cri-containerd-<ID>.scope`, `crio-<ID>.scope` of CRI-O, `docker-<ID>.scope` of Docker;
- containerd with the driver cgroupfs below a kubelet with systemd: `/kubepods-pod<UID>.slice:cri-containerd:<ID>`.

What comes before (`--cgroup-root`, a node that is a container itself) and after (a program that divides its own cgroup)
may be anything. A pod that runs a cluster inside is one pod here: the first one of a path counts.

An agent with a cgroup namespace of its own reads paths relative to its own cgroup (cgroup_namespaces(7)): up by `/..`
to the first common directory, and down from there. With cgroup v2 a container that is not privileged has such a
namespace. Then a path need not contain `kubepods`: `/../../pod<UID>/<ID>`.

Cgroups below `user.slice` can be named by any user, so they name no pod. Elsewhere only root makes cgroups, and whom
root lets (a service with `User=` and `Delegate=`).
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from gpuplane.kubernetes.podref import ContainerId

UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod; of a static one it is a hash, which the API server does not have."""
ID = r"[0-9a-f]{64}"

PREFIX = r"(?:[A-Za-z0-9_.]+-)*"
"""Of a slice: the names of those that it is in."""

ALL_PODS = re.compile(rf"kubepods|{PREFIX}kubepods\.slice")
QOS_CLASS = re.compile(rf"besteffort|burstable|{PREFIX}kubepods-(?:besteffort|burstable)\.slice")
POD_SLICE = re.compile(rf"{PREFIX}kubepods(?:-besteffort|-burstable)?-pod({UID})\.slice")
POD = re.compile(rf"pod({UID})|{POD_SLICE.pattern}")
CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker)-)?({ID})(?:\.scope)?")
POD_AND_CONTAINER = re.compile(rf"{POD_SLICE.pattern}:(?:cri-containerd|crio|docker):({ID})")

STEPS_TO_PODS = 2
"""From a container's cgroup up to the directory that its pod's is in."""


def container_of(cgroups: Sequence[str]) -> ContainerId | None:
    """The container of a process with these cgroups, the paths of /proc/PID/cgroup.

    None where it is in none, or where its cgroups are of different ones.
    """
    found = {container for path in cgroups if (container := _container_of_path(path)) is not None}
    return found.pop() if len(found) == 1 else None


def _container_of_path(path: str) -> ContainerId | None:
    root, *names = path.split("/")
    steps_up = next((n for n, name in enumerate(names) if name != ".."), len(names))
    names = names[steps_up:]
    if root or names[:1] == ["user.slice"]:
        return None
    among_pods, may_be_among_pods = False, steps_up >= STEPS_TO_PODS
    for name, below in pairwise((*names, "")):
        if (whole := POD_AND_CONTAINER.fullmatch(name)) is not None:
            return _container_id(whole[1], whole[2])
        pod = POD.fullmatch(name) if among_pods or may_be_among_pods else None
        if pod is not None:
            container = CONTAINER.fullmatch(below)
            return None if container is None else _container_id(pod[1] or pod[2], container[1])
        is_class = QOS_CLASS.fullmatch(name) is not None
        if among_pods and not is_class:
            return None
        may_be_among_pods = may_be_among_pods and is_class
        among_pods = among_pods or ALL_PODS.fullmatch(name) is not None
    return None


def _container_id(pod_uid: str, container_id: str) -> ContainerId:
    return ContainerId(pod_uid.replace("_", "-"), container_id)
