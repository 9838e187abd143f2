"""What of the driver somebody else than root, or than us, could change is left out and said: containers get it."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.model.machine import DriverFiles
from tests.trees import grow

VERSION = "580.95.05"
DEBIAN = "/usr/lib/x86_64-linux-gnu"
CUDA = f"e {DEBIAN}/libcuda.so.{VERSION} libcuda.so.1\n"
WHOLE = f"""{CUDA}
    e {DEBIAN}/libnvidia-ml.so.{VERSION} libnvidia-ml.so.1
    e {DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}
    f {DEBIAN}/nvidia/xorg/nvidia_drv.so
    f /lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin
    f /usr/bin/nvidia-smi
    f /etc/vulkan/icd.d/nvidia_icd.json
    f /usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json
    f /etc/cufile.json
    d /run/udev
    s /run/nvidia-persistenced/socket
    s /run/nvidia-fabricmanager/socket
    d /tmp/nvidia-mps
"""
NOBODY = 65534

Look = tuple[DriverFiles | None, str, Mapping[str, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def look(root: Path) -> Look:
    """What is found, why nothing is, and what was left out: by paths inside of the root."""
    installed = DriverFilesSearch(str(root), KernelFiles("/nowhere"))
    files, why = installed.search(VERSION)
    left = {path.removeprefix(str(root)): reason.replace(str(root), "") for path, reason in installed.left.items()}
    return files, why.replace(str(root), ""), left


def paths(files: DriverFiles | None) -> set[str]:
    """All that a container would get."""
    assert files is not None
    libraries = {each.path for each in files.libraries}
    return libraries | {each.path for each in (*files.files, *files.sockets)} | set(files.gds_paths)


def theirs(path: Path) -> str:
    """Give it to somebody else, be it a link; gives the reason that is to be told."""
    if os.geteuid():
        pytest.skip("needs root, to give a file to somebody else")
    os.lchown(path, NOBODY, NOBODY)
    return f"is owned by uid {NOBODY}"


def shared(path: Path) -> str:
    """Let everybody write to it; gives the reason that is to be told."""
    path.chmod(path.stat().st_mode | 0o002)
    return "is writable by others"


def test_what_root_alone_can_change_is_found_whole(root: Path) -> None:
    """Below a sticky /tmp too, and over root's links."""
    grow(root, f"{WHOLE}\nd /usr/local\nl /opt/nvidia -> /usr/local\nl /var/run -> /run")
    (root / "tmp").chmod(0o1777)
    files, _, left = look(root)

    assert left == {}
    assert len(paths(files)) == 13


@pytest.mark.parametrize("target", ["/", "/tmp/theirs", "../../..", "theirs", "/usr"])
def test_a_link_is_no_directory_of_mps(root: Path, target: str) -> None:
    """Whoever owns it: it would be mounted writable, and with it what it leads to."""
    grow(root, f"{CUDA}d /tmp/theirs\nl /tmp/nvidia-mps -> {target}")
    files, _, left = look(root)

    assert files is not None and files.sockets == ()
    assert left.keys() == {"/tmp/nvidia-mps"}
    assert "/tmp/nvidia-mps " in left["/tmp/nvidia-mps"]


@pytest.mark.parametrize("kind", ["f", "s"])
def test_what_is_no_directory_of_mps_is_not_worth_a_word(root: Path, kind: str) -> None:
    grow(root, f"{CUDA}{kind} /tmp/nvidia-mps")
    assert look(root)[2] == {}


@pytest.mark.parametrize("link", ["/run", "/run/nvidia-fabricmanager", "/run/nvidia-fabricmanager/socket"])
def test_no_link_leads_to_a_socket(root: Path, link: str) -> None:
    grow(root, f"{CUDA}s /elsewhere/nvidia-fabricmanager/socket")
    rest = "/nvidia-fabricmanager/socket".removeprefix(link.removeprefix("/run"))
    inside = "/nvidia-fabricmanager/socket".removesuffix(rest)
    grow(root, f"l {link} -> /elsewhere{inside}")
    files, _, left = look(root)

    assert files is not None and files.sockets == ()
    assert left.keys() == {"/run/nvidia-fabricmanager/socket"}
    assert f"{link} " in left["/run/nvidia-fabricmanager/socket"]


def test_a_socket_is_found_where_no_link_is_on_the_way(root: Path) -> None:
    """/var/run is a link to /run nearly everywhere: that is not worth a word."""
    grow(root, f"{CUDA}s /run/nvidia-fabricmanager/socket\nl /var/run -> /run")
    files, _, left = look(root)

    assert files is not None and [each.path for each in files.sockets] == ["/run/nvidia-fabricmanager/socket"]
    assert left == {}


@pytest.mark.parametrize("change", [theirs, shared])
@pytest.mark.parametrize(
    ("at", "lost"),
    [
        ("/tmp/nvidia-mps", {"/tmp/nvidia-mps"}),
        ("/run/nvidia-persistenced", {"/run/nvidia-persistenced/socket"}),
        ("/run", {"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/run/udev"}),
        ("/run/udev", {"/run/udev"}),
        ("/etc/cufile.json", {"/etc/cufile.json"}),
        ("/etc/vulkan", {"/etc/vulkan/icd.d/nvidia_icd.json"}),
        ("/usr/bin/nvidia-smi", {"/usr/bin/nvidia-smi"}),
        ("/lib/firmware", {f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"}),
        (f"{DEBIAN}/vdpau", {f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}"}),
        (f"{DEBIAN}/nvidia", {f"{DEBIAN}/nvidia/xorg/nvidia_drv.so"}),
        (f"{DEBIAN}/libnvidia-ml.so.{VERSION}", {f"{DEBIAN}/libnvidia-ml.so.{VERSION}"}),
    ],
)
def test_what_others_could_change_is_left_out_alone(
    root: Path, at: str, lost: set[str], change: Callable[[Path], str]
) -> None:
    """A file, or a directory that leads to some; all else is found, and each has its reason."""
    grow(root, WHOLE)
    whole = paths(look(root)[0])
    reason = change(root / at[1:])
    files, _, left = look(root)

    assert paths(files) == whole - lost
    assert left == dict.fromkeys(lost, f"{at} {reason}")


@pytest.mark.parametrize("change", [theirs, shared])
@pytest.mark.parametrize("at", ["/", "/usr", DEBIAN, f"{DEBIAN}/libcuda.so.{VERSION}"])
def test_a_libcuda_that_others_could_change_is_none(root: Path, at: str, change: Callable[[Path], str]) -> None:
    """No container could be given a GPU without it, so the reason says the path and why."""
    grow(root, WHOLE)
    reason = change(root / at[1:])
    files, why, _ = look(root)

    assert files is None
    assert why.startswith(f"{DEBIAN}/libcuda.so.{VERSION} ")
    assert why.endswith(f" {at.rstrip('/')} {reason}")


@pytest.mark.parametrize("change", [theirs, shared])
def test_the_way_to_the_root_counts(tmp_path: Path, change: Callable[[Path], str]) -> None:
    """As this process sees it: who can change that can put another root there."""
    grow(root := tmp_path / "above/root", WHOLE)
    reason = change(tmp_path / "above")
    files, why, _ = look(root)

    assert files is None
    assert why.endswith(f" {tmp_path}/above {reason}")


def test_the_root_may_be_behind_a_link_of_roots(tmp_path: Path) -> None:
    grow(tmp_path / "real", WHOLE)
    (tmp_path / "root").symlink_to("real")
    files, _, left = look(tmp_path / "root")

    assert (len(paths(files)), left) == (13, {})


def test_a_link_of_somebody_else_is_not_followed(root: Path) -> None:
    """A sticky directory keeps what root has in it, and takes links of others."""
    grow(root, f"{WHOLE}\nl /usr/local/bin/nvidia-smi -> /usr/bin/nvidia-smi")
    reason = theirs(root / "usr/local/bin/nvidia-smi")
    files, _, left = look(root)

    assert "/usr/bin/nvidia-smi" in paths(files)
    assert left == {"/usr/local/bin/nvidia-smi": f"/usr/local/bin/nvidia-smi {reason}"}


def test_the_next_place_is_taken_where_the_first_is_not_roots(root: Path) -> None:
    """Of a program, of what is read, and of libcuda itself."""
    grow(
        root,
        f"""{WHOLE}
        f /usr/local/bin/nvidia-smi
        f /etc/X11/xorg.conf.d/10-nvidia.conf
        f /usr/share/X11/xorg.conf.d/10-nvidia.conf
        e /usr/lib64/libcuda.so.{VERSION} libcuda.so.1
        """,
    )
    for path in ("usr/local/bin", "etc/X11", "usr/lib64"):
        shared(root / path)
    files, _, left = look(root)

    assert paths(files) >= {
        "/usr/bin/nvidia-smi",
        "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
        f"{DEBIAN}/libcuda.so.{VERSION}",
    }
    assert {path: why.partition(" ")[0] for path, why in left.items()} == {
        "/usr/local/bin/nvidia-smi": "/usr/local/bin",
        "/etc/X11/xorg.conf.d/10-nvidia.conf": "/etc/X11",
        f"/usr/lib64/libcuda.so.{VERSION}": "/usr/lib64",
    }


@pytest.mark.parametrize("change", [theirs, shared])
@pytest.mark.parametrize("at", ["/etc", "/etc/ld.so.cache"])
def test_a_loaders_cache_that_others_could_change_is_not_believed(
    root: Path, at: str, change: Callable[[Path], str]
) -> None:
    """It would say where libcuda is."""
    if (ldconfig := shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")) is None:
        pytest.skip("needs ldconfig")
    grow(root, f"e /opt/tesla/libcuda.so.{VERSION} libcuda.so.1\nf /etc/ld.so.conf /opt/tesla\\n")
    subprocess.run([ldconfig, "-r", root], check=True, capture_output=True)
    assert look(root)[0] is not None
    reason = change(root / at[1:])
    files, why, left = look(root)

    assert files is None
    assert left == {"/etc/ld.so.cache": f"{at} {reason}"}
    assert f": {at} {reason}" in why


def test_what_is_mended_is_found_at_the_next_look(root: Path) -> None:
    """And what is spoilt is left out: an owner and a mode are looked at as anything else."""
    grow(root, WHOLE)
    installed = DriverFilesSearch(str(root), KernelFiles("/nowhere"))
    whole = installed.search(VERSION)
    mps = root / "tmp/nvidia-mps"
    spoils: list[Callable[[Path], object]] = [shared]
    if not os.geteuid():
        spoils += [theirs, lambda path: os.chown(path.parent, NOBODY, NOBODY)]
    for spoil in spoils:
        spoil(mps)
        files, _ = installed.search(VERSION)
        assert "/tmp/nvidia-mps" not in paths(files)
        assert list(installed.left) == [str(mps)]
        mps.chmod(0o755)
        os.chown(mps, os.geteuid(), -1)
        os.chown(mps.parent, os.geteuid(), -1)
        assert installed.search(VERSION) == whole
        assert installed.left == {}


def test_a_name_that_somebody_else_chose_is_told_on_one_line(root: Path) -> None:
    """It is a part of the reason, and no more than that."""
    grow(root, f"{WHOLE}\nf /usr/local/real-smi\nd /usr/local/bin")
    (strange := root / "usr/local/bin/x\ny\x1b[31m").mkdir()
    shared(strange)
    (root / "usr/local/real-smi").chmod(0o755)
    (root / "usr/local/bin/nvidia-smi").symlink_to(f"{strange.name}/../../real-smi")

    [(path, why)] = look(root)[2].items()
    assert path == "/usr/local/bin/nvidia-smi"
    assert why.startswith(r"/usr/local/bin/x\ny\x1b[31m ")


PLACES = (
    *("/", "/usr", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/run", "/var", "/tmp", "/etc", "/bin", "/opt"),
    *(DEBIAN, f"{DEBIAN}/vdpau", "/usr/bin", "/usr/bin/nvidia-smi", "/tmp/nvidia-mps", "/run/udev", "/var/run"),
    *(f"{folder}/libcuda.so.{VERSION}" for folder in (DEBIAN, "/usr/lib64", "/opt")),
    *("/run/nvidia-fabricmanager", "/run/nvidia-fabricmanager/socket", "/etc/cufile.json"),
)
UP = "../" * 9
SHARED = 0o002 if os.geteuid() == os.getegid() != 0 else 0o022
"""The permission bits of others: a user's group of their own is none."""
LINKS = st.tuples(st.sampled_from(PLACES[1:]), st.sampled_from(("", UP)), st.sampled_from(PLACES))
SPOILS = st.tuples(st.sampled_from(PLACES), st.sampled_from((0o757, 0o775, 0o1777, 0o755, NOBODY)))


@settings(deadline=None, max_examples=150)
@given(links=st.lists(LINKS, max_size=5), spoils=st.lists(SPOILS, max_size=4))
def test_whatever_the_tree_nobody_else_could_change_what_is_told(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str, str]], spoils: list[tuple[str, int]]
) -> None:
    """Every part of each path, and every part of where it leads, is root's or ours; sockets are on no link."""
    root = grow(tmp_path_factory.mktemp("tree") / "root", WHOLE)
    for place, up, target in links:
        with suppress(OSError, ValueError):
            grow(root, f"l {place} -> {up}{target.lstrip('/') if up else target}")
    for place, how in spoils:
        path = root / place[1:]
        changed = os.path.realpath(path.parent if how == NOBODY else path)
        if not Path(changed).is_relative_to(root):
            continue  # this machine's own, by a link out of the tree
        if how == NOBODY and os.geteuid() == 0 and os.path.lexists(path):
            os.lchown(path, NOBODY, NOBODY)
        elif how != NOBODY and path.exists():
            path.chmod(how)
    files, _, left = look(root)
    assert not left.keys() & (paths(files) if files else set())
    for told in paths(files) if files else ():
        path = root / told[1:]
        for end in (path, path.resolve()):
            assert end.is_relative_to(root)
            for at in (end, *end.parents[: len(end.parents) - len(root.parents)]):
                found = at.lstat()
                assert found.st_uid in (0, os.geteuid()), (told, at)
                sticky = at not in (path, path.resolve()) and found.st_mode & 0o1000
                assert at.is_symlink() or at.is_socket() or sticky or not found.st_mode & SHARED, (told, at)
        if files is not None and told in {each.path for each in files.sockets}:
            assert path == path.resolve()
