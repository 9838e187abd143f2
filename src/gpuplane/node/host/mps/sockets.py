"""The way to a control daemon that its clients cannot change.

A pipe directory is mounted into the containers of its clients, so that they can write there: a client that is root in
its container can replace the daemon's sockets by its own, and answer in the daemon's place. So what the supervisor says
to a daemon goes by hard links of its sockets in a directory that is closed to everybody else. That a link is one of the
daemon's own sockets is asked of the kernel when it is made. The same links put back what a client has taken away: the
daemon needs no restart, and whoever computes goes on.
"""

import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.node.host.mps.processes import PID_FILE, PROC, Process

CONTROL_SOCKET = "control"
SOCKET_TYPES: Mapping[str, tuple[int, ...]] = {
    "control_privileged": (stat.S_IFSOCK,),
    "control_lock": (stat.S_IFREG,),
    "log": (stat.S_IFIFO, stat.S_IFSOCK),
    CONTROL_SOCKET: (stat.S_IFSOCK,),
}
"""What a daemon puts into its directory for others to use, and of what kind it is. Where the last has been linked all
have been."""
PIPE_DIRECTORY_MODE = 0o755
"""Of a pipe directory."""

_DIAG = 4  # NETLINK_SOCK_DIAG (linux/netlink.h)
_BY_FAMILY, _DONE, _ERROR = 20, 3, 2  # SOCK_DIAG_BY_FAMILY (linux/sock_diag.h); NLMSG_DONE, NLMSG_ERROR
_SHOW_FILE, _FILE = 2, 1  # UDIAG_SHOW_VFS, UNIX_DIAG_VFS (linux/unix_diag.h)


class SocketReplaced(Exception):
    """A daemon's control socket is not the daemon's own any more; in words."""


class DaemonSockets:
    """The sockets of one daemon: `pipe` is its clients' directory, `closed` ours."""

    def __init__(self, pipe: Path, closed: Path) -> None:
        self._pipe, self.closed = pipe, closed
        self._modes: dict[str, int] = {}

    def clear(self) -> None:
        """Make room for the sockets of a daemon that is about to be started. Raises OSError."""
        self.closed.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._modes = {}
        for name in (*SOCKET_TYPES, PID_FILE):
            (self.closed / name).unlink(missing_ok=True)
        with files.open_directory(self._pipe) as pipe:
            for name in (*SOCKET_TYPES, PID_FILE):
                _take_away(pipe, name)

    def hold(self, daemon: Process) -> None:
        """Have links of a daemon's sockets, once.

        Raises SocketReplaced where its control socket is not its own; OSError.
        """
        if (self.closed / CONTROL_SOCKET).exists():
            return
        self.closed.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(self.closed / PID_FILE, b"%d\n" % daemon.pid, sync=False)
        bound = _bound(daemon, self.closed)
        with files.open_directory(self._pipe) as pipe, files.open_directory(self.closed) as closed:
            for name in SOCKET_TYPES:
                aside = f"{name}.new"
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=closed)
                try:
                    os.link(name, aside, src_dir_fd=pipe, dst_dir_fd=closed, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found = os.stat(aside, dir_fd=closed, follow_symlinks=False)
                if stat.S_IFMT(found.st_mode) in SOCKET_TYPES[name] and _is_its_own(found, bound):
                    os.rename(aside, name, src_dir_fd=closed, dst_dir_fd=closed)
                else:
                    os.unlink(aside, dir_fd=closed)
        if not (self.closed / CONTROL_SOCKET).exists():
            raise SocketReplaced(
                f"{self._pipe / CONTROL_SOCKET} is not the control daemon's socket: a client has replaced it"
            )

    def mend(self) -> list[str]:
        """Put back what a client has taken away or replaced; its names. Raises OSError."""
        mended = []
        with files.open_directory(self._pipe) as pipe:
            if files.take_ownership(pipe, PIPE_DIRECTORY_MODE):
                mended.append("the directory's owner and mode")
            for name in SOCKET_TYPES:
                try:
                    mine = os.lstat(self.closed / name)
                except FileNotFoundError:
                    continue
                if not _there(name, pipe, mine):
                    _put(self.closed / name, name, pipe)
                    mended.append(name)
                if (mode := self._modes.setdefault(name, mine.st_mode)) != mine.st_mode:
                    os.chmod(self.closed / name, stat.S_IMODE(mode))  # noqa: PTH101
                    mended.append(f"the mode of {name}")
        return mended


def _put(source: Path, name: str, directory: int) -> None:
    """Have a link of that name, whatever stands there, and whoever puts it there again and again."""
    aside = f".link-{secrets.token_hex(8)}"
    os.link(source, aside, dst_dir_fd=directory, follow_symlinks=False)
    try:
        os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:  # a directory is not replaced
        _take_away(directory, name)
        os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)


def _take_away(directory: int, name: str) -> None:
    """Have nothing of that name. A directory is moved out of the way, whatever is in it."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError:
        os.rename(name, f".replaced-{secrets.token_hex(8)}", src_dir_fd=directory, dst_dir_fd=directory)


def _there(name: str, directory: int, file: os.stat_result) -> bool:
    """Whether a name leads to a file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), file)
    except FileNotFoundError:
        return False


def _is_its_own(found: os.stat_result, bound: set[tuple[int, int]] | None) -> bool:
    """Whether a file is one of the sockets in `bound`; where the kernel does not tell these, whether our user made it.

    What is no socket leads to nobody.
    """
    if not stat.S_ISSOCK(found.st_mode):
        return True
    return found.st_uid == os.geteuid() if bound is None else _key(found) in bound


def _bound(daemon: Process, closed: Path) -> set[tuple[int, int]] | None:
    """The files to which the sockets of a process are bound; None where the kernel does not tell.

    It is tried on a socket of our own first: some file systems show other numbers (overlayfs), and some kernels have
    no unix_diag.
    """
    trial = closed / ".trial"
    trial.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as own:
        with files.open_directory(closed) as directory:
            own.bind(f"/proc/self/fd/{directory}/{trial.name}")
        try:
            told = _files_of_sockets()
            if told.get(os.fstat(own.fileno()).st_ino) != _key(trial.lstat()):
                return None
        except OSError:
            return None
        finally:
            trial.unlink()
    held = set()
    with suppress(FileNotFoundError):
        for fd in (PROC / str(daemon.pid) / "fd").iterdir():
            with suppress(OSError):
                held.add(str(fd.readlink()))
    return {file for number, file in told.items() if f"socket:[{number}]" in held}


def _key(found: os.stat_result) -> tuple[int, int]:
    """A file as unix_diag numbers it: 32 bits of its inode, and the kernel's own form of the device."""
    return found.st_ino & 0xFFFFFFFF, os.major(found.st_dev) << 20 | os.minor(found.st_dev)


def _files_of_sockets() -> dict[int, tuple[int, int]]:
    """Number of a Unix socket → the file that it is bound to (linux/unix_diag.h). Raises OSError."""
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_FILE, 0, 0)
    found: dict[int, tuple[int, int]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _DIAG) as netlink:
        netlink.settimeout(2.0)
        netlink.send(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, 0x301, 1, 0) + body)  # a request, for all
        while True:
            for kind, message in _messages(netlink.recv(1 << 18)):
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", message)[0]
                    raise OSError(number, os.strerror(number), "unix_diag")
                if kind == _DONE:
                    return found
                number = struct.unpack_from("=I", message, 4)[0]
                for name, value in _attributes(message[16:]):
                    if name == _FILE:
                        found[number] = struct.unpack("=II", value)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        yield kind, data[16:length]
        data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]
