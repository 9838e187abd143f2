"""A container about to start: a root filesystem, the state that a runtime tells, and what lies outside."""

import hashlib
import json
import platform
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ARCHITECTURE = platform.machine()
TRIPLET = f"{ARCHITECTURE}-linux-gnu"
LIBRARIES = f"/usr/lib/{TRIPLET}"
LOADER = "/lib64/ld-linux-x86-64.so.2" if ARCHITECTURE == "x86_64" else "/lib/ld-linux-aarch64.so.1"
MUSL = f"/lib/ld-musl-{ARCHITECTURE}.so.1"
VERSION = "580.95.05"
COMPAT = "/usr/local/cuda/compat"
HOST = (f"--driver={VERSION}", "--cuda=13.0")
EVERYTHING = (
    f"--link=libcuda.so.1::{LIBRARIES}/libcuda.so",
    f"--link=libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1",
    f"--link=../libnvidia-allocator.so.1::{LIBRARIES}/gbm/nvidia-drm_gbm.so",
    "--link-if=../card1::/dev/dri/by-path/pci-0000:1b:00.0-card",
    f"--folder={LIBRARIES}",
    f"--compat={COMPAT}",
    *HOST,
    "--params",
)
NAMESPACE = ["unshare", "--mount", "--propagation", "private", "sh", "-euc"]
HOSTILE: Mapping[str, str] = {
    "LD_PRELOAD": "/evil.so",
    "LD_LIBRARY_PATH": "/",
    "PATH": "/evil",
    "IFS": "/",
    "TMPDIR": "/evil",
}


class Ended(NamedTuple):
    """How it ended, and what it said on standard error."""

    code: int
    said: str


class Container:
    """A directory with `root`, the container's; `outside`, which is not; and `bundle`."""

    def __init__(self, folder: Path, hook: Path) -> None:
        self.folder, self.hook = folder, hook
        self.root, self.outside, self.bundle = folder / "root", folder / "outside", folder / "bundle"
        for each in ("proc", "dev/dri", "etc", "lib", "lib64", "usr/bin", "tmp", LIBRARIES[1:]):
            (self.root / each).mkdir(parents=True, exist_ok=True)
        self.put(LOADER, Path(LOADER).read_bytes())
        self.library(f"{LIBRARIES}/libcuda.so.{VERSION}", "libcuda.so.1")
        self.put("/dev/dri/card1")
        self.put("/etc/ld.so.cache")
        self.bundle.mkdir()
        self.configure({"ociVersion": "1.0.2", "root": {"path": "../root"}})
        for each in ("x86", "etc/ld.so.conf.d", "dri/by-path", "compat", "gbm"):
            (self.outside / each).mkdir(parents=True)
        for each in ("libcuda.so.1", "x86/libcuda.so.1", "ld.so.conf", "ld.so.cache", "etc/ld.so.conf.d/x.conf"):
            (self.outside / each).write_text("not yours")

    def inside(self, path: str) -> Path:
        """A path of the container, on the host. Links are not followed."""
        return self.root / path.lstrip("/")

    def links(self, path: str) -> str:
        """What a link says."""
        return str(self.inside(path).readlink())

    def put(self, path: str, content: bytes | str = b"") -> None:
        """A file of the image."""
        self.inside(path).parent.mkdir(parents=True, exist_ok=True)
        self.inside(path).write_bytes(content.encode() if isinstance(content, str) else content)
        self.inside(path).chmod(0o755)

    def library(self, path: str, soname: str) -> None:
        """A shared library of the image."""
        self.inside(path).parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{soname}", "-o"]
        subprocess.run([*command, str(self.inside(path))], check=True, timeout=60)

    def point(self, path: str, target: str | Path) -> None:
        """A link of the image, in the place of whatever is there."""
        there = self.inside(path)
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        there.unlink(missing_ok=True)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(target)

    def configure(self, config: object) -> None:
        """The bundle's config.json."""
        (self.bundle / "config.json").write_text(json.dumps(config))

    @property
    def state(self) -> dict[str, object]:
        """As runc tells it."""
        return {"ociVersion": "1.0.2-dev", "id": "c", "status": "creating", "pid": 1, "bundle": str(self.bundle)}

    def run(
        self,
        *arguments: str,
        state: bytes | None = None,
        prepare: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Call the hook as a runtime would, after shell commands in a mount namespace of its own."""
        command = [str(self.hook), "create-container", *arguments]
        if environment is not None:  # the hook's alone
            command = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
        if prepare:
            command = [*NAMESPACE, f'{prepare}\nexec "$@"', "sh", *command]
        ended = subprocess.run(
            command,
            input=json.dumps(self.state).encode() if state is None else state,
            capture_output=True,
            timeout=60,
            cwd=self.folder,
        )
        assert ended.stdout == b""
        return Ended(ended.returncode, ended.stderr.decode(errors="replace"))

    def well(self, *arguments: str, prepare: str = "") -> None:
        """Call it, and it does all that was asked."""
        ended = self.run(*arguments, prepare=prepare)
        assert ended == (0, ""), ended

    def cached(self) -> dict[str, str]:
        """The loader's cache: the first path of each name."""
        listed = subprocess.run(
            ["/sbin/ldconfig", "-p", "-C", self.inside("/etc/ld.so.cache")], capture_output=True, text=True, timeout=20
        )
        lines = [line.split() for line in listed.stdout.splitlines() if " => " in line]
        return {line[0]: line[-1] for line in reversed(lines)}


def snapshot(folder: Path) -> dict[str, object]:
    """Everything that can be seen of a tree: kinds, modes, owners, contents and times."""
    seen: dict[str, object] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        found = path.lstat()
        content = ""
        if stat.S_ISLNK(found.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(found.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest() if found.st_size < 1 << 24 else str(found.st_size)
        seen[str(path.relative_to(folder))] = (
            found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns, content
        )  # fmt: skip
    return seen
