"""Programs that run beside us until they are ended: the control plane's, and those of pods.

- A child ends with us, even by SIGKILL (`base/diewithparent.py`). What it has started in its process group ends with
  it, as all of a container ends with its first process.
- What it says goes to a file of its own. A file that has grown too large is set aside when a program starts again.
- Nobody waits in a thread, as asyncio before Python 3.12 does for each child: the kernel says when one ends
  (pidfd_open(2)).
"""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuplane.base.diewithparent import die_with_parent

MAX_LOG_BYTES = 10 << 20
"""Bytes of a log with which a program does not start again: kubelet's containerLogMaxSize."""
SECONDS_TO_END = 10.0
"""Seconds from SIGTERM to SIGKILL."""
SECONDS_TO_DIE = 30.0
"""Seconds that a program which is killed may take to end. One that is stuck in the kernel is not waited for."""


class Child:
    """A program that `start_child` has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.log = log
        self._process = process
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._collect)

    @property
    def pid(self) -> int:
        """Its process number, which is its process group's too."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        await self._ended.wait()
        assert self.status is not None
        return self.status

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing where it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, for all of its process group; nothing where it has ended."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def stop(self, seconds: float = SECONDS_TO_END) -> None:
        """End it by SIGTERM, and by SIGKILL what is still there after so many seconds, or when we are cancelled."""
        try:
            self.signal(signal.SIGTERM)
            await self._wait_at_most(seconds)
        finally:
            self.kill()
        await self._wait_at_most(SECONDS_TO_DIE)

    async def _wait_at_most(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def _collect(self) -> None:
        """It has ended. Until it is polled no other process has its number."""
        self.kill()
        self._process.wait()
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set()


async def start_child(
    command: Sequence[str | os.PathLike[str]],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    umask: int = -1,
) -> Child:
    """Start a program. Raises OSError.

    `command`: the program first, which is looked for along PATH. `environment`: all of it; None for ours. `directory`:
    in which it runs. `umask`: -1 for ours. The thread that calls this has to stay as long as the program.
    """
    program, *arguments = (os.fspath(each) for each in command)
    found = shutil.which(program, path=(os.environ if environment is None else environment).get("PATH"))
    if found is None:
        code = errno.EACCES if Path(program).exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), program)
    output = open_log(log)
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 (no thread: it ends with the one that starts it)
            die_with_parent([str(Path(found).absolute()), *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            umask=umask,
            start_new_session=True,  # Ctrl-C at our terminal is ours
        )
    finally:
        os.close(output)
    return Child(process, log)


def open_log(path: Path) -> int:
    """The descriptor of a log, at its end."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(f"{path}.old")
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
