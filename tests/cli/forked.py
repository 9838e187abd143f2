"""A process that has imported gpuplane once, and plays a command of it in a child for each line that it reads.

A fresh Python for each of some hundred runs would take a minute; a child of this one is there at once. It is a process
like any other: with a terminal of its own or none, another user, its own working directory.

A line of standard input is a `Request`, one of standard output its `Ended`.
"""

import atexit
import fcntl
import importlib
import os
import pkgutil
import pty
import select
import signal
import struct
import sys
import termios
import time
import traceback
import tty
from contextlib import suppress
from typing import Literal, NoReturn

import msgspec

import gpuplane.cli

LOADED = ("concurrent.futures.thread", "encodings.idna", "rich.console", "stringprep")
"""What an agent imports only as it runs."""


class Request(msgspec.Struct):
    """What to run, and where."""

    words: list[str]
    columns: int | None = None  # of the terminal; None for none
    user: int = 0
    directory: str = "/"
    environment: dict[str, str] = {}
    typed: str = ""  # on standard input, before its end
    until: str = ""  # ends it by the signal once it has written that
    signal: int = signal.SIGTERM
    refused: Literal["", "full", "gone"] = ""  # standard output takes nothing: a full disk, a reader that has gone
    apart: bool = True  # standard output and standard error; else both are one, as on a real terminal
    deadline: float = 120.0
    log: str = ""  # a file: it goes on without being waited for, writes there, and ends with this process


class Ended(msgspec.Struct):
    """How it ended; a negative status is a signal's number. `late`: after the deadline, killed."""

    status: int
    out: str
    err: str
    seconds: float
    late: bool = False


def main() -> None:
    """Until standard input ends."""
    for module in pkgutil.walk_packages(gpuplane.cli.__path__, "gpuplane.cli."):
        importlib.import_module(module.name)
    for name in LOADED:
        importlib.import_module(name)
    left: list[int] = []
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        if request.log:
            left.append(leave(request))
        ended = Ended(0, "", "", 0.0) if request.log else run(request)
        sys.stdout.buffer.write(msgspec.json.encode(ended) + b"\n")
        sys.stdout.buffer.flush()
    for child in reversed(left):
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def leave(request: Request) -> int:
    """Start it, and leave it running."""
    log, nothing = os.open(request.log, os.O_WRONLY | os.O_CREAT, 0o644), os.open(os.devnull, os.O_RDONLY)
    if (child := os.fork()) == 0:
        _become(request, nothing, log, log, os.dup(log))
    os.close(log)
    os.close(nothing)
    return child


def run(request: Request) -> Ended:
    """Play it."""
    began = time.monotonic()
    ours, theirs = _channels(request)
    telling, told = os.pipe()
    child = os.fork()
    if child == 0:
        _become(request, *theirs, told)
    for each in {*theirs, told}:
        os.close(each)
    status, late, texts = _follow(child, request, ours, began)
    _learn(telling)
    for each in {*ours}:
        with suppress(OSError):  # the input may have been
            os.close(each)
    out, err = (text.decode(errors="replace").replace("\r\n", "\n") for text in texts)
    return Ended(status, out, err, time.monotonic() - began, late)


def _learn(telling: int) -> None:
    """Import what the child has: a user who may not read where Python lies could not, and it is there the next time."""
    with open(telling) as stream:
        for name in stream.read().split():
            if name not in sys.modules:
                with suppress(ImportError):
                    importlib.import_module(name)


def _tell(told: int) -> None:
    """What was imported here, when this process ends, however it does that."""
    end = os._exit

    def ended(status: int) -> NoReturn:
        with suppress(OSError):
            os.write(told, " ".join(sys.modules).encode())
        end(status)

    os._exit = ended


def _channels(request: Request) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Our ends and theirs, of standard input, output and error."""
    if request.columns is None:
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        ours_err, theirs_err = os.pipe() if request.apart else (ours_out, theirs_out)
        if request.refused:
            os.close(theirs_out)
            theirs_out = _refusing(request.refused)
        return (ours_in, ours_out, ours_err), (theirs_in, theirs_out, theirs_err)
    ours, theirs = _terminal(request.columns)
    beside = _terminal(request.columns) if request.apart else (ours, theirs)
    return (ours, ours, beside[0]), (theirs, theirs, beside[1])


def _refusing(why: str) -> int:
    """What takes no output."""
    if why == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _terminal(columns: int) -> tuple[int, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    mode = termios.tcgetattr(theirs)
    mode[tty.LFLAG] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    return ours, theirs


def _follow(
    child: int, request: Request, ours: tuple[int, int, int], began: float
) -> tuple[int, bool, tuple[bytes, bytes]]:
    """Feed it and read what it writes until it has ended."""
    os.write(ours[0], request.typed.encode())
    if not request.until and request.columns is not None:
        os.write(ours[0], b"\x04")
    elif not request.until:
        os.close(ours[0])
    texts = {ours[1]: b"", ours[2]: b""}
    opened, late = {*texts}, False
    while opened:
        if time.monotonic() - began > request.deadline:
            os.killpg(child, signal.SIGKILL)
            late = True
        for each in select.select([*opened], [], [], 0.5)[0]:
            try:
                more = os.read(each, 1 << 16)
            except OSError:  # so a terminal ends
                more = b""
            texts[each] += more
            if not more:
                opened.remove(each)
        if request.until and any(request.until.encode() in text for text in texts.values()):
            os.kill(child, request.signal)
            request.until = ""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), late, (texts[ours[1]], texts[ours[2]] if request.apart else b"")


def _become(request: Request, standard_in: int, out: int, err: int, told: int) -> NoReturn:
    """Be that process."""
    status, streams = 1, (standard_in, out, err)
    try:
        os.setsid()
        if request.columns is not None:
            fcntl.ioctl(streams[1], termios.TIOCSCTTY, 0)
        for number, each in enumerate(streams):
            os.dup2(each, number)
        os.dup2(told, 3)
        os.closerange(4, 256)
        os.set_inheritable(3, False)
        if not request.log:
            _tell(3)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.directory)
        if request.user != os.geteuid():
            os.setgroups([])
            os.setgid(request.user)
            os.setuid(request.user)
        sys.argv = ["gpuplane", *request.words]
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115  # for its life
        sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
        status = _ended()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _ended() -> int:
    """The status that Python would end with."""
    try:
        gpuplane.cli.main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()
