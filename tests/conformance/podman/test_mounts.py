"""What root without a capability reaches through the mounts of deploy/: as deploy/README.md says it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.podman.box import Podman, compiled
from tests.deploy.kustomize import DEPLOY, Json, apply, build

pytestmark = pytest.mark.xdist_group("podman")  # what has one store is not used by two workers
RUNTIME = "run/containerd/containerd.sock"
SECRET = "etc/kubernetes/admin.conf"
CONNECT = r"""
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int count, char **paths)
{
    for (int i = 1; i < count; i++) {
        struct sockaddr_un address = {AF_UNIX, ""};
        strncpy(address.sun_path, paths[i], sizeof address.sun_path - 1);
        if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address) == 0)
            printf("connected %s\n", paths[i]);
    }
    return 0;
}
"""
LOCKED_DOWN = ("--user=0", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only")
TRY = f"""
sed -n 's/^CapEff:.*0000000000000000$/no capability/p' /proc/self/status
for socket in $(find /driver-root -type s); do /connect "$socket"; done
if cat /driver-root/{SECRET} 2>/dev/null; then echo; fi
if (echo x > /driver-root/usr/bin/x) 2>/dev/null; then echo written; fi
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """A host whose container runtime listens, as root's alone."""
    host = tmp_path / "host"
    for each in ("usr/bin", "sbin", "lib/firmware", "etc/OpenCL", "etc/alternatives"):
        (host / each).mkdir(parents=True)
    for path in (host / RUNTIME, host / SECRET):
        path.parent.mkdir(parents=True)
    (host / SECRET).write_text("secret")
    (host / SECRET).chmod(0o600)
    folder = os.open((host / RUNTIME).parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(f"/proc/self/fd/{folder}/{(host / RUNTIME).name}")  # the whole path may be too long for an address
        (host / RUNTIME).chmod(0o660)
        runtime.listen()
        yield host
    os.close(folder)


def reached(podman: Podman, host: Path, *components: str) -> list[str]:
    """What root without a capability says in a container with the mounts that the agent has below /driver-root."""
    objects = build(DEPLOY / "overlays/nvidia-runtime")
    for each in components:
        objects = apply(DEPLOY / "components" / each, objects)
    program = compiled(CONNECT, podman.root / "connect", "-static")
    mounts = [f"{host}{path}:{place}:ro" for path, place in _mounts(objects)]
    words = [word for each in (*mounts, f"{program}:/connect:ro") for word in ("--volume", each)]
    (host.parent / "cdi").mkdir()
    return podman.run(host.parent / "cdi", script=TRY, more=(*LOCKED_DOWN, *words)).split("\n")[:-1]


def _mounts(objects: list[Json]) -> Iterator[tuple[str, str]]:
    """(path of the host, where) of what is mounted read-only below /driver-root."""
    [daemonset] = [each for each in objects if each["kind"] == "DaemonSet"]
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    for each in container["volumeMounts"]:
        if each["mountPath"].startswith("/driver-root"):
            assert each["readOnly"]
            yield paths[each["name"]], each["mountPath"]


def test_a_read_only_mount_of_the_hosts_root_leaves_its_sockets_open(podman: Podman, host: Path) -> None:
    """components/driver-root: the runtime's socket answers, root's files can be read; nothing can be written."""
    assert reached(podman, host, "cdi", "driver-root") == [
        "no capability", f"connected /driver-root/{RUNTIME}", "secret"
    ]  # fmt: skip


def test_through_the_drivers_directories_nothing_of_the_kind_is_reached(podman: Podman, host: Path) -> None:
    """components/cdi: no socket and no other file of the node is there."""
    assert reached(podman, host, "cdi") == ["no capability"]
