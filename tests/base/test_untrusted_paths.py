"""What stands at a path may be anybody's: nothing of it is waited for, followed or believed."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplane.base import files
from tests.golden import Golden


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
    with pytest.raises(OSError) as raised:
        files.read(path, 4)
    assert raised.value.errno == errno.EFBIG


def test_files_of_proc_are_read_though_they_have_no_size() -> None:
    assert files.read("/proc/self/stat").startswith(str(os.getpid()).encode())


def test_without_proc_a_file_is_not_taken_for_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it would go on as if there were none."""
    (tmp_path / "x").write_text("x")
    really = os.open

    def unmounted(path: files.Path, *how: int, **more: int) -> int:
        return really(str(path).replace("/proc/", str(tmp_path / "nowhere/")), *how, **more)

    monkeypatch.setattr(os, "open", unmounted)
    with pytest.raises(OSError, match="/proc") as raised:
        files.read(tmp_path / "x")
    assert not isinstance(raised.value, FileNotFoundError)
    assert raised.value.filename == str(tmp_path / "x")


def test_a_link_is_followed_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    """kubelet mounts ConfigMaps by links."""
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    assert files.read(tmp_path / "link") == b"content"
    with pytest.raises(OSError) as raised:
        files.read(tmp_path / "link", follow=False)
    assert raised.value.filename == str(tmp_path / "link")


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
    assert files.untrusted_reason(place) == ""
    assert files.untrusted_reason("/") == ""


def test_a_link_on_the_way_or_at_the_end_is_not_trusted(place: Path, golden: Golden) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    (place / "real/file").write_bytes(b"")
    for path in ("link", "link/file"):
        golden(files.untrusted_reason(place / path), path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
def test_what_somebody_else_owns_is_not_trusted(place: Path, golden: Golden) -> None:
    (place / "theirs").mkdir()
    os.chown(place / "theirs", 65534, 65534)
    (place / "theirs/file").write_bytes(b"")
    golden(files.untrusted_reason(place / "theirs/file"))


@pytest.mark.parametrize("mode", [0o775, 0o757], ids=["the group", "others"])
def test_what_others_can_write_is_not_trusted(place: Path, mode: int, golden: Golden) -> None:
    """On the way it is enough that it is sticky; at the end it is not, for then others can put something into it."""
    if mode == 0o775 and os.geteuid() == os.getegid() != 0:
        pytest.skip("the group of this user is theirs alone: it is nobody else")
    place.chmod(mode)
    golden(files.untrusted_reason(place))
    place.chmod(mode | 0o1000)
    golden(files.untrusted_reason(place))
    (place / "file").write_bytes(b"")
    assert files.untrusted_reason(place / "file") == ""


def test_links_that_only_root_can_change_are_gone_along_where_that_is_said(place: Path, golden: Golden) -> None:
    """Each link, each directory on its way and what it leads to at last are asked the same."""
    (place / "real").mkdir(mode=0o755)
    (place / "real/file").write_bytes(b"")
    (place / "link").symlink_to("real")
    (place / "far").symlink_to(place / "link/../link/file")
    assert files.untrusted_reason(place / "far", follow=True) == ""

    (place / "real").chmod(0o757)
    golden(files.untrusted_reason(place / "far", follow=True), "the directory")
    (place / "real").chmod(0o755)
    (place / "real/file").chmod(0o646)
    golden(files.untrusted_reason(place / "far", follow=True), "the file")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to somebody else")
def test_a_link_of_somebody_else_is_not_trusted_whatever_it_leads_to(place: Path, golden: Golden) -> None:
    (place / "link").symlink_to("/")
    os.lchown(place / "link", 65534, 65534)
    golden(files.untrusted_reason(place / "link", follow=True))


def test_a_link_to_a_directory_is_asked_as_the_directory(place: Path, golden: Golden) -> None:
    """Also where its last part is `.` or `..`: that others can write into it is enough."""
    (place / "shared/inside").mkdir(parents=True)
    (place / "shared").chmod(0o1777)
    for target in ("shared", "shared/.", "shared/inside/.."):
        (place / "link").unlink(missing_ok=True)
        (place / "link").symlink_to(target)
        golden(files.untrusted_reason(place / "link", follow=True))


def test_links_without_an_end_are_an_error(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(OSError) as raised:
        files.untrusted_reason(place / "a", follow=True)
    assert raised.value.errno == errno.ELOOP


def test_whoever_may_use_a_socket_or_a_device_cannot_replace_it(place: Path) -> None:
    _socket(place / "socket")
    (place / "socket").chmod(0o777)
    assert files.untrusted_reason(place / "socket") == ""
    assert files.untrusted_reason("/dev/null") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_group_of_one_user_alone_is_nobody_else(place: Path) -> None:
    """As most distributions give each user one, with the user's number."""
    os.chown(place, 1000, 1000)
    place.chmod(0o775)
    found = place.stat()
    os.setegid(1000)
    os.seteuid(1000)
    try:
        assert files.untrusted_owner_or_mode(found, on_the_way=False) == ""
        os.seteuid(0)
        os.setegid(100)
        os.seteuid(1000)
        assert files.untrusted_owner_or_mode(found, on_the_way=False)
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_what_is_not_there_is_an_error(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.untrusted_reason(place / "missing")


def test_a_directory_is_worked_in_by_its_descriptor_and_a_link_to_one_is_none(tmp_path: Path) -> None:
    """What happens to its path then changes nothing."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name in ("link", "missing"):
        with pytest.raises(OSError), files.open_directory(tmp_path / name):
            pass
    with files.open_directory(tmp_path / "real") as found:
        (tmp_path / "real").rename(tmp_path / "moved")
        os.mkdir("in it", dir_fd=found)
    assert (tmp_path / "moved/in it").is_dir()


def test_what_is_ours_is_taken_back(tmp_path: Path) -> None:
    """Its owner and its mode; it is told whether that was needed."""
    path = tmp_path / "ours"
    path.mkdir()
    path.chmod(0o1777)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    with files.open_directory(path) as found:
        assert files.take_ownership(found, 0o755)
        assert not files.take_ownership(found, 0o755)
    assert (path.stat().st_uid, path.stat().st_mode & 0o7777) == (os.geteuid(), 0o755)
