"""Compute modes of whole GPUs: set while an MPS daemon wants it, then as they were before.

What a mode was is on disk before it is changed, so it is known however we end; and it is kept until the mode is as it
was. A mode that somebody else has set since is theirs, and is left.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.base.text import clip
from gpuplane.node.host.mps.command import CommandFailed, run_command
from gpuplane.node.host.mps.files import MODES_FILE, decode_file, write_file

EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
SETTABLE_MODES = {"DEFAULT", "PROHIBITED", EXCLUSIVE_PROCESS}


log = logging.getLogger("gpuplane.mps")


class ComputeModes:
    """The compute modes that we have changed. Raises OSError where what is remembered cannot be read."""

    def __init__(self, folder: Path, smi: str, deadline: float) -> None:
        self._path, self._smi, self._deadline = folder / MODES_FILE, smi, deadline
        self._before = _remembered(self._path)
        self._set: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    @property
    def changed(self) -> tuple[str, ...]:
        """The GPUs whose mode is not what it was."""
        return tuple(sorted(self._before))

    async def exclude(self, gpu: str) -> None:
        """Make a GPU one process's at a time. Costs nothing where that was done. Raises CommandFailed, OSError."""
        if gpu not in self._set:
            async with self._one_at_a_time:
                await self._exclude(gpu)

    async def keep(self, needed: Collection[str]) -> None:
        """Give every GPU that is not needed its mode back, and exclude those anew that a reset has opened.

        Raises CommandFailed, OSError: for one GPU, the others are done.
        """
        problem: CommandFailed | None = None
        for gpu in [*self._before, *self._set - self._before.keys()]:
            async with self._one_at_a_time:
                try:
                    await (self._exclude(gpu) if gpu in needed else self._restore(gpu))
                except CommandFailed as failed:
                    problem = failed
        if problem is not None:
            raise problem

    async def _exclude(self, gpu: str) -> None:
        mode = await self._mode(gpu)
        if mode != EXCLUSIVE_PROCESS:
            if gpu not in self._before:
                self._remember({**self._before, gpu: mode})
            await self._change(gpu, EXCLUSIVE_PROCESS)
        self._set.add(gpu)

    async def _restore(self, gpu: str) -> None:
        self._set.discard(gpu)
        if gpu in self._before:
            if await self._mode(gpu) == EXCLUSIVE_PROCESS:
                await self._change(gpu, self._before[gpu])
            self._remember({each: mode for each, mode in self._before.items() if each != gpu})

    def _remember(self, before: dict[str, str]) -> None:
        write_file(self._path, before, sync=True)
        self._before = before

    async def _mode(self, gpu: str) -> str:
        said = await run_command(
            (self._smi, "-i", gpu, "--query-gpu=compute_mode", "--format=csv,noheader"), self._deadline
        )
        mode = said.strip().upper()
        if mode not in SETTABLE_MODES:
            raise CommandFailed(
                f"{gpu} has the compute mode {clip(said)!r}, which gpuplane is not able to restore later; set "
                "computeMode: leave"
            )
        return mode

    async def _change(self, gpu: str, mode: str) -> None:
        await run_command((self._smi, "-i", gpu, "-c", mode), self._deadline)


def _remembered(path: Path) -> dict[str, str]:
    try:
        return decode_file(files.read(path, follow=False), dict[str, str])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        aside = path.replace(path.with_suffix(".unreadable"))
        log.error("%s: %s; renamed to %s; restore the earlier compute modes by hand", path, error, aside.name)
        return {}
