"""The driver's files are found under any root as NVIDIA's toolkit finds them, and nothing outside of it is."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.node.hardware.described.profiles import layouts
from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.driverpaths import LIBRARY_FOLDERS
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.tree import Tree
from gpuplane.node.model.machine import DriverFile, DriverFiles, DriverLibrary
from tests.golden import Golden
from tests.lengths import length
from tests.node.hardware.nvidia.driver.standin import listing
from tests.trees import grow

VERSION = "580.95.05"
DEBIAN = "/usr/lib/x86_64-linux-gnu"
CUDA = f"e {DEBIAN}/libcuda.so.{VERSION} libcuda.so.1\n"


def found(root: Path, text: str = "", kernel: str = "") -> DriverFiles:
    """What is found in a tree. `kernel`: that of the kernel's files."""
    files, why = look(root, text, kernel)
    assert files is not None, why
    return files


def missing(root: Path, text: str = "") -> str:
    """Why nothing is found in a tree."""
    files, why = look(root, text)
    assert files is None
    return why


def look(root: Path, text: str, kernel: str = "") -> tuple[DriverFiles | None, str]:
    """One search."""
    grow(root, text)
    grow(root.with_name("kernel"), kernel)
    return DriverFilesSearch(str(root), KernelFiles(str(root.with_name("kernel")))).search(VERSION)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty driver root."""
    root = tmp_path / "driver-root"
    root.mkdir()
    return root


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_what_a_distribution_installs_is_found(root: Path, layout: str) -> None:
    """In the tree that its packages make: all of it, with SONAMEs and links, and none of its neighbours."""
    files = layouts.layout_files(layout, VERSION)
    neighbours = f"""
        e {DEBIAN}/libcuda.so.535.230.02 libcuda.so.1
        e {DEBIAN}/libGLX.so.0.0.0 libGLX.so.0
        e {DEBIAN}/libnvidia-container.so.1.17.8 libnvidia-container.so.1
        e /usr/lib/i386-linux-gnu/libcuda.so.{VERSION} libcuda.so.1
        f {DEBIAN}/libcuda.so.{VERSION}.bak
        f /lib/firmware/nvidia/535.230.02/gsp_ga10x.bin
        f /usr/bin/nvidia-container-cli
        f /usr/share/vulkan/icd.d/lvp_icd.x86_64.json
    """
    expected = DriverFiles(
        libraries=tuple(sorted(files.libraries, key=lambda library: library.path)),
        files=tuple(sorted(files.files, key=lambda file: file.path)),
        sockets=files.sockets,
    )

    assert found(root, neighbours + "\n".join(listing(files))) == expected


def test_a_merged_usr_is_found_once(root: Path) -> None:
    """By the path where its files are, however many links lead to the folder."""
    usr = "d /usr/lib\nd /usr/lib64\nd /usr/bin\nl /lib -> usr/lib\nl /lib64 -> usr/lib64\nl /bin -> usr/bin\n"
    files = found(root, f"{usr}{CUDA}f /usr/bin/nvidia-smi\nf /usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")

    assert [library.path for library in files.libraries] == [f"{DEBIAN}/libcuda.so.{VERSION}"]
    assert files.files == (
        DriverFile(f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"),
        DriverFile("/usr/bin/nvidia-smi"),
    )


def test_debians_alternatives_are_followed_within_the_root(root: Path) -> None:
    """Its own packages put the driver into a folder of its own, and link to it by absolute paths over /etc."""
    home = f"{DEBIAN}/nvidia/current"
    files = found(
        root,
        f"""
        e {home}/libcuda.so.{VERSION} libcuda.so.1
        l {home}/libcuda.so.1 -> libcuda.so.{VERSION}
        l {home}/libcuda.so -> libcuda.so.1
        l /etc/alternatives/glx--libcuda.so.1 -> {home}/libcuda.so.1
        l {DEBIAN}/libcuda.so.1 -> /etc/alternatives/glx--libcuda.so.1
        l {DEBIAN}/libcuda.so.{VERSION} -> {home}/libcuda.so.{VERSION}
        f /usr/lib/nvidia/bin/nvidia-smi
        l /etc/alternatives/nvidia--nvidia-smi -> /usr/lib/nvidia/bin/nvidia-smi
        l /usr/bin/nvidia-smi -> /etc/alternatives/nvidia--nvidia-smi
        """,
    )

    assert files == DriverFiles(
        libraries=(DriverLibrary(f"{home}/libcuda.so.{VERSION}", "libcuda.so.1", ("libcuda.so", "libcuda.so.1")),),
        files=(DriverFile("/usr/lib/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi"),),
    )


def test_a_root_that_is_a_folder_of_libraries_will_do(root: Path) -> None:
    """As GKE has it: lib64, bin and vulkan beside each other."""
    text = f"""
        e /lib64/libcuda.so.{VERSION} libcuda.so.1
        f /bin/nvidia-smi
        f /vulkan/icd.d/nvidia_icd.json
    """

    assert found(root, text).files == (
        DriverFile("/bin/nvidia-smi"),
        DriverFile("/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
    )


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("glvnd/egl_vendor.d/10_nvidia.json", "/usr/share"),
        ("egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share"),
        ("nvidia/nvoptix.bin", "/usr/share"),
        ("X11/xorg.conf.d/10-nvidia.conf", "/usr/share"),
        ("OpenCL/vendors/nvidia.icd", "/etc"),
        ("vulkan/icd.d/nvidia_icd.json", "/etc"),
    ],
)
@pytest.mark.parametrize("folder", ["/etc", "/usr/local/share", "/usr/share"])
def test_a_container_has_configuration_where_loaders_look(root: Path, name: str, inside: str, folder: str) -> None:
    """Wherever a host has it, and once, though the host has it in another folder too."""
    text = f"{CUDA}f {folder}/{name}\nf /usr/share/{name}\n"
    target = f"{inside}/{name}"

    assert found(root, text).files == (DriverFile(f"{folder}/{name}", "" if folder == inside else target),)


def test_where_no_known_folder_has_it_the_loaders_cache_knows(root: Path) -> None:
    """The root's own, as its ldconfig wrote it."""
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        pytest.skip("needs ldconfig")
    folder = "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla"
    grow(root, f"e {folder}/libcuda.so.{VERSION} libcuda.so.1\nf /etc/ld.so.conf {folder}\\n")
    subprocess.run([ldconfig, "-r", root], check=True, capture_output=True)

    assert [library.path for library in found(root).libraries] == [f"{folder}/libcuda.so.{VERSION}"]


def test_of_two_versions_the_one_that_is_loaded_is_found(root: Path) -> None:
    """Libraries, firmware and modules of the other stay where they are; links that lead to it are none of ours."""
    other = "570.172.08"
    versions = "".join(
        f"""
        e {DEBIAN}/libcuda.so.{each} libcuda.so.1
        e {DEBIAN}/libnvidia-ml.so.{each} libnvidia-ml.so.1
        f /lib/firmware/nvidia/{each}/gsp_ga10x.bin
        """
        for each in (VERSION, other)
    )
    files = found(root, f"{versions}l {DEBIAN}/libcuda.so.1 -> libcuda.so.{other}")

    assert not any(other in path for path in _paths(files))
    assert [library.symlinks for library in files.libraries] == [(), ()]


def test_only_another_version_is_said(root: Path, golden: Golden) -> None:
    """With what there is, and what there should be."""
    why = missing(root, f"e {DEBIAN}/libcuda.so.570.172.08 libcuda.so.1\ne /usr/lib64/libcuda.so.560.1 libcuda.so.1")

    assert all(each in why for each in ("libcuda.so.570.172.08", "libcuda.so.560.1", f"libcuda.so.{VERSION}"))
    golden(why)


def test_no_libcuda_is_said(root: Path, tmp_path: Path, golden: Golden) -> None:
    """Where it was looked for; where there is no folder of libraries, or no root at all, that."""
    golden(missing(root), "no folder")
    golden(missing(root, f"e {DEBIAN}/libnvidia-ml.so.{VERSION} libnvidia-ml.so.1"), "not in the folder")
    for entry in ("d {}", "l {} -> ../nothing", "s {}"):
        golden(missing(root, entry.format(f"{DEBIAN}/libcuda.so.{VERSION}")), "no file")

    (tmp_path / "file").touch()
    for nowhere in (tmp_path / "nowhere", tmp_path / "file"):
        files, why = DriverFilesSearch(str(nowhere), KernelFiles("/")).search(VERSION)
        assert files is None
        assert why.startswith(f"{nowhere}: ")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    if os.geteuid():
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.parametrize("closed", ["", "usr", DEBIAN[1:]])
def test_what_cannot_be_read_is_said(root: Path, closed: str) -> None:
    """By its path and the reason. Nothing is raised, and when it can be read the files are found."""
    grow(root, CUDA)
    for folder in (root, *root.parents):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o755)
    installed = DriverFilesSearch(str(root), KernelFiles("/"))
    (root / closed).chmod(0)
    try:
        with as_nobody():
            files, why = installed.search(VERSION)
    finally:
        (root / closed).chmod(0o755)

    assert files is None
    assert f"libcuda.so.{VERSION}" in why
    assert f"{root / closed}".rstrip("/") in why
    assert why.endswith(os.strerror(errno.EACCES))
    assert installed.search(VERSION)[0] is not None


@pytest.mark.parametrize(
    "links",
    [
        f"l {DEBIAN}/libcuda.so.1 -> libcuda.so.1",
        f"l {DEBIAN}/libcuda.so.1 -> libcuda.so\nl {DEBIAN}/libcuda.so -> libcuda.so.1",
        f"l {DEBIAN}/libcuda.so.1 -> nothing.so",
        f"l {DEBIAN}/libcuda.so.1 -> ../../../../../../../../../../etc/passwd",
        "l /lib -> /lib",
        "l /lib64 -> ../lib64",
        "l /run -> run/x",
        f"l {DEBIAN}/vdpau -> .",
    ],
    ids=lambda text: text.split()[-1],
)
def test_links_that_lead_nowhere_are_none(root: Path, links: str) -> None:
    """Loops, and targets that are not there: the rest is found."""
    files = found(root, f"{CUDA}{links}\n")

    assert files.libraries == (DriverLibrary(f"{DEBIAN}/libcuda.so.{VERSION}", "libcuda.so.1"),)


def test_a_library_that_is_a_link_is_the_file_it_leads_to(root: Path) -> None:
    """In the same folder its own name is a link; what is linked from elsewhere has its links where it is."""
    files = found(
        root,
        f"""
        e {DEBIAN}/libcuda-real.so.{VERSION} libcuda.so.1
        l {DEBIAN}/libcuda.so.{VERSION} -> libcuda-real.so.{VERSION}
        e /opt/nvidia/libnvidia-ml.so.1.0 libnvidia-ml.so.1
        l {DEBIAN}/libnvidia-ml.so.{VERSION} -> /opt/nvidia/libnvidia-ml.so.1.0
        """,
    )

    assert [library.path for library in files.libraries] == [
        "/opt/nvidia/libnvidia-ml.so.1.0",
        f"{DEBIAN}/libcuda-real.so.{VERSION}",
    ]


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(57), b"not a library" * 20])
def test_a_library_that_is_none_has_no_soname(root: Path, content: bytes) -> None:
    """It is told all the same: its name is the driver's."""
    grow(root, CUDA)
    (root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}").write_bytes(content)

    assert found(root).libraries[1] == DriverLibrary(f"{DEBIAN}/libnvidia-ml.so.{VERSION}")


def test_names_that_no_library_has_are_left_out(root: Path) -> None:
    """With blanks, newlines, colons, or bytes that are no text; pipes and folders, too."""
    grow(root, CUDA)
    folder = os.fsencode(root / "usr/lib/x86_64-linux-gnu")
    for name in (b"lib x", b"lib\n", b"lib::y", b"lib\xff", b"lib;z", b"lib,"):
        Path(os.fsdecode(folder + b"/" + name + b".so." + VERSION.encode())).touch()
    os.mkfifo(folder + b"/libpipe.so." + VERSION.encode())
    (Path(os.fsdecode(folder)) / f"libfolder.so.{VERSION}").mkdir()
    weird = Path(os.fsdecode(os.fsencode(root) + b"/\xff"))
    weird.mkdir()
    (weird / "nvidia-smi").write_text("")
    (weird / "nvidia-smi").chmod(0o755)
    grow(root, "d /usr/bin")
    (root / "usr/bin/nvidia-smi").symlink_to(os.fsdecode(b"/\xff/nvidia-smi"))

    assert _paths(found(root)) == [f"{DEBIAN}/libcuda.so.{VERSION}"]


def test_sockets_are_sockets(root: Path) -> None:
    """In /run or /var/run; a folder that a container runtime made in the place of one, or a file, is none."""
    assert found(root, CUDA).sockets == ()
    assert (
        found(root, "d /run/nvidia-persistenced/socket\nf /run/nvidia-fabricmanager/socket\nf /tmp/nvidia-mps").sockets
        == ()
    )
    assert found(root, "s /var/run/nvidia-fabricmanager/socket").sockets == (
        DriverFile("/var/run/nvidia-fabricmanager/socket"),
    )
    shutil.rmtree(root / "var")
    (root / "tmp/nvidia-mps").unlink()
    text = "l /var/run -> /run\ns /run/nvidia-fabricmanager/socket\nd /tmp/nvidia-mps"
    assert found(root, text).sockets == (DriverFile("/run/nvidia-fabricmanager/socket"), DriverFile("/tmp/nvidia-mps"))


def test_firmware_is_where_the_kernel_looks(root: Path) -> None:
    """Somebody's own folder, updates and the kernel's release come before the usual one; each is told."""
    folders = (
        "/opt/fw",
        "/lib/firmware/updates/6.8.0",
        "/lib/firmware/updates",
        "/lib/firmware/6.8.0",
        "/lib/firmware",
    )
    text = "".join(f"f {folder}/nvidia/{VERSION}/gsp_ga10x.bin\n" for folder in folders)
    kernel = "f /proc/sys/kernel/osrelease 6.8.0\\n\nf /sys/module/firmware_class/parameters/path /opt/fw\\n"
    paths = [file.path for file in found(root, CUDA + text, kernel).files]

    assert paths == sorted(f"{folder}/nvidia/{VERSION}/gsp_ga10x.bin" for folder in folders)


def test_a_program_can_be_run(root: Path) -> None:
    """The first of those that can; a file that cannot is none."""
    grow(root, f"{CUDA}f /usr/local/bin/nvidia-smi\nf /usr/bin/nvidia-smi\nf /sbin/nvidia-imex")
    (root / "usr/local/bin/nvidia-smi").chmod(0o644)

    assert found(root).files == (DriverFile("/sbin/nvidia-imex"), DriverFile("/usr/bin/nvidia-smi"))


def test_storage_is_told_by_paths_that_lead_to_the_same_outside(root: Path) -> None:
    """For it is mounted by just these: an absolute link would lead out of the root."""
    assert found(root, f"{CUDA}d /run/udev\nf /etc/cufile.json").gds_paths == ("/run/udev", "/etc/cufile.json")
    assert (
        found(root, "f /opt/cufile.json\nl /etc/cufile.json -> ../opt/cufile.json").gds_paths[1] == "/etc/cufile.json"
    )
    assert found(root, "l /etc/cufile.json -> /opt/cufile.json").gds_paths == ("/run/udev",)


def test_what_changes_is_found_and_what_does_not_is_not_looked_for(root: Path) -> None:
    """A library, a link, a program, a socket that comes or goes; a version. Neighbours are no change."""
    grow(root, f"{CUDA}d /usr/bin\nd /run\nd /tmp")
    installed = DriverFilesSearch(str(root), KernelFiles("/"))

    def looked(text: str) -> DriverFiles:
        grow(root, text)
        files, why = installed.search(VERSION)
        assert files is not None, why
        return files

    first = looked("")
    assert looked("f /usr/bin/other\nf /run/other\nf /tmp/other\nf /usr/lib/other") is first

    assert looked(f"e {DEBIAN}/libnvidia-ml.so.{VERSION} libnvidia-ml.so.1").libraries[1].soname == "libnvidia-ml.so.1"
    assert looked(f"l {DEBIAN}/libcuda.so -> libcuda.so.{VERSION}").libraries[0].symlinks == ("libcuda.so",)
    assert looked("f /usr/bin/nvidia-smi").files == (DriverFile("/usr/bin/nvidia-smi"),)
    assert looked("s /run/nvidia-persistenced/socket").sockets == (DriverFile("/run/nvidia-persistenced/socket"),)
    (root / "run/nvidia-persistenced/socket").unlink()
    assert looked("").sockets == ()

    assert installed.search("590.1.1")[0] is None
    assert installed.search(VERSION)[0] is not None
    shutil.rmtree(root)
    files, why = installed.search(VERSION)
    assert files is None
    assert why.startswith(f"{root}: ")
    grow(root, CUDA)
    assert installed.search(VERSION)[0] is not None


NAMES = (
    "usr", "lib", "lib64", "x86_64-linux-gnu", "nvidia", "current", "etc", "run", "udev", "bin", "nvidia-smi", "vdpau",
    "tmp", "nvidia-mps", "ld.so.cache", f"libcuda.so.{VERSION}", "libcuda.so.1", f"libnvidia-ml.so.{VERSION}", "..",
)  # fmt: skip
LIBCUDA = tuple(f"{folder}/libcuda.so.{VERSION}" for folder in LIBRARY_FOLDERS)
PLACES = (
    *LIBCUDA,
    *("/usr", "/usr/lib", "/usr/lib64", "/lib", "/run", "/tmp", DEBIAN, f"{DEBIAN}/vdpau", f"{DEBIAN}/libcuda.so.1"),
    *("/usr/bin/nvidia-smi", "/etc/ld.so.cache", "/run/udev"),
)
ROADS = st.lists(st.sampled_from(NAMES), min_size=1).map("/".join)
UP = "../" * 12
TARGETS = st.one_of(
    st.builds(str.__add__, st.sampled_from(("", "/", UP)), ROADS),
    st.builds(str.__add__, st.sampled_from(("OUT", f"{UP}OUT")), st.sampled_from(PLACES)),
)
ENTRIES = st.lists(st.tuples(st.sampled_from("fell"), st.sampled_from(PLACES), TARGETS), max_size=12)


@settings(max_examples=length(50, 1500))
@given(entries=ENTRIES)
def test_whatever_the_tree_nothing_outside_is_read_or_told(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, str, str]]
) -> None:
    """Whether there is a whole driver outside or nothing makes no difference, and all that is told is in the root."""
    folder = tmp_path_factory.mktemp("tree")
    root, outside = folder / "root", folder / "outside"
    root.mkdir()
    for kind, place, target in entries:
        try:
            grow(root, f"l {place} -> {target.replace('OUT', str(outside))}" if kind == "l" else f"{kind} {place}")
        except (OSError, ValueError):
            continue  # a link is in the way, which must not be followed here either
    without = DriverFilesSearch(str(root), KernelFiles("/")).search(VERSION)
    grow(outside, "\n".join((*listing(layouts.layout_files("debian", VERSION)), *(f"e {each}" for each in LIBCUDA))))
    files, why = DriverFilesSearch(str(root), KernelFiles("/")).search(VERSION)

    assert (files, why) == without
    for path in _paths(files) if files else ():
        real = (root / path[1:]).resolve()
        assert real.is_relative_to(root)
        assert real.exists()


def _paths(files: DriverFiles) -> list[str]:
    return [library.path for library in files.libraries] + [file.path for file in (*files.files, *files.sockets)]


def test_what_cannot_be_read_is_nothing() -> None:
    """As a disk's error is; what it was stands in `refused`."""
    tree = Tree("/")
    assert tree.read("/proc/self/mem") == b""
    assert tree.refused == {"/proc/self/mem": os.strerror(errno.EIO)}
