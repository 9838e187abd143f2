"""Whether processes are there."""

import asyncio
from pathlib import Path


async def gone(pid: int) -> None:
    """Until a process has ended, whoever has to collect it. Raises TimeoutError."""
    async with asyncio.timeout(60):
        while _runs(pid):
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
