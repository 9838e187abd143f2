"""What stands at a path may be anybody's: nothing of it is waited for, followed or believed."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplane import files


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))


def _directory(path: Path) -> None:
    path.mkdir()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


HOSTILE = (_fifo, _link_to_a_device, _socket, _directory, _sparse)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_bounded_regular_file_is_an_error_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The error names the path."""
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError) as raised:
        files.read(path)
    assert raised.value.filename == os.fspath(path)
    assert raised.value.errno in (errno.EINVAL, errno.EFBIG)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    """A byte more is an error, not a part of it."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        files.read(path, 4)


def test_files_of_proc_are_read_though_they_have_no_size() -> None:
    assert files.read("/proc/self/stat").startswith(str(os.getpid()).encode())


def test_a_link_is_followed_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    """kubelet mounts ConfigMaps by links."""
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    assert files.read(tmp_path / "link") == b"content"
    with pytest.raises(OSError, match="it is a link"):
        files.read(tmp_path / "link", follow=False)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", HOSTILE)
def test_what_stands_where_it_is_written_aside_is_not_written_to(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Only a directory cannot be removed: that is an error, and the old content stays."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    make(tmp_path / "file.new")
    if make is _directory:
        with pytest.raises(OSError):
            files.replace(path, b"new")
        assert path.read_bytes() == b"old"
    else:
        files.replace(path, b"new")
        assert path.read_bytes() == b"new"
        assert path.stat().st_mode & 0o777 == 0o600
        assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"foreign")
    (tmp_path / "file").symlink_to("foreign")
    files.replace(tmp_path / "file", b"ours")
    assert (tmp_path / "foreign").read_bytes() == b"foreign"
    assert (tmp_path / "file").read_bytes() == b"ours"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that nobody else can change, in a sticky /tmp."""
    place = tmp_path / "place"
    place.mkdir(mode=0o755)
    return place


def test_what_root_alone_can_change_is_trusted(place: Path) -> None:
    """Also below /tmp, for that is sticky."""
    assert files.untrusted(place) == ""
    assert files.untrusted("/") == ""


def test_a_link_on_the_way_or_at_the_end_is_not_trusted(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    (place / "real/file").write_bytes(b"")
    assert files.untrusted(place / "link") == f"{place}/link is a link"
    assert files.untrusted(place / "link/file") == f"{place}/link is a link"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
def test_what_somebody_else_owns_is_not_trusted(place: Path) -> None:
    (place / "theirs").mkdir()
    os.chown(place / "theirs", 65534, 65534)
    (place / "theirs/file").write_bytes(b"")
    assert files.untrusted(place / "theirs/file") == f"{place}/theirs is owned by uid 65534"


@pytest.mark.parametrize(("mode", "reason"), [(0o775, "its group"), (0o757, "others")])
def test_what_others_can_write_is_not_trusted(place: Path, mode: int, reason: str) -> None:
    """On the way it is enough that it is sticky; at the end it is not, for then others can put something into it."""
    place.chmod(mode)
    assert files.untrusted(place) == f"{place} is writable by {reason}"
    place.chmod(mode | 0o1000)
    assert files.untrusted(place) == f"{place} is writable by {reason}"
    (place / "file").write_bytes(b"")
    assert files.untrusted(place / "file") == ""


def test_what_is_not_there_is_an_error(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.untrusted(place / "missing")
