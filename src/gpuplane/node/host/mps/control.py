"""What is said to a control daemon, by NVIDIA's program for that, and what it answers.

It is said by the sockets that no client can replace (sockets.py), so an answer is the daemon's own.
"""

import os
from pathlib import Path

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.command import run_command
from gpuplane.node.host.mps.daemondirectories import DaemonDirectories
from gpuplane.node.host.mps.processes import PIPE_DIRECTORY_VARIABLE, Process
from gpuplane.node.model.mps import MpsDaemon

LOG_DIRECTORY_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
ANSWER_TIMEOUT = 5.0
"""Seconds for an answer."""

Clients = tuple[Process | None, ...]
"""The clients of a server; None for one that is in a namespace where we do not see it."""


class ControlClient:
    """Speaks to one daemon. Everything raises CommandFailed or CommandTimedOut where that does not answer."""

    def __init__(self, program: str, place: DaemonDirectories) -> None:
        self._program, self._place = program, place

    async def ask(self, command: str) -> str:
        """What it answers to a command."""
        environment = self.environment(self._place.closed)
        return await run_command((self._program,), ANSWER_TIMEOUT, given=f"{command}\n", environment=environment)

    async def limit(self, wanted: MpsDaemon) -> None:
        """Limits for the servers to come and, of those that run, for the clients to come."""
        share, running = wanted.active_thread_percentage, await self._servers()
        await self.ask(f"set_default_active_thread_percentage {share}")
        for server in running:
            await self.ask(f"set_active_thread_percentage {server.pid} {share}")
        for device, mib in wanted.client_memory_mib_by_device.items():
            if mib:
                await self.ask(f"set_default_device_pinned_mem_limit {device} {mib}M")
                for server in running:
                    await self.ask(f"set_device_pinned_mem_limit {server.pid} {device} {mib}M")

    async def clients(self) -> dict[Process, Clients]:
        """Its servers, and the clients of each."""
        return {server: await self._clients_of(server) for server in await self._servers()}

    async def _servers(self) -> list[Process]:
        pids = _numbers(await self.ask("get_server_list"))
        return [found for pid in pids if (found := processes.find_process(pid))]

    async def _clients_of(self, server: Process) -> Clients:
        return tuple(processes.find_process(pid) for pid in _numbers(await self.ask(f"get_client_list {server.pid}")))

    def environment(self, pipe: Path) -> dict[str, str]:
        """For the program, with this pipe directory."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return ours | {PIPE_DIRECTORY_VARIABLE: str(pipe), LOG_DIRECTORY_VARIABLE: str(self._place.log)}


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdecimal()]
