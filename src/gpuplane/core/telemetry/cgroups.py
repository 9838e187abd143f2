"""Which container a process is in, by its cgroup.

Kubelet names the cgroup of a pod, the container runtime that of a container in it (kubelet: pkg/kubelet/cm/
cgroup_manager_linux.go and pod_container_manager_linux.go):

- driver cgroupfs: `/kubepods/burstable/pod<UID>/<ID>`, of CRI-O `…/crio-<ID>`;
- driver systemd: `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID>.slice/`, with `_` for `-` in the
  UID, and in it `cri-containerd-<ID>.scope`, `crio-<ID>.scope` of CRI-O, `docker-<ID>.scope` of Docker;
- containerd with the driver cgroupfs below a kubelet with systemd: `/kubepods-pod<UID>.slice:cri-containerd:<ID>`.

What comes before (`--cgroup-root`, a node that is a container itself) and after (a program that divides its own cgroup)
may be anything. A pod that runs a cluster inside is one pod here: the first one of a path counts. Cgroups below
`user.slice` can be named by any user, so they name no pod.
"""

import re
from collections.abc import Sequence

from gpuplane.model.pod import ContainerId

UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod; of a static one it is a hash, which the API server does not have."""
ID = r"[0-9a-f]{64}"

POD_DIRECTORY = re.compile(rf"pod({UID})")
POD_SLICE = re.compile(rf"(?:[A-Za-z0-9_.]+-)*kubepods(?:-besteffort|-burstable)?-pod({UID})\.slice")
CONTAINER = re.compile(rf"(?:(?:cri-containerd|crio|docker)-)?({ID})(?:\.scope)?")
POD_AND_CONTAINER = re.compile(rf"{POD_SLICE.pattern}:(?:cri-containerd|crio|docker):({ID})")


def container_of(cgroups: Sequence[str]) -> ContainerId | None:
    """The container of a process with these cgroups, the paths of /proc/PID/cgroup.

    None where it is in none, or where its cgroups are of different ones.
    """
    found = {container for path in cgroups if (container := _container_of_path(path)) is not None}
    return found.pop() if len(found) == 1 else None


def _container_of_path(path: str) -> ContainerId | None:
    names = path.split("/")[1:]
    if names[:1] == ["user.slice"]:
        return None
    for n, name in enumerate(names):
        if (whole := POD_AND_CONTAINER.fullmatch(name)) is not None:
            return _container_id(whole[1], whole[2])
        pod = POD_SLICE.fullmatch(name) or (POD_DIRECTORY.fullmatch(name) if "kubepods" in names[:n] else None)
        if pod is not None:
            container = CONTAINER.fullmatch(names[n + 1]) if len(names) > n + 1 else None
            return None if container is None else _container_id(pod[1], container[1])
    return None


def _container_id(pod_uid: str, container_id: str) -> ContainerId:
    return ContainerId(pod_uid.replace("_", "-"), container_id)
