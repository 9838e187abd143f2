"""How a command ends by a signal: what it made is taken away, and its exit status is 128 + the signal's number.

- After `raise_on_signals` a SIGINT, SIGTERM or SIGHUP raises `EndedBySignal` wherever the program is, as Python
  does for SIGINT alone: `with` and `finally` take away what was made. The next signal ends the process at once.
- In `run` the work, a coroutine, is cancelled instead: directories and processes are made there, and nothing may come
  between the making and the `with` that takes it away. The next signal ends the process at once too, and its children.
- What is done in `uninterrupted` is not interrupted: a file and its copy aside.

A signal that is ignored when the program starts (nohup) stays ignored. Commands that serve until a signal have handlers
of their own.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpuplane.base import files

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOW_CURSOR = b"\x1b[?25h\n"


class EndedBySignal(SystemExit):
    """A signal has ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


def raise_on_signals() -> None:
    """From now on a signal raises EndedBySignal."""
    for each in _heeded_signals():
        signal.signal(each, _end)


def restore_default_handlers() -> None:
    """From now on a signal ends the process as the system does it: nothing is left to take away."""
    for each in _heeded_signals():
        signal.signal(each, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    restore_default_handlers()
    raise EndedBySignal(number)


def _heeded_signals() -> tuple[signal.Signals, ...]:
    """The signals that end us."""
    if threading.current_thread() is not threading.main_thread():
        return ()  # only it can have handlers
    return tuple(each for each in ENDING_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Other handlers for a while."""
    before = {each: signal.signal(each, handler) for each in _heeded_signals()}
    try:
        yield
    finally:
        for each, was in before.items():
            signal.signal(each, was)


@contextmanager
def _waking_on_signals(loop: "asyncio.AbstractEventLoop") -> Iterator[None]:
    """A signal wakes the loop: else one that comes right before a wait, or to another thread, is heeded after it."""
    import socket

    if not _heeded_signals():
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        loop.add_reader(ours, ours.recv, 1 << 12)
        try:
            yield
        finally:
            loop.remove_reader(ours)
            signal.set_wakeup_fd(before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Raises EndedBySignal only at its end, where a signal has come meanwhile."""
    came: list[int] = []
    with _handled(lambda number, _: came.append(number)):
        yield
    if came:
        raise EndedBySignal(came[0])


def run(work: Coroutine[Any, Any, T], abandon: Callable[[], None] = lambda: None) -> T:
    """What comes of the work. Raises EndedBySignal where a signal has cancelled it, once what it made is taken away.

    `abandon` takes away the files that it made, whatever is under way: it is called before the next signal ends us.
    """
    import asyncio  # not every command needs it

    came: list[int] = []
    begun: list[asyncio.Task[Any]] = []

    def end(number: int, frame: FrameType | None) -> None:
        if came:
            _end_now(number, abandon)
        came.append(number)
        for task in begun:
            with suppress(RuntimeError):  # its loop has ended by itself
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def working() -> T:
        begun.append(cast("asyncio.Task[Any]", asyncio.current_task()))
        with _waking_on_signals(asyncio.get_running_loop()):
            if came:
                work.close()
                raise asyncio.CancelledError
            return await work

    try:
        with _handled(end), asyncio.Runner() as runner:
            return runner.run(working())
    except BaseException as error:
        if not came:
            raise
        if not isinstance(error, asyncio.CancelledError):
            _say(error)  # not all of it could be taken away
        raise EndedBySignal(came[0]) from None


def _say(error: BaseException) -> None:
    from gpuplane.cli.kit.messages import print_error

    with suppress(OSError):  # its terminal may have been closed
        print_error(str(error))


def _end_now(number: int, abandon: Callable[[], None]) -> None:
    for child in _children():
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    _wait_for_children(1.0)
    abandon()
    with suppress(OSError, ValueError):
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), SHOW_CURSOR)  # it is hidden while something turns
    os._exit(128 + number)


def _children() -> list[int]:
    """Our processes, where the kernel tells them."""
    with suppress(OSError):
        lists = [files.read(task / "children") for task in Path("/proc/self/task").iterdir()]
        return [int(child) for each in lists for child in each.split()]
    return []


def _wait_for_children(seconds: float) -> None:
    """Until no process of ours can write any more."""
    until = time.monotonic() + seconds
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
