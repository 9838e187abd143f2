"""One driver's process, as the agent holds it. Nothing here waits for a process that is stuck in the kernel."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress

import msgspec

from gpuplane.node.hardware.nvidia.driver.callpage import AnnouncedCall, CallPage
from gpuplane.node.hardware.nvidia.driver.channel import DriverMessage, DriverOptions, FrameDecoder, Order, encode_frame
from gpuplane.node.hardware.nvidia.driver.errors import (
    driver_crash_fault,
    driver_hang_fault,
    gpu_crash_fault,
    gpu_hang_fault,
    process_stopped_fault,
)
from gpuplane.node.hardware.nvidia.process import Process, start_process
from gpuplane.node.model.machine import Fault

WaitingProcess = tuple[subprocess.Popen[bytes], socket.socket]
"""A driver's process that waits for its options, and the socket that it waits at."""

DRIVER_COMMAND = (sys.executable, "-P", "-m", "gpuplane.node.hardware.nvidia.driver")


class DriverProcess(Process):
    """A process that was started. Belongs to one event loop.

    `ended`: its channel is closed, or speaks nonsense. `silent`: it was in one call, or did nothing, for too long.
    `stopped`: it was so because it was stopped from outside.
    """

    def __init__(self, options: DriverOptions, waiting: WaitingProcess | None = None) -> None:
        """`options`: without the descriptors of the channel and the page. `waiting`: a process that was started already
        and waits for them. Raises OSError."""
        self._socket, theirs = socket.socketpair()
        memory = os.memfd_create("gpuplane-driver")
        try:
            os.ftruncate(memory, os.sysconf("SC_PAGESIZE"))
            self._page = CallPage(memory)
            descriptors = theirs.fileno(), memory
            if waiting is not None:
                process, line = waiting
                super().__init__(process)
                with line:
                    socket.send_fds(line, [msgspec.json.encode(options)], descriptors)
            else:
                argument = msgspec.json.encode(options.but(channel=descriptors[0], page=descriptors[1])).decode()
                super().__init__(
                    start_process([*DRIVER_COMMAND, argument], pass_fds=descriptors, stdout=subprocess.DEVNULL)
                )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
        self.ended = self.silent = self.stopped = False
        self._told, self._news = deque[DriverMessage](), asyncio.Event()
        self._frames: FrameDecoder[DriverMessage] = FrameDecoder(DriverMessage)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    async def receive(self, seconds: float) -> DriverMessage | None:
        """The next fact, or None if none comes within the time or at all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._told and not self.ended:
                    self._news.clear()
                    await self._news.wait()
        return self._told.popleft() if self._told else None

    def send(self, order: Order) -> bool:
        """Order it to do something; whether it can know. A process that does not listen is silent in every other way
        too."""
        data = encode_frame(order)
        with suppress(OSError):
            return self._socket.send(data) == len(data)
        return False

    def announced(self) -> AnnouncedCall:
        """What it does, and since when; what it did last, once it has ended."""
        announced = self._page.read()
        return announced.but(since=max(announced.since, self.started))

    def fault(self) -> Fault:
        """What it shows of a GPU, or of the driver as a whole, that it hung or ended."""
        announced = self.announced()
        function = announced.function or "the agent's own code"
        if self.stopped:
            return process_stopped_fault(function)
        if announced.gpu is not None:
            return (gpu_hang_fault if self.silent else gpu_crash_fault)(function)
        if self.silent:
            return driver_hang_fault(function)
        message = f"the agent's driver process failed in {function}: {self.end_reason()}"
        return driver_crash_fault(function).but(message=message)

    def kill(self) -> None:
        """End it. There is no other way, and it leaves nothing undone."""
        super().kill()
        self._end()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
            self._told.extend(self._frames.feed(data))
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError):
            data = b""
        if not data:
            self._end()
        self._news.set()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._news.set()
