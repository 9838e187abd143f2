"""The page of memory on which the driver's process announces each call before it makes it.

Announcing costs no system call, and the page outlives the process: it is the agent's memory. It is judged only when it
has not been written for seconds, or when its writer is dead, so a half-written line does no harm.
"""

import mmap
import struct
import time

from gpuplane.base.value import Value

_LINE = struct.Struct("<?dq64s")  # within a call, since when, the GPU's index or -1, the function


class AnnouncedCall(Value):
    """What the driver's process does since a time of CLOCK_MONOTONIC. `function` is "" outside of NVML."""

    since: float
    function: str = ""
    gpu: int | None = None  # the index; None for a call about no GPU


class CallPage:
    """One process writes, another reads, through the same memory file."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)

    def begin(self, function: str, gpu: int | None) -> None:
        """A call starts now."""
        _LINE.pack_into(self._memory, 0, True, time.monotonic(), -1 if gpu is None else gpu, function.encode())

    def end(self) -> None:
        """No call is under way, and the process is alive."""
        _LINE.pack_into(self._memory, 0, False, time.monotonic(), -1, b"")

    def read(self) -> AnnouncedCall:
        """What was announced last."""
        within, since, gpu, function = _LINE.unpack_from(self._memory)
        if not within:
            return AnnouncedCall(since=since)
        return AnnouncedCall(since=since, function=function.rstrip(b"\0").decode(), gpu=None if gpu < 0 else gpu)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
