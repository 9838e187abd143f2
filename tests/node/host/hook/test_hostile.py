"""A hostile image reaches nothing but itself: nothing outside its root is touched, and nothing of it runs."""

import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.node.host.hook.test_params import prepared
from tests.node.host.hook.world import COMPAT, EVERYTHING, HOSTILE, LIBRARIES, LOADER, Container, snapshot

ZERO = os.makedev(1, 5)
HERE, EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
rename = ctypes.CDLL(None).renameat2


def link(path: str, target: str) -> Callable[[Container], None]:
    """An image with a link. OUT stands for the folder outside, UP for the way to it, HOST for a process of the host."""

    def prepare(container: Container) -> None:
        up = "../" * 40 + str(container.outside).lstrip("/")
        host = target.replace("OUT", str(container.outside)).replace("HOST", str(os.getpid()))
        container.point(path, host.replace("UP", up))

    return prepare


def node(path: str, kind: str) -> Callable[[Container], None]:
    """An image with a FIFO, a device or a folder in the place of a file."""

    def prepare(container: Container) -> None:
        there = container.inside(path)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(there)
        elif kind == "device":
            os.mknod(there, 0o20666, ZERO)
        else:
            there.mkdir()

    return prepare


def text(path: str, content: str) -> Callable[[Container], None]:
    """An image with a file."""
    return lambda container: container.put(path, content.replace("OUT", str(container.outside)))


def huge(container: Container) -> None:
    """An image with an ld.so.conf of a terabyte."""
    container.put("/etc/ld.so.conf")
    os.truncate(container.inside("/etc/ld.so.conf"), 1 << 40)


def crowded(container: Container) -> None:
    """An image with folders of thousands of files."""
    container.put("/etc/ld.so.conf", "include ld.so.conf.d/*\n")
    for each in range(3000):
        container.put(f"/etc/ld.so.conf.d/{each}.conf", f"/usr/lib/{each}\n")
    for each in range(3000):
        container.put(f"{COMPAT}/libcuda.so.{each}.1")


ROOT_LINK = "root"
"""The name of the link in /proc/PID that leads to the root of that process (proc(5))."""

IMAGES = {
    **{f"{path} → {target}": link(path, target) for path, target in (
        ("/etc", "OUT/etc"),
        ("/etc", "UP/etc"),
        ("/etc", "/nowhere/at/all"),
        ("/etc", "etc"),
        ("/etc", f"/proc/HOST/{ROOT_LINK}/OUT/etc"),
        ("/etc", f"/proc/self/{ROOT_LINK}/OUT/etc"),
        ("/etc", "/proc/self/cwd/../outside/etc"),
        ("/etc/ld.so.conf", "OUT/ld.so.conf"),
        ("/etc/ld.so.conf", f"/proc/HOST/{ROOT_LINK}/OUT/ld.so.conf"),
        ("/etc/ld.so.cache", "OUT/ld.so.cache"),
        ("/etc/ld.so.cache~", "OUT/ld.so.cache"),
        ("/etc/ld.so.conf.d", "OUT/etc/ld.so.conf.d"),
        ("/etc/ld.so.conf.d", "UP/etc/ld.so.conf.d"),
        ("/etc/ld.so.conf.d/00-gpuplane.conf", "OUT/ld.so.conf"),
        ("/etc/ld.so.conf.d/00-gpuplane-compat.conf", "OUT/ld.so.conf"),
        ("/etc/ld.so.conf.d/.gpuplane-hook.new", "OUT/ld.so.conf"),
        ("/usr", "OUT"),
        ("/usr/lib", "OUT"),
        ("/usr/lib", "UP"),
        ("/usr/lib", "../../../../../.."),
        (LIBRARIES, "OUT/x86"),
        (LIBRARIES, "UP/x86"),
        (LIBRARIES, f"/proc/self/{ROOT_LINK}/OUT/x86"),
        (LIBRARIES, "/proc/HOST/cwd/OUT/x86"),
        (LIBRARIES, "../../nowhere"),
        (LIBRARIES, "x"),
        (f"{LIBRARIES}/gbm", "OUT/gbm"),
        (f"{LIBRARIES}/libcuda.so.1", "OUT/libcuda.so.1"),
        (f"{LIBRARIES}/.gpuplane-hook.new", "OUT/libcuda.so.1"),
        ("/dev", "OUT"),
        ("/dev/dri", "OUT/dri"),
        ("/dev/dri/by-path", "OUT/dri/by-path"),
        ("/proc", "OUT"),
        ("/usr/local/cuda", "OUT"),
        (COMPAT, "UP/compat"),
        ("/var/cache/ldconfig", "OUT"),
        (LOADER, "OUT/ld.so.conf"),
    )},
    **{f"{kind} at {path}": node(path, kind) for kind in ("fifo", "device", "folder") for path in (
        "/etc/ld.so.conf",
        "/etc/ld.so.cache",
        "/etc/ld.so.cache~",
        "/etc/ld.so.conf.d",
        "/etc/ld.so.conf.d/a.conf",
        "/etc/ld.so.conf.d/00-gpuplane.conf",
        "/etc/ld.so.conf.d/.gpuplane-hook.new",
        "/etc/debian_version",
        f"{LIBRARIES}/libcuda.so",
        f"{LIBRARIES}/libevil.so.1",
        f"{COMPAT}/libcuda.so.999.1",
        "/usr/local/cuda",
        LOADER,
    )},
    "includes from outside": text("/etc/ld.so.conf", "include OUT/etc/ld.so.conf.d/*\ninclude /../../OUT/*\nOUT/x86\n"),
    "includes of itself": text("/etc/ld.so.conf", "include /etc/ld.so.conf\n"),
    "patterns": text("/etc/ld.so.conf", "include /etc/" + "*a" * 2000 + "\ninclude [\ninclude \\\ninclude /\n"),
    "one long line": text("/etc/ld.so.conf", "/" + "a" * 100_000),
    "no text": lambda container: container.put("/etc/ld.so.conf", bytes(range(256)) * 100),
    "a preload": text("/etc/ld.so.preload", "/evil.so\n"),
    "huge": huge,
    "crowded": crowded,
}  # fmt: skip


@pytest.fixture(scope="session")
def marks(root: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program and a library that leave a mark where they run."""
    folder, source = tmp_path_factory.mktemp("marks"), Path(__file__).with_name("mark.c")
    subprocess.run(["cc", "-static", source, "-o", folder / "program"], check=True, timeout=60)
    subprocess.run(["cc", "-shared", "-fPIC", "-DLIBRARY", source, "-o", folder / "library"], check=True, timeout=60)
    return folder / "program", folder / "library"


@pytest.fixture
def image(container: Container, marks: tuple[Path, Path]) -> Container:
    """An image in which every program and library that could be run by mistake leaves a mark."""
    program, library = marks
    for path in ("/sbin/ldconfig", "/sbin/ldconfig.real", "/usr/sbin/ldconfig", "/bin/sh", LOADER):
        container.put(path, program.read_bytes())
    for path in ("/evil.so", f"{LIBRARIES}/libevil.so.1", f"{LIBRARIES}/libc.so.6"):
        container.put(path, library.read_bytes())
    return container


def marked(container: Container) -> list[Path]:
    """What was run, in the image or on the host."""
    return [path for path in (container.inside("/mark"), container.outside / "mark", Path("/mark")) if path.exists()]


@pytest.mark.parametrize("prepare", IMAGES.values(), ids=IMAGES)
def test_nothing_outside_is_touched_and_nothing_of_the_image_runs(
    image: Container, prepare: Callable[[Container], None]
) -> None:
    """It does its work within the root, or says in one line why not. No image holds it up."""
    prepare(image)
    proc = image.inside("/proc")
    mount = "" if proc.is_symlink() else f"mount -t proc proc {proc}"
    host = [Path(each) for each in ("/etc/ld.so.conf.d", "/etc/ld.so.cache", "/usr/local/lib")]
    before = snapshot(image.outside), [snapshot(each) for each in host]
    for _ in range(2):
        code, said = image.run(*EVERYTHING, "--deadline=10", environment=HOSTILE, prepare=mount)

        assert (code, said.count("\n")) in {(0, 0), (1, 1)}, said
        assert "given up" not in said
    assert (snapshot(image.outside), [snapshot(each) for each in host]) == before
    assert marked(image) == []
    assert not image.inside("/sbin/ldconfig").is_symlink()


@pytest.fixture(params=["now", "before Linux 5.12"])
def kernel(request: pytest.FixtureRequest, container: Container) -> str:
    """Shell commands that make the hook run on this kernel, or on one without mount_setattr."""
    if request.param == "now":
        return ""
    program = container.folder / "old"
    subprocess.run(["cc", Path(__file__).with_name("old.c"), "-o", program], check=True, timeout=60)
    return f'\nset -- {program} "$@"'


def test_a_volume_is_not_written_to(container: Container, kernel: str) -> None:
    """What a pod mounts of the host stays as it is, wherever the image's links and ld.so.conf lead."""
    container.inside("/a volume").mkdir()
    volume = f"mount --bind {container.outside} '{container.inside('/a volume')}'"
    volume += f"\nmount --bind {container.outside} {container.inside('/dev')}{kernel}"
    container.library("/lib/libx.so.1.0", "libx.so.1")
    (container.outside / "x86/libx.so.1.0").write_bytes(container.inside("/lib/libx.so.1.0").read_bytes())
    container.put("/etc/ld.so.conf", "/dev/x86\n")
    before = snapshot(container.outside)
    container.well(*EVERYTHING, prepare=volume)
    for target in ("/a volume/x86", "/dev/x86"):
        container.point(LIBRARIES, target)
        code, said = container.run(*EVERYTHING, prepare=volume)

        assert code == 1
        assert os.strerror(errno.EROFS) in said
        assert snapshot(container.outside) == before


def test_a_dev_of_its_own_is_written_to(container: Container, kernel: str) -> None:
    """Runtimes mount one; what is mounted in it is another thing."""
    dev = container.inside("/dev")
    prepare = f"""
        mount -t tmpfs none {dev}; mkdir {dev}/dri {dev}/shm; : > {dev}/dri/card1
        mount --bind {container.outside} {dev}/shm{kernel}
        set -- sh -euc '"$@" && test -h {dev}/dri/by-path/pci-0000:1b:00.0-card' sh "$@"
    """
    before = snapshot(container.outside)
    container.well(*EVERYTHING, prepare=prepare)
    container.point("/etc", "/dev/shm/etc")

    assert os.strerror(errno.EROFS) in container.run(*EVERYTHING, prepare=prepare).said
    assert snapshot(container.outside) == before


@pytest.mark.parametrize("number", range(3, 16))
def test_a_descriptor_leads_nowhere(container: Container, number: int) -> None:
    """What the hook has open outside, by the /proc that a pod has mounted of the host. The namespace lives on."""
    proc = container.inside("/volume")
    proc.mkdir()
    container.point("/etc", f"/volume/self/fd/{number}/{'../' * 40}{container.outside}/etc")
    mounts = f'{prepared(container)}\nmount --bind -o ro /proc {proc}\nset -- sh -euc \'"$@"; exit\' sh "$@"'
    before = snapshot(container.outside)

    assert container.run(*EVERYTHING, prepare=mounts).code == 1
    assert snapshot(container.outside) == before


def test_a_process_without_capabilities_leads_nowhere(container: Container) -> None:
    """The kernel lets root follow its links with no capability, too: that of many a service and container."""
    container.inside("/volume/proc").mkdir(parents=True)
    before = snapshot(container.outside)
    with subprocess.Popen(["setpriv", "--bounding-set=-all", "cat"], stdin=subprocess.PIPE) as process:
        try:
            container.point("/etc", f"/volume/proc/{process.pid}/root{container.outside}/etc")
            mounts = f"mount --rbind -o ro /proc {container.inside('/volume/proc')}"
            ended = container.run(*EVERYTHING, prepare=mounts)
        finally:
            process.kill()

    assert ended.code == 1
    assert f" /etc/ld.so.conf.d: {os.strerror(errno.ENOENT)}" in ended.said
    assert snapshot(container.outside) == before


def test_an_image_without_end_is_given_up(container: Container, golden: Golden) -> None:
    """Files that include each other keep ldconfig busy for longer than anybody waits."""
    for each in range(40):
        container.put(f"/etc/ld.so.conf.d/{each}.conf", "include /etc/ld.so.conf.d/*.conf\n")
    container.put("/etc/ld.so.conf", "include ld.so.conf.d/*\n")

    golden(container.run(*EVERYTHING, "--deadline=1").said)


def test_a_race_leads_nowhere(container: Container) -> None:
    """While folders become links to the outside and folders again, as fast as somebody can swap them."""
    before, ended, threads = snapshot(container.outside), threading.Event(), []

    def swap(path: str, target: Path) -> None:
        there, lure = container.inside(path), container.inside(path + ".lure")
        lure.symlink_to(target)
        while not ended.is_set():
            assert rename(HERE, bytes(there), HERE, bytes(lure), EXCHANGE) == 0

    for path, target in ((LIBRARIES, container.outside / "x86"), ("/etc", container.outside / "etc")):
        threads.append(threading.Thread(target=swap, args=(path, target)))
    for thread in threads:
        thread.start()
    outcomes = [container.run(*EVERYTHING) for _ in range(100)]
    ended.set()
    for thread in threads:
        thread.join()

    assert {code for code, _ in outcomes} <= {0, 1}
    assert snapshot(container.outside) == before
