"""Trees of files are what their text says, and stay within their root."""

import ctypes
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.trees import grow, may_make_nodes


def test_each_kind_of_entry(tmp_path: Path) -> None:
    """Folders above are made; what stands twice is what it was said to be last."""
    root = grow(
        tmp_path / "root",
        r"""
        # a comment
        d /a
        f a/b/empty
        f /size 4096
        f /text one\n  two\t3
        f /json "0\n"
        f /usr/bin/program
        l /link -> /a/b
        f /link/through 1
        s /socket
        f /twice
        d /twice
        """,
    )

    assert (root / "a/b/empty").read_bytes() == b""
    assert (root / "size").read_bytes() == bytes(4096)
    assert (root / "text").read_text() == "one\n  two\t3"
    assert (root / "json").read_text() == "0\n"
    assert os.access(root / "usr/bin/program", os.X_OK)
    assert str((root / "link").readlink()) == "/a/b"
    assert (root / "a/b/through").read_bytes() == b"\0"
    assert (root / "socket").is_socket()
    assert (root / "twice").is_dir()


def test_device_nodes_have_their_numbers(tmp_path: Path) -> None:
    """Where this process may make them; elsewhere a plain file has the mode."""
    node = (grow(tmp_path, "c /dev/nvidia0 195 7 640") / "dev/nvidia0").stat()

    assert stat.S_IMODE(node.st_mode) == 0o640
    if may_make_nodes(tmp_path):
        assert stat.S_ISCHR(node.st_mode)
        assert (os.major(node.st_rdev), os.minor(node.st_rdev)) == (195, 7)


def test_shared_objects_are_real(tmp_path: Path) -> None:
    """The loader loads them, and ldconfig links their SONAMEs."""
    root = grow(tmp_path, "e /usr/lib/libx.so.1.2 libx.so.1\ne /usr/lib/liby.so.3")
    ctypes.CDLL(str(root / "usr/lib/libx.so.1.2"))
    ctypes.CDLL(str(root / "usr/lib/liby.so.3"))
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        pytest.skip("needs ldconfig")
    grow(root, "d /etc")
    subprocess.run([ldconfig, "-r", root], check=True, capture_output=True)

    assert str((root / "usr/lib/libx.so.1").readlink()) == "libx.so.1.2"


@pytest.mark.parametrize("target", ["/", "/outside", "../outside", "../../outside", "..", "up"])
def test_nothing_outside_is_touched(tmp_path: Path, target: str) -> None:
    """Wherever links lead: they are followed as if the root were /."""
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").touch()
    root = grow(tmp_path / "root", f"d /outside\nl /up -> {'/..' if target == 'up' else 'outside'}\nl /out -> {target}")
    before = sorted(tmp_path.glob("outside/**/*")), sorted(tmp_path.glob("*"))
    for line in ("f /out/file", "d /out/folder", "f /out/folder", "l /out/file -> x", "s /out/new", "e /out/lib.so"):
        grow(root, line)

    assert (sorted(tmp_path.glob("outside/**/*")), sorted(tmp_path.glob("*"))) == before


@pytest.mark.parametrize(
    "line", ["x /a", "d", "l /a", "l /a ->", "l /a b", "c /a 1", "c /a 1 2 9", "f /../a", "d /a/../../b"]
)
def test_a_line_that_is_no_entry_is_refused(tmp_path: Path, line: str) -> None:
    """With its number."""
    with pytest.raises(ValueError, match="line 2"):
        grow(tmp_path / "root", f"\n{line}")
    assert list(tmp_path.glob("*")) in ([], [tmp_path / "root"])


def test_two_slashes_are_the_trees_own_root(tmp_path: Path) -> None:
    """To pathlib they are a root beside the first, and what is joined to one leaves the tree."""
    grow(tmp_path / "root", "f //here\nf //usr//bin/there")

    assert sorted(path.name for path in (tmp_path / "root").rglob("*") if path.is_file()) == ["here", "there"]
