"""A machine that a YAML file describes, re-read while we run.

A bad edit is refused and the last good look stays; that says nothing against the driver, so it is the part `machine
file` that fails, and is well again with the next good edit. Only where there never was a good version is it the driver
that cannot be used.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from gpuplane.core import strict
from gpuplane.hardware.failures import show
from gpuplane.hardware.machinefile import read
from gpuplane.model.facts import Action, Fact, Looked, Stood
from gpuplane.model.snapshot import LET_GO, Condition

FILE = "machine file"


class Described:
    """Hardware from the versions of one file, as they come."""

    def __init__(self, versions: AsyncIterator[bytes | OSError], name: str) -> None:
        self._versions, self._name = versions, name
        self._good: list[Stood | Looked] = []
        self._file: Condition | None = None  # None: nothing was ever wrong with it
        self._wanted, self._changed = True, asyncio.Event()

    async def facts(self) -> AsyncGenerator[Fact, None]:
        """What the newest version of the file shows; while the driver is let go of, that alone."""
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while not reading.done() or self._changed.is_set():
                await self._changed.wait()
                self._changed.clear()
                for fact in self._now():
                    yield fact
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def do(self, action: Action) -> None:
        """Tell again what the file shows."""
        self._wanted = True
        self._changed.set()

    async def release(self) -> None:
        """Tell nothing of the machine until the next look is wanted."""
        self._wanted = False
        self._changed.set()

    def _now(self) -> Iterator[Fact]:
        if not self._wanted:
            yield Stood("driver", Condition(standing="waiting", reason=LET_GO))
        elif self._good:
            yield from self._good
            yield Stood(FILE, self._file)
        elif self._file is not None:
            yield Stood("driver", self._file)

    async def _read(self) -> None:
        async for version in self._versions:
            try:
                if isinstance(version, OSError):
                    raise strict.Invalid([f"{self._name}: {version.strerror}"])
                shown = show(read(version, self._name), self._name)
            except strict.Invalid as error:
                self._file = Condition(standing="failing", reason=str(error))
            else:
                mended = self._good and self._file
                self._good = shown
                self._file = Condition(standing="ok", reason=f"{self._name} can be read again") if mended else None
            self._changed.set()
