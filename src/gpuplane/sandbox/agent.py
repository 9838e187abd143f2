"""The agent as a process of its own, started by its command line: what a demo, a test or a bench looks at."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Self

from gpuplane.sandbox.changes import DEFAULT_TIMEOUT_SECONDS, Changes

MAX_LOG_LINE_BYTES = 1 << 20  # bytes of a log line
LOG_LINES_OF_ERROR = 40  # lines of the log that an error is shown with
AGENT_PROGRAM = ("-m", "gpuplane")


class Agent:
    """`async with Agent("--machine", …) as agent`. Its log lines are in `log` as they come; leaving stops it.

    `program`: what Python runs, if not this version of gpuplane.
    """

    def __init__(
        self, *arguments: object, environment: dict[str, str] | None = None, program: Sequence[str] = AGENT_PROGRAM
    ) -> None:
        self.arguments = [str(each) for each in arguments]
        self.program = program
        self.environment = environment or {}
        self.log: list[str] = []
        self._changes = Changes()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(
                "\n".join([f"the log of process {self.process.pid} ends with:", *self.log[-LOG_LINES_OF_ERROR:]])
            )
        if isinstance(error, asyncio.CancelledError):
            await self.kill()
        elif self.process.returncode is None:
            await self.stop()

    async def start(self) -> None:
        """Start the process."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.program,
            "agent",
            *self.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for whoever started us
            limit=MAX_LOG_LINE_BYTES,
            env={**os.environ, **self.environment},
        )
        self._reader = asyncio.create_task(self._read())

    async def stop(self, deadline: float = DEFAULT_TIMEOUT_SECONDS) -> int:
        """Ask it to stop; its exit status. One that does not stop is killed, and TimeoutError raised."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(deadline):
                return await self._ended()
        except TimeoutError:
            await self.kill()
            raise TimeoutError(f"the agent did not stop within {deadline:g} s:\n" + "\n".join(self.log)) from None

    async def kill(self) -> None:
        """SIGKILL."""
        if self.process.returncode is None:
            self.process.kill()
        await self._ended()

    async def until_says(self, *words: str, deadline: float = DEFAULT_TIMEOUT_SECONDS) -> str:
        """The first log line that contains all these words. Raises TimeoutError with the whole log."""

        def found() -> str | None:
            return next((line for line in self.log if all(word in line for word in words)), None)

        try:
            return await self._changes.until(found, deadline) or ""
        except TimeoutError:
            raise TimeoutError(f"the agent did not log {', '.join(words)}:\n" + "\n".join(self.log)) from None

    async def _ended(self) -> int:
        status = await self.process.wait()
        await asyncio.shield(self._reader)
        return status

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode(errors="replace").rstrip())
            self._changes.notify()
