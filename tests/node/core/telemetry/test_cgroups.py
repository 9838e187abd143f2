"""From cgroups to containers."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import ContainerId
from gpuplane.node.core.telemetry.cgroups import container_of
from tests.lengths import length

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


PATHS = [
    # kubelet's driver cgroupfs (pod_container_manager_linux.go; Talos 1.9, "Cgroups Resource Analysis": v2, too);
    # containerd: internal/cri/server/helpers.go, getCgroupsPath; CRI-O: internal/config/cgmgr/cgroupfs_linux.go
    f"/kubepods/besteffort/pod{UID}/{ID}",
    f"/kubepods/pod{UID}/{ID}",
    f"/kubepods/burstable/pod{UID}/crio-{ID}",
    # its driver systemd; runtimes: containerd (SystemdCgroup = true), CRI-O, cri-dockerd
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope",
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/docker-{ID}.scope",
    # Kubernetes 1.8 (spiffe/spire: pkg/agent/plugin/workloadattestor/k8s, its examples)
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID}.slice/docker-{ID}.scope",
    # containerd with SystemdCgroup = false below a kubelet with systemd (mountinfo of such nodes, in public)
    f"/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD}.slice:cri-containerd:{ID}",
    f"/kubepods-besteffort-pod{SYSTEMD}.slice:cri-containerd:{ID}",
    # kind: the node is a container, and kubelet has a cgroup root of its own (containerd/nri#227)
    f"/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    f"/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}",
    # k3d: k3s in Docker
    f"/docker/{OTHER}/kubepods/besteffort/pod{UID}/{ID}",
    # an agent with a cgroup namespace of its own, as Linux 6.18 shows it to one that is in
    # kubepods/burstable/pod<A>/<A>, kubepods/pod<A>/<A> or kubepods/besteffort/pod<A>/<A>
    f"/../../pod{UID}/{ID}",
    f"/../../../pod{UID}/{ID}",
    f"/../../burstable/pod{UID}/{ID}",
    f"/../../../besteffort/pod{UID}/{ID}",
    f"/../../../besteffort/pod{UID}/{ID}/inner",
    # the same with systemd (inspektor-gadget#3085), and outside of kubepods
    f"/../../kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    f"/../../kubepods/burstable/pod{UID}/{ID}",
    # the program divides its cgroup: systemd, crun, podman, or a cluster in the pod
    f"/kubepods/pod{UID}/{ID}/init.scope",
    f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope/container",
    f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope/container/libpod-{OTHER}.scope",
    f"/kubepods/pod{UID}/{ID}/kubelet/kubepods/pod{STATIC}/{OTHER}",
]


@pytest.mark.parametrize("path", PATHS)
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
        [f"/../../../../user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}"],
        [f"/../../user.slice/user-1000.slice/user@1000.service/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope"],
        ["/system.slice/nvidia-persistenced.service"],
        [f"/system.slice/docker-{ID}.scope"],
        [f"/docker/{ID}"],
        [f"/kubepods/pod{UID}"],
        [f"/kubepods/pod{UID}/{ID[:-1]}"],
        [f"kubepods/pod{UID}/{ID}"],
        [f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-conmon-{ID}.scope"],
        [f"/pod{UID}/{ID}"],
        [f"/../pod{UID}/{ID}"],
        [f"/../{ID}"],
        [f"/../crio-{ID}.scope"],
        [f"/../../system.slice/pod{UID}/{ID}"],
        [f"/kubepods/podcustom/{OTHER}/kubepods/pod{UID}/{ID}"],
        [f"/kubepods.slice/kubepods-podcustom.slice/cri-containerd-{OTHER}.scope/kubepods/pod{UID}/{ID}"],
        [f"/system.slice/x.service/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope"],
        [f"/kubepods/pod{UID}/{ID}", f"/kubepods/pod{UID}/{OTHER}"],
    ],
)
def test_what_is_in_no_container(paths: list[str]) -> None:
    """A host's process, a container of another program, a monitor, a name that a user could make, what a pod of which
    we do not know the name calls a pod, two containers; and a container of the agent's own pod, of which a relative
    path does not say the pod."""
    assert container_of(paths) is None


def test_all_hierarchies_of_one_process_agree() -> None:
    """With cgroup v1 some controllers may be elsewhere."""
    assert container_of(["/", f"/kubepods/pod{STATIC}/{ID}", "/system.slice"]) == ContainerId(STATIC, ID)


@given(st.lists(st.text(max_size=200) | st.binary(max_size=200).map(lambda each: each.decode(errors="replace"))))
def test_nothing_raises(paths: list[str]) -> None:
    """And what was not made by kubelet names no container."""
    if not any("pod" in path for path in paths):
        assert container_of(paths) is None
    container_of(paths)


PIECES = st.sampled_from(
    f"/ /.. /kubepods /kubepods.slice /burstable /besteffort /user.slice /system.slice .slice - : .scope é \0 a "
    f"/pod{UID} /pod{STATIC} /kubepods-pod{SYSTEMD}.slice /{ID} /crio-{ID}.scope :crio:{OTHER} /docker-{OTHER}.scope "
    f"/crio-conmon-{ID}.scope".split(" ")
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_a_container_is_named_only_where_it_stands_in_its_pod(path: str) -> None:
    """Whatever a path is put together from: the id follows the UID at once, and none of it is a user's."""
    found = container_of([path])
    if found is not None:
        uid = found.pod_uid.replace("-", "[-_]")
        assert re.search(rf"/(kubepods-)?pod{uid}(\.slice)?[/:](docker-|crio[-:])?{found.container_id}", path)
        assert not re.match(r"(/\.\.)*/user\.slice(/|$)", path)


@given(st.sampled_from(PATHS), st.data())
def test_a_damaged_path_names_no_other_container(path: str, data: st.DataObject) -> None:
    """One that lost, got or changed a character, outside of the pod's UID and the container's id."""
    at = data.draw(st.integers(0, len(path) - 1))
    character = data.draw(st.sampled_from("/.-_:xpod0") | st.characters())
    how = data.draw(st.sampled_from(("lost", "got", "changed")))
    damaged = path[:at] + ("" if how == "lost" else character) + path[at + (how != "got") :]
    found = container_of([damaged])
    if UID in damaged.replace("_", "-") and ID in damaged and OTHER not in damaged:
        assert found in (None, ContainerId(UID, ID))


@given(st.sampled_from(PATHS), st.lists(PIECES, max_size=length(4, 8)).map("".join))
def test_a_program_in_a_container_cannot_leave_it(path: str, below: str) -> None:
    """Whatever it calls the cgroups that it makes below its own."""
    assert container_of([f"{path}/{below}"]) == ContainerId(UID, ID)
