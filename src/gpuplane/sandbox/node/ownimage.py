"""A container of our own image: its program runs as a process of this machine.

It gets its arguments, environment, mounts and service account. A process has no root directory of its own here, so what
in its arguments and environment is a path in the container is replaced by where that lies: a mount at its volume, a
directory above mounts at that of its node, where they are the node's own at the same place, or else at one with links
to them. `0.0.0.0` is the address of its pod, and NVML is the machine that its
node plays.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gpuplane.sandbox.node.environment import Variable, expand
from gpuplane.sandbox.node.objects import Json

KUBELET_ROOT = PurePosixPath("/var/lib/kubelet")
IMAGE_NAME = "gpuplane"
ENTRYPOINT = ("gpuplane", "agent")
"""Of our image (deploy/Containerfile)."""
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
COMMANDS_WITH_KUBECONFIG = frozenset({"agent"})
"""Of our commands those that speak to the API server of their cluster."""
ANY_ADDRESS = re.compile(r"(0\.0\.0\.0|\[::\]|)(:\d{1,5})")


class HostPaths(NamedTuple):
    """Directories of one node. `root`: what its paths are below; `kubelet`: kubelet's directory once more, by a short
    path, since paths of sockets are short; `run`: for what its pods need while they run; `machine`: its machine file.
    """

    root: Path
    kubelet: Path
    run: Path
    machine: Path

    def host(self, path: PurePosixPath) -> Path:
        """Where a path of the node is on this machine."""
        if path.is_relative_to(KUBELET_ROOT):
            return self.kubelet / path.relative_to(KUBELET_ROOT)
        return self.root / path.relative_to("/")


class Site(NamedTuple):
    """Where a process runs. `address`: where it listens; `rootfs`: a directory with links to its mounts."""

    host: HostPaths
    address: str
    rootfs: Path
    kubeconfig: Path


class Process(NamedTuple):
    """What is started."""

    command: list[str]
    environment: dict[str, str]


def is_own_image(image: str) -> bool:
    """Whether an image is ours, by its name: whatever its registry and tag."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0] == IMAGE_NAME


def own_command(container: Json) -> list[str] | None:
    """The words of our program that a container runs; None where it runs something else of our image."""
    command = container.get("command") or ENTRYPOINT
    words = [*command, *(container.get("args") or ())]
    return words if PurePosixPath(words[0]).name == IMAGE_NAME else None


def make_process(
    words: Sequence[str], environment: Mapping[str, Variable], mounts: Mapping[str, Path], site: Site
) -> Process:
    """The process of a container. `mounts`: path in the container → where its volume is."""
    paths = _Paths(mounts, site)
    arguments = [_argument(expand(each, environment), paths, site) for each in words[1:]]
    if words[1:2] and words[1] in COMMANDS_WITH_KUBECONFIG and SERVICE_ACCOUNT in mounts:
        arguments.append(f"--kubeconfig={site.kubeconfig}")
    values = {name: paths.real(each.value) for name, each in environment.items()}
    return Process([sys.executable, "-m", "gpuplane", *arguments], values)


def make_rootfs(rootfs: Path, mounts: Mapping[str, Path]) -> None:
    """Directories with a link to each mount. One below another mount has none: it is reached through that."""
    for path in sorted(mounts):
        link = rootfs / PurePosixPath(path).relative_to("/")
        if not any(parent.is_symlink() for parent in link.parents):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(mounts[path])


def _argument(text: str, paths: "_Paths", site: Site) -> str:
    name, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
    if (name, value) == ("--machine", "nvml"):
        return f"--machine={site.host.machine}"
    if match := ANY_ADDRESS.fullmatch(value):
        return f"{name}{equals}{site.address}{match[2]}"
    return f"{name}{equals}{paths.real(value)}"


class _Paths:
    """Paths of a container, and where what they name is."""

    def __init__(self, mounts: Mapping[str, Path], site: Site) -> None:
        self._mounts = {PurePosixPath(path): source for path, source in mounts.items()}
        self._site = site

    def real(self, text: str) -> str:
        """Of a text that is a path at, below or above a mount; any other text stays."""
        if not text.startswith("/"):
            return text
        path = PurePosixPath(text)
        above = [mount for mount in self._mounts if path.is_relative_to(mount)]
        if above:
            mount = max(above, key=lambda each: len(each.parts))
            return str(self._mounts[mount] / path.relative_to(mount))
        below = [mount for mount in self._mounts if mount.is_relative_to(path)]
        if not below or path == PurePosixPath("/"):
            return text
        if all(self._mounts[mount] == self._site.host.host(mount) for mount in below):
            return str(self._site.host.host(path))
        return str(self._site.rootfs / path.relative_to("/"))
