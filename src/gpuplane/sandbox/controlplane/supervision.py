"""Programs that are kept running until we end: one that ends is started again with back-off, and that is said once."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuplane.base.pauses import Backoff
from gpuplane.base.text import clip
from gpuplane.sandbox.controlplane.processes import Child, start_child

BACKOFF, STEADY_AFTER = (0.2, 10.0), 10.0
"""Seconds: the first pause and the longest; after how many a program counts as well again."""
MAX_ENDS_AT_START = 3
"""How often a program may end while not all are ready: a port may be another's for a moment."""
TAIL_BYTES = 4096
POLL_INTERVAL = 0.05
ENVIRONMENT_NAMES = ("PATH", "HOME", "TMPDIR", "TZ")
"""What programs get of our environment: no proxy, which would be asked for our nodes, and no KUBECONFIG."""


class ProgramFails(Exception):
    """A program ends as soon as it starts. The message says why and where its log is."""


class Supervisor:
    """Runs programs in a directory. `commands`: of each by its name. `report`: is told what has ended.

    `is_ready`: whether all has started well; before that ends are counted and not reported.
    """

    def __init__(
        self, directory: Path, commands: Mapping[str, Sequence[str | Path]], report: Callable[[str], None]
    ) -> None:
        self.is_ready = False
        self._directory, self._commands, self._report = directory, commands, report
        self._children = dict[str, Child]()
        self._tasks = dict[str, asyncio.Task[None]]()
        self._ends_at_start = dict.fromkeys(commands, 0)
        self._start_errors = dict[str, str]()
        self._reported = set[str]()

    @property
    def pids(self) -> dict[str, int]:
        """Each program that runs → its process number."""
        return {name: child.pid for name, child in self._children.items() if child.status is None}

    async def start(self, *names: str) -> None:
        """Start programs, and keep them running. Raises OSError where one cannot be started."""
        for name in names:
            self._children[name] = await self._start(name)
            self._tasks[name] = asyncio.create_task(self._keep(name))

    def check(self) -> None:
        """Raises ProgramFails."""
        for name, child in self._children.items():
            if not self.is_ready and self._ends_at_start[name] >= MAX_ENDS_AT_START:
                raise ProgramFails(f"{name} ends as soon as it starts: {self._reason(name)}. Its log: {child.log}")

    async def restart(self, name: str) -> None:
        """Kill a program, and wait until it runs again."""
        killed = self._children[name]
        killed.kill()
        while self._children[name] is killed:
            self.check()
            await asyncio.sleep(POLL_INTERVAL)

    async def end(self, *, gently: Sequence[str]) -> None:
        """End all: some by SIGTERM, after the others, which are killed."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        others = [child for name, child in self._children.items() if name not in gently]
        await asyncio.gather(*(child.stop(0) for child in others))
        await asyncio.gather(*(self._children[name].stop() for name in gently if name in self._children))

    async def _start(self, name: str) -> Child:
        environment = {each: value for each in ENVIRONMENT_NAMES if (value := os.environ.get(each)) is not None}
        return await start_child(
            self._commands[name],
            log=self._directory / f"logs/{name}.log",
            environment=environment,
            directory=self._directory,
            umask=0o077,  # whoever may connect to etcd's socket may do all
        )

    async def _keep(self, name: str) -> None:
        loop, pauses = asyncio.get_running_loop(), Backoff(*BACKOFF)
        while True:
            began = loop.time()
            status = await self._children[name].wait()
            if loop.time() - began > STEADY_AFTER:
                pauses.after(well=True)
                self._reported.discard(name)
            self._note_end(name, status)
            await asyncio.sleep(pauses.seconds)
            pauses.after(well=False)
            try:
                self._children[name] = await self._start(name)
                self._start_errors.pop(name, None)
            except OSError as error:  # then what has ended counts as ended once more
                self._start_errors[name] = clip(f"it cannot be started again: {error}")

    def _note_end(self, name: str, status: int) -> None:
        if not self.is_ready:
            self._ends_at_start[name] += 1
        elif name not in self._reported:
            self._reported.add(name)
            how = f"signal {-status}" if status < 0 else f"status {status}: {self._reason(name)}"
            self._report(f"{name} has ended ({how}) and is started again. Its log: {self._children[name].log}")

    def _reason(self, name: str) -> str:
        return self._start_errors.get(name) or last_line(self._children[name].log)


def last_line(log: Path) -> str:
    """What a program has said last: one line, which nobody has to trust."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).decode(errors="replace").split("\n")
        return clip(next((line for line in reversed(lines) if line.strip()), "it says nothing"))
    return "it says nothing"
