"""From cgroups to containers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.telemetry.cgroups import container_of
from gpuplane.model.pod import ContainerId

UID, ID, OTHER = "76acaf17-8883-41ef-8dbd-7e32f6f22459", "a9" * 32, "b8" * 32
STATIC = "60dafbe5f355954d7fb4b2e9ad741c7b"
SYSTEMD = UID.replace("-", "_")
RECORDED = json.loads((Path(__file__).parent / "cgroups-1.36.json").read_text())
"""Of a real node with Kubernetes 1.36.2, containerd 2.1.9, cgroup v1 (hybrid) and kubelet's driver cgroupfs."""


@pytest.mark.parametrize("process", RECORDED, ids=lambda each: each["cmdline"][:30])
def test_processes_of_a_real_node(process: dict[str, str]) -> None:
    """Each is in the container that containerd says, sandboxes included; of init containers, sidecars, static pods."""
    found = container_of([line.split(":", 2)[2] for line in process["cgroup"]])

    assert found is not None
    assert (found.container_id, found.pod_uid) == (process["container"], process["podUid"])


@pytest.mark.parametrize(
    "path",
    [
        # kubelet's driver cgroupfs: pod_container_manager_linux.go
        f"/kubepods/besteffort/pod{UID}/{ID}",
        f"/kubepods/pod{UID}/{ID}",
        f"/kubepods/burstable/pod{UID}/crio-{ID}",
        # its driver systemd; runtimes: containerd (SystemdCgroup = true), CRI-O, cri-dockerd
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/docker-{ID}.scope",
        # containerd with SystemdCgroup = false below a kubelet with systemd
        f"/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD}.slice:cri-containerd:{ID}",
        # kind: the node is a container, and kubelet has a cgroup root of its own
        f"/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
        f"/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}",
        # as a process in another cgroup namespace sees it (cgroup_namespaces(7))
        f"/../../burstable/../kubepods/burstable/pod{UID}/{ID}",
        # the program divides its cgroup: systemd, podman, or a cluster in the pod
        f"/kubepods/pod{UID}/{ID}/init.scope",
        f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope/container/libpod-{OTHER}.scope",
        f"/kubepods/pod{UID}/{ID}/kubelet/kubepods/pod{STATIC}/{OTHER}",
    ],
)
def test_a_path_names_the_container(path: str) -> None:
    """Of each runtime and driver; the first pod of a path counts."""
    assert container_of([path]) == ContainerId(UID, ID)


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["/"],
        [""],
        ["/user.slice/user-1000.slice/session-3.scope"],
        [f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}"],
        ["/system.slice/nvidia-persistenced.service"],
        [f"/system.slice/docker-{ID}.scope"],
        [f"/docker/{ID}"],
        [f"/kubepods/pod{UID}"],
        [f"/kubepods/pod{UID}/{ID[:-1]}"],
        [f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-conmon-{ID}.scope"],
        [f"/pod{UID}/{ID}"],
        [f"/kubepods/pod{UID}/{ID}", f"/kubepods/pod{UID}/{OTHER}"],
    ],
)
def test_what_is_in_no_container(paths: list[str]) -> None:
    """A host's process, a container of another program, a monitor, a name that a user could make, two containers."""
    assert container_of(paths) is None


def test_all_hierarchies_of_one_process_agree() -> None:
    """With cgroup v1 some controllers may be elsewhere."""
    assert container_of(["/", f"/kubepods/pod{STATIC}/{ID}", "/system.slice"]) == ContainerId(STATIC, ID)


@given(st.lists(st.text(max_size=200), max_size=5))
def test_nothing_raises(paths: list[str]) -> None:
    """And what was not made by kubelet names no container."""
    if not any("pod" in path for path in paths):
        assert container_of(paths) is None
    container_of(paths)
