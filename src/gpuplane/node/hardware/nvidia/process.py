"""A process that we started. Nothing here waits for one that is stuck in the kernel."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from gpuplane.node.hardware.nvidia.schedstat import CpuAccess

EXIT_POLL_INTERVAL = 0.005
"""Seconds between two glances at whether a killed process has ended; it takes about one."""
MAX_WAIT_FOR_CPU = 60.0
"""Seconds for which a process that gets no CPU is waited for, beyond those that it is given to end."""


def start_process(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own. `how`: as `subprocess.Popen` takes it. Raises OSError."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)


class Process:
    """A process of ours. `dismissed`: it was ended because nobody wants it any more. `stuck`: it was killed, and is
    still there."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.started = time.monotonic()
        self._process = process
        self.dismissed = self.stuck = False

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def kill(self) -> None:
        """End it. There is no other way, and it leaves nothing undone."""
        self._process.kill()

    async def wait_until_gone(self, seconds: float) -> bool:
        """Whether the process has ended within the time, and everything that it had open is closed.

        Time in which it gets no CPU does not count, up to `MAX_WAIT_FOR_CPU` seconds: it needs some to end, even when
        it is killed.
        """
        work, latest = CpuAccess(self.pid), time.monotonic() + seconds + MAX_WAIT_FOR_CPU
        while not self.is_gone() and work.seconds_with_cpu() < seconds and time.monotonic() < latest:  # noqa: ASYNC110 (nobody tells when a process ends)
            await asyncio.sleep(EXIT_POLL_INTERVAL)
        return self.is_gone()

    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def status(self) -> int | None:
        """The exit status, negative for a signal; None while the process is there."""
        return self._process.returncode

    def end_reason(self) -> str:
        """What it ended by."""
        status = self.status()
        if status is None:
            return "it hangs while it exits"
        if status >= 0:
            return f"exit status {status}"
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
