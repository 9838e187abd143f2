"""Containers by podman and Debian's runc: a real CDI runtime, with images, storage and a CDI directory of its own.

podman 4 reads /etc/cdi and /var/run/cdi and nothing else. So each call has a mount namespace in which /var/run/cdi is
the directory of the test: nothing of this machine is touched.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuplane.base.value import Value

RUNTIME = "/usr/sbin/runc"
SPECS = Path("/var/run/cdi")
IMAGE = "box"
APPLETS = ("cat", "chmod", "env", "find", "mknod", "readlink", "sed", "sh", "stat")
LOADED = re.compile(r"(?:^|\s)(/\S+)", re.MULTILINE)

PROBE = r"""/* Whether a program of the image finds the driver, and uses it. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*version)(void) = library ? (int (*)(void))dlsym(library, "cuDriverVersion") : 0;
    if (!version)
        return puts(dlerror()), 1;
    return printf("CUDA %d\n", version()), 0;
}
"""
LIBRARY = "int cuDriverVersion(void) { return 13000; }\n"

LOOK = """
env | sed 's/^/env /'
find /dev -type c -exec stat -c 'node %n %t %T' {} ';'
sed 's/^/mount /' /proc/self/mountinfo
find / /dev -xdev -type l -exec sh -c 'for l; do echo "link $l $(readlink "$l")"; done' sh {} +
"""


class Seen(Value):
    """What a process in a container sees of itself."""

    env: frozenset[str]
    nodes: Mapping[str, tuple[int, int]]  # path → major, minor
    mounts: Mapping[str, tuple[str, str]]  # where → what of its file system, options
    links: Mapping[str, str]


class Failed(Exception):
    """A container that did not start, or whose process failed; with what was said."""


def missing() -> str:
    """What is missing to make containers here; "" if nothing."""
    programs = {"podman": "podman", RUNTIME: "runc", "busybox": "busybox-static", "unshare": "util-linux", "cc": "gcc"}
    lacking = [package for program, package in programs.items() if shutil.which(program) is None]
    if lacking:
        return ", ".join(lacking)
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=60).returncode:
        return "root, and the right to make mount namespaces"
    return ""


class Podman:
    """podman, with everything of it below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        tree = root / "image"
        for folder in ("bin", "etc", "tmp", "usr/lib"):
            (tree / folder).mkdir(parents=True)
        shutil.copy2(shutil.which("busybox") or "", tree / "bin/busybox")
        for applet in APPLETS:
            (tree / "bin" / applet).symlink_to("busybox")
        (tree / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
        compiled(PROBE, tree / "bin/probe")
        for each in _libraries(tree / "bin/probe", tree / "bin/busybox"):
            (tree / each[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(each, tree / each[1:])
        archive = root / "image.tar"
        _output(["tar", "-C", tree, "-cf", archive, "."])
        self._call(root, "import", archive, IMAGE)

    def look(self, cdi: Path, *devices: str, more: Sequence[str] = ()) -> Seen:
        """What a container with these devices sees."""
        lines = [line.split(" ") for line in self.run(cdi, *devices, script=LOOK, more=more).splitlines()]
        of = {kind: [rest for first, *rest in lines if first == kind] for kind in ("env", "node", "mount", "link")}
        assert len({each[4] for each in of["mount"]}) == len(of["mount"]), "something is mounted twice"
        return Seen(
            env=frozenset(" ".join(each) for each in of["env"] if not each[0].startswith("HOSTNAME=")),
            nodes={path: (int(major, 16), int(minor, 16)) for path, major, minor in of["node"]},
            mounts={each[4]: (each[3], each[5]) for each in of["mount"]},
            links={path: " ".join(target) for path, *target in of["link"]},
        )

    def run(self, cdi: Path, *devices: str, script: str, more: Sequence[str] = ()) -> str:
        """What a shell says in a container that has these devices, by the specifications in `cdi`. Raises Failed."""
        asked = [word for device in devices for word in ("--device", device)]
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
        options = ("--rm", "--network", "none", *limits, *asked, *more)
        return self._call(cdi, "run", *options, f"localhost/{IMAGE}", "/bin/sh", "-euc", script)

    def _call(self, cdi: Path, verb: str, *words: object) -> str:
        own = ("--root", self.root / "storage", "--runroot", self.root / "run", "--tmpdir", self.root / "tmp")
        system = ("--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", RUNTIME)
        mounted = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        apart = ("unshare", "--mount", "--propagation", "private", "sh", "-euc", mounted, "sh", cdi, SPECS)
        return _output([*apart, "podman", *own, *system, verb, *words])


def compiled(source: str, to: Path, *flags: str) -> Path:
    """A program or library from C."""
    to.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-xc", "-", "-o", to, *flags], input=source.encode(), check=True, timeout=60)
    return to


def _libraries(*programs: Path) -> set[str]:
    """What programs are loaded with; nothing for a static one."""
    told = (subprocess.run(["ldd", each], capture_output=True, text=True, timeout=60) for each in programs)
    return {path for done in told if done.returncode == 0 for path in LOADED.findall(done.stdout)}


def _output(command: list[object]) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, errors="replace", timeout=60)
    if done.returncode:
        raise Failed(f"{done.stdout}{done.stderr}")
    return done.stdout
