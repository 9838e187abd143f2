"""A root directory with stand-ins of NVIDIA's programs, a real supervisor on it, and who plays the agent's part."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from gpuplane.node.core.mps import daemon_directory
from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.files import FILES_FOLDER, STATUS_FILE, WANTED_FILE, decode_file, write_file
from gpuplane.node.host.mps.processes import MARK_VARIABLE, PIPE_DIRECTORY_VARIABLE, Process
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons
from tests.node.host.mps.standin import make
from tests.texts import as_shown

HEARD = 0.5
"""Seconds, of the supervisor's own: by its next word after them it has heard what was said before."""

T = TypeVar("T")


def _parent(found: Process) -> int:
    """The number of a process's parent; 0 where it has ended."""
    with suppress(OSError):
        status = Path(f"/proc/{found.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])
    return 0


class World:
    """`async with World(folder) as world`: what was started here is ended when it is left.

    `tools`: where NVIDIA's own programs are, instead of stand-ins.
    """

    def __init__(self, folder: Path, shm: str = "host", tools: Path | None = None) -> None:
        self.root, self.tools, self.shm = folder / "mps", tools or make(folder / "bin"), shm
        self.log: list[str] = []
        self.clients: list[asyncio.subprocess.Process] = []
        self.supervisor: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        for client in self.clients:
            await self.end(client)
        async with asyncio.timeout(60):
            while left := {*self.family(), *self._programs()}:  # a command of a killed supervisor may still write
                for each in left:
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)
                await asyncio.sleep(0.02)

    async def supervise(self, *options: str) -> int:
        """Start a supervisor; its process id."""
        self.supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuplane", "mps", "--root", self.root, "--shm", self.shm,
            "--control", self.tools / processes.CONTROL_PROGRAM, "--smi", self.tools / "nvidia-smi", *options,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self.supervisor))
        return self.supervisor.pid

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the supervisor, if there is one."""
        if self.supervisor is not None:
            with suppress(ProcessLookupError):
                self.supervisor.send_signal(number)
            await self.supervisor.wait()
            await self._reading
            self.supervisor = None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.log.append(line.decode().rstrip())

    def want(self, *daemons: MpsDaemon, held: tuple[str, ...] = ()) -> None:
        """Say what the agent wants."""
        (self.root / FILES_FOLDER).mkdir(parents=True, exist_ok=True)
        write_file(self.root / FILES_FOLDER / WANTED_FILE, WantedDaemons(daemons=daemons, daemons_in_use=held))

    def status(self) -> SupervisorStatus | None:
        """The supervisor's last word."""
        try:
            return decode_file((self.root / FILES_FOLDER / STATUS_FILE).read_bytes(), SupervisorStatus)
        except (OSError, msgspec.DecodeError):
            return None

    async def until_heard(self) -> None:
        """Until the supervisor has heard what was wanted last: it reads that several times in HEARD."""
        at = time.clock_gettime(time.CLOCK_BOOTTIME) + HEARD
        await self.until(lambda: (status := self.status()) and status.at > at)

    def standing(self, name: str) -> DaemonStatus | None:
        """How a daemon stands, by the word of the supervisor that runs."""
        status = self.status()
        if status is None or self.supervisor is None or status.pid != self.supervisor.pid:
            return None
        return next((each for each in status.daemons if each.name == name), None)

    async def until(self, found: Callable[[], T | None], deadline: float = 60.0) -> T:
        """What is found, once it is. Raises TimeoutError with the supervisor's log."""
        try:
            async with asyncio.timeout(deadline):
                while not (value := found()):
                    await asyncio.sleep(0.05)
                return value
        except TimeoutError:
            raise TimeoutError(f"{self.status()}\n" + "\n".join(self.log)) from None

    async def until_ok(self, name: str, but: Process | None = None) -> Process:
        """The daemon of that name once it is told to be ok; another than `but`."""

        def found() -> Process | None:
            standing, daemon = self.standing(name), self.daemon(name)
            well = standing and daemon and standing.state == "ok" and standing.pid == daemon.pid
            return daemon if well and daemon != but else None

        return await self.until(found)

    async def until_says(self, name: str, words: str) -> DaemonStatus:
        """How a daemon stands, once its reason has these words."""
        return await self.until(lambda: s if (s := self.standing(name)) and words in as_shown(s.reason) else None)

    def pipe(self, name: str) -> Path:
        """A daemon's pipe directory."""
        return self.root / daemon_directory(name) / "pipe"

    def daemon(self, name: str) -> Process | None:
        """The daemon of that name, as the kernel shows it: of those that we started the one that stays."""
        found = [
            each
            for each in processes.find_lookalikes(processes.CONTROL_PROGRAM, self.pipe(name), "-d")
            if self.started(each)
        ]
        number = processes.pid_in_file(self.pipe(name))
        return max(found, key=lambda each: (each.pid == number, each.began, each.pid), default=None)

    def servers(self, name: str) -> list[Process]:
        """Its servers, and those of daemons before it."""
        return [
            each for each in processes.find_lookalikes(processes.SERVER_PROGRAM, self.pipe(name)) if self.started(each)
        ]

    async def serving(self, name: str) -> Process:
        """The server that its clients have, once it shows what it runs: whoever started it goes on before that."""

        def found() -> Process | None:
            daemon = self.daemon(name)
            return next((each for each in self.servers(name) if daemon and _parent(each) == daemon.pid), None)

        return await self.until(found)

    @staticmethod
    def started(found: Process) -> bool:
        """Whether a supervisor has started it, or its daemon."""
        return MARK_VARIABLE in processes.read_environment(found)

    def family(self) -> list[Process]:
        """Every process that was started for a pipe directory below the root."""
        found = [processes.find_process(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        return [
            p
            for p in found
            if p and processes.read_environment(p).get(PIPE_DIRECTORY_VARIABLE, "").startswith(str(self.root))
        ]

    def _programs(self) -> list[Process]:
        """Every process that runs a program of ours."""
        found = [processes.find_process(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        return [
            p for p in found if p and any(word.startswith(f"{self.tools}/") for word in processes.read_arguments(p)[:4])
        ]

    async def compute(self, name: str) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
        """A client of a daemon, once it is connected, and its memory limits."""
        client = await asyncio.create_subprocess_exec(
            self.tools / "client", env={PIPE_DIRECTORY_VARIABLE: str(self.pipe(name))}, stdout=asyncio.subprocess.PIPE
        )
        self.clients.append(client)
        assert client.stdout is not None
        async with asyncio.timeout(60):
            return client, json.loads(await client.stdout.readline())

    async def end(self, client: asyncio.subprocess.Process) -> None:
        """End a client."""
        with suppress(ProcessLookupError):
            client.kill()
        await client.wait()

    def told(self, name: str) -> list[str]:
        """The commands that a daemon was told, and those before it, but for questions."""
        lines = (self.root / daemon_directory(name) / "log/control.log").read_text().splitlines()
        return [line.removeprefix("Cmd:") for line in lines if line.startswith("Cmd:") and "get_" not in line]

    def modes(self) -> dict[str, str]:
        """The compute modes that were set."""
        path = self.tools / "modes.json"
        found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def spoil(self, program: str, text: str | None) -> None:
        """Make a program fail with a text, or work again."""
        path = self.tools / f"broken.{program}"
        path.unlink(missing_ok=True) if text is None else path.write_text(text)

    def delay(self, moment: str | None) -> None:
        """Hold up the start of daemons before or after they are ready; a file `reached` says that one is there."""
        path = self.tools / "delay"
        path.unlink(missing_ok=True) if moment is None else path.write_text(moment)
