"""The kernel log, followed: /dev/kmsg, or a file or pipe that holds what it would give.

It is read from its beginning each time, for it tells what happened while no agent ran; records that were judged before
are known by their numbers. Nothing is read before a look has counted the GPUs: an XID names a PCI address, and only a
look says whose it is.

The log names processes by the host's numbers. The driver tells a probe those that whoever asks may see, by the numbers
of its namespace (`_gpuConvertPid` of NVIDIA's open kernel modules): an agent with a PID namespace of its own would miss
those of all other containers, and take them for gone. There the log's process ids are left out, and the containers that
held the GPU count.
"""

import asyncio
import os
import stat
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from gpuplane.base import files
from gpuplane.node.core.health.kernellog import parse_kmsg_record
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import KERNEL_LOG_PART, Status

MISSING_LOG_CONSEQUENCE = (
    "the agent cannot see GPU faults that occurred while no agent ran, and cannot see which processes a fault affects"
)
MAX_RECORD_SIZE = 1 << 16
"""Bytes of a record; the kernel's have 8 KiB at the most, and one that does not fit is refused."""
RECORDS_PER_TURN = 16
"""Records that are judged before others have their turn: each is a new snapshot, which takes half a millisecond. A file
or a pipe gives a thousand of them at once."""
KMSG_DEVICE = os.makedev(1, 11)
"""The device /dev/kmsg (Documentation/admin-guide/devices.txt)."""
HOST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the host's PID namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""


def has_host_pids() -> bool:
    """Whether process ids mean here what they mean on the host."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False


async def watch_kernel_log(
    node: Node, path: Path, every: float = 0.2, again: float = 10.0, *, pids: bool = True
) -> None:
    """Tell what befell GPUs, for ever. A log that cannot be read is tried again, `again` seconds later; one that cannot
    wake us, because it is a plain file, is looked at `every` so many seconds. `pids`: whether its process ids are those
    that a probe would see."""
    while not await node.wait_until(_counted, 3600.0):
        pass
    while True:
        try:
            await _follow(node, path, every, pids)
        except OSError as error:
            node.apply(
                StatusChanged(
                    KERNEL_LOG_PART, Status("waiting", f"{path}: {error.strerror}: {MISSING_LOG_CONSEQUENCE}")
                )
            )
        await asyncio.sleep(again)


def _counted(snapshot: Snapshot) -> bool:
    return snapshot.machine is not None and snapshot.machine.gpus is not None


async def _follow(node: Node, path: Path, every: float, pids: bool) -> None:
    ahead, rest, begun, waited, read = node.now() - time.monotonic(), b"", False, False, 0
    async with aclosing(_pieces(path, every)) as pieces:
        async for piece in pieces:
            if not begun:
                begun = True
                node.apply(StatusChanged(KERNEL_LOG_PART, Status("ok", str(path))))
            *records, rest = (rest + piece).split(b"\n")
            rest = rest if len(rest) < MAX_RECORD_SIZE else b""
            for record in records:
                read += 1
                if read % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
                event = parse_kmsg_record(record, ahead, node.now())
                if event is not None:
                    event = event if pids else event.but(pids=())
                    # The log's clock is not kept right as the others are; what we waited for has happened just now.
                    node.apply(event.but(at=node.now()) if waited else event)
            waited = waited or not piece


async def _pieces(path: Path, every: float) -> AsyncGenerator[bytes]:
    """What the log holds and what comes to it; nothing (b"") whenever all of it has been read. Raises OSError."""
    with files.open_regular_file(path, unfit=_no_log) as fd:
        while True:
            try:
                piece = os.read(fd, MAX_RECORD_SIZE)
            except BlockingIOError:
                yield b""
                await _until_readable(fd)
            except BrokenPipeError:  # records were overwritten before we read them; the next read is of those after
                continue
            else:
                yield piece
                if not piece:
                    await asyncio.sleep(every)


def _no_log(found: os.stat_result) -> str:
    """What is wrong with it; "" for the kernel's log, a file and a pipe. Another device may be one without an end."""
    if stat.S_ISFIFO(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev == KMSG_DEVICE):
        return ""
    return files.not_regular_reason(found).replace("a regular file", "/dev/kmsg, a file or a pipe")


async def _until_readable(fd: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fd)
