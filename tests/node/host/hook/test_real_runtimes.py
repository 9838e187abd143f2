"""The hook under real runtimes: a program in a container finds its libraries, and nothing of the image runs."""

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.host.hook.world import LIBRARIES, LOADER, NAMESPACE, Container

DRIVER = "/opt/driver/lib"  # where no loader looks by itself
ASKS = """
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *found = dlopen("libcuda.so.1", RTLD_NOW);
    puts(found ? "found" : dlerror());
    return !found;
}
"""
ARGUMENTS = [
    "gpuplane-hook",
    "create-container",
    f"--link=libcuda.so.580.95.05::{DRIVER}/libcuda.so.1",
    f"--folder={DRIVER}",
    "--compat=/usr/local/cuda/compat",
    "--driver=580.95.05",
    "--cuda=13.0",
    "--params",
]


@pytest.fixture
def image(container: Container) -> Container:
    """An image with busybox, glibc, and a program that asks for libcuda.so.1."""
    if not (busybox := shutil.which("busybox")) or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:
        pytest.skip("needs a static busybox (Debian: apt install busybox-static)")
    shutil.copy2(busybox, container.inside("/usr/bin/busybox"))
    container.put(f"{LIBRARIES}/libc.so.6", Path(f"/lib/{Path(LIBRARIES).name}/libc.so.6").read_bytes())
    container.library(f"{DRIVER}/libcuda.so.580.95.05", "libcuda.so.1")
    command = ["cc", "-x", "c", "-", "-o", str(container.inside("/usr/bin/asks"))]
    subprocess.run(command, input=ASKS, text=True, check=True, timeout=60)
    for each in ("sys", "run"):
        container.inside(each).mkdir()
    container.inside(LOADER).chmod(0o755)
    return container


@pytest.fixture
def mark(image: Container) -> Path:
    """The file that a library of the image leaves where it is run with the host's files in sight."""
    mark, source = image.outside / "mark", str(Path(__file__).with_name("mark.c"))
    command = ["cc", "-shared", "-fPIC", "-DLIBRARY", f'-DMARK="{mark}"', source, "-o", str(image.inside("/evil.so"))]
    subprocess.run(command, check=True, timeout=60)
    return mark


RUNC = ("runc",)
OWN_CGROUPS = 'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"'
CRUN = (*NAMESPACE, OWN_CGROUPS, "sh", "crun", "--cgroup-manager=disabled")


class Runc:
    """Containers by runc, or by what can be called as it is."""

    def __init__(self, image: Container, program: tuple[str, ...] = RUNC) -> None:
        for each in {"runc", "crun"} & {"runc", *program}:  # runc writes the configuration
            if not shutil.which(each):
                pytest.skip(f"needs {each} (Debian: apt install {each})")
        self.image, self.program = image, program

    def run(self, *command: str, hooks: list[dict[str, object]], environment: tuple[str, ...] = ()) -> tuple[int, str]:
        """A container with these createContainer hooks: how it ended, and what was said."""
        subprocess.run(["runc", "spec"], cwd=self.image.bundle, check=True, timeout=60)
        config = json.loads((self.image.bundle / "config.json").read_text())
        config["root"] = {"path": "../root", "readonly": True}
        config["process"] |= {"terminal": False, "args": command, "env": ["PATH=/usr/bin", *environment]}
        config["linux"]["resources"] = {}
        config["linux"]["namespaces"] = [each for each in config["linux"]["namespaces"] if each["type"] != "cgroup"]
        config["hooks"] = {"createContainer": hooks}
        self.image.configure(config)
        name = f"gpuplane-{self.image.folder.name[-20:]}"
        ended = subprocess.run(
            [*self.program, "--root", self.image.folder / "runc", "run", name],
            cwd=self.image.bundle, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture
def runc(image: Container) -> Runc:
    """A runc that can start this image at all."""
    return able(Runc(image))


def able(runc: Runc) -> Runc:
    """One that can start its image at all."""
    (runc.image.bundle / "config.json").unlink()
    code, said = runc.run("busybox", "true", hooks=[])
    if code:
        pytest.skip(f"needs a {runc.program[-2:][0]} that can start containers here: {said.strip()}")
    (runc.image.bundle / "config.json").unlink()
    return runc


def ours(image: Container, *environment: str) -> dict[str, object]:
    """The hook entry of our specifications."""
    entry: dict[str, object] = {"path": str(image.hook), "args": ARGUMENTS, "timeout": 30}
    return entry | ({"env": list(environment)} if environment else {})


def test_a_program_finds_the_driver(image: Container, runc: Runc) -> None:
    """By its loader's cache, in a container whose root is read-only for its processes."""
    assert runc.run("asks", hooks=[])[0] == 1
    (image.bundle / "config.json").unlink()

    assert runc.run("asks", hooks=[ours(image, "GPUPLANE_HOOK=1")]) == (0, "found\n")


def test_a_program_finds_the_driver_under_crun(image: Container) -> None:
    """Where the root is read-only before the hook is called, up to crun 1.25."""
    crun = able(Runc(image, CRUN))

    assert crun.run("asks", hooks=[ours(image, "GPUPLANE_HOOK=1")]) == (0, "found\n")


def test_an_error_is_what_the_user_reads(image: Container, runc: Runc) -> None:
    """The container does not start, and the runtime shows our line."""
    image.inside(f"{DRIVER}/libcuda.so.1").mkdir()
    code, said = runc.run("asks", hooks=[ours(image, "GPUPLANE_HOOK=1")])

    assert code == 1
    assert "gpuplane-hook: " in said
    assert f" {DRIVER}/libcuda.so.1: {os.strerror(errno.EISDIR)}" in said


def test_nothing_of_an_image_with_a_preload_runs(image: Container, runc: Runc, mark: Path) -> None:
    """runc before 1.2 gives a hook without an environment the image's, in the image's root as its directory.

    A dynamic program without one shows it: the image's library runs as root, with the host's files in sight. Ours has
    an environment of its own, and would not mind without one: it is static, and what it starts has none.
    """
    preload = "LD_PRELOAD=./evil.so"
    runc.run("busybox", "true", hooks=[{"path": "/bin/true", "args": ["true"]}], environment=(preload,))
    affected = mark.exists()
    mark.unlink(missing_ok=True)
    for environment in (("GPUPLANE_HOOK=1",), ()):
        (image.bundle / "config.json").unlink()
        code, said = runc.run("busybox", "true", hooks=[ours(image, *environment)], environment=(preload,))

        assert (code, said) == (0, "")
        assert not mark.exists()
    assert affected or "1.1." not in subprocess.check_output(["runc", "--version"], text=True)


FLAGS = ("--cgroup-manager", "cgroupfs")
LIMITS = ("--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")


@pytest.fixture
def podman(image: Container) -> Iterator[list[str]]:
    """A podman that has the image, in a store of its own."""
    if not shutil.which("podman") or not shutil.which("runc"):
        pytest.skip("needs podman and runc (Debian: apt install podman runc)")
    with tempfile.TemporaryDirectory(prefix="podman-") as short:  # podman wants a path of 50 characters at most
        store = [f"--root={image.folder}/store", f"--runroot={short}", "--storage-driver=vfs"]
        podman = ["podman", *store, "--runtime", str(shutil.which("runc")), *FLAGS]
        with subprocess.Popen(["tar", "-C", image.root, "-c", "."], stdout=subprocess.PIPE) as tree:
            subprocess.run(
                [*podman, "import", "-q", "-", "asks"],
                stdin=tree.stdout,
                check=True,
                timeout=100,
                stdout=subprocess.DEVNULL,
            )
        ended = subprocess.run(
            [*podman, "run", "--rm", *LIMITS, "asks", "busybox", "true"], capture_output=True, text=True
        )
        if ended.returncode:
            pytest.skip(f"needs a podman that can start containers here: {ended.stderr.strip()}")
        yield podman
        subprocess.run([*podman, "rmi", "-f", "asks"], capture_output=True, timeout=100)


@pytest.mark.xdist_group("podman")
def test_a_cdi_device_of_podmans_has_it(image: Container, podman: list[str]) -> None:
    """A specification with our hook, the driver's library by a mount, and an image that preloads something."""
    image.library("/../driver/libcuda.so.580.95.05", "libcuda.so.1")
    library = {
        "hostPath": str(image.folder / "driver/libcuda.so.580.95.05"),
        "containerPath": f"{DRIVER}/libcuda.so.580.95.05",
        "options": ["ro", "nosuid", "nodev", "bind"],
    }
    edits = {"mounts": [library], "hooks": [{"hookName": "createContainer", **ours(image, "GPUPLANE_HOOK=1")}]}
    device = {"name": "one", "containerEdits": {"env": ["SEEN=1"]}}
    spec = {"cdiVersion": "0.3.0", "kind": "example.com/gpu", "devices": [device], "containerEdits": edits}
    (image.folder / "cdi").mkdir()
    (image.folder / "cdi/example.json").write_text(json.dumps(spec))
    script = f'mkdir -p /var/run/cdi; mount --bind {image.folder}/cdi /var/run/cdi; exec "$@"'
    command = [*podman, "run", "--rm", *LIMITS, "--device", "example.com/gpu=one", "--read-only", "asks", "asks"]
    ended = subprocess.run([*NAMESPACE, script, "sh", *command], capture_output=True, text=True, timeout=100)

    assert (ended.stdout, ended.returncode) == ("found\n", 0), ended.stderr
