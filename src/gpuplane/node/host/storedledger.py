"""What another agent remembers, for one that stands by: read without the lock, and followed while that one writes.

So whoever stands by leaves the driver alone where the other was told to, and takes over with little left to learn. It
changes nothing in the directory: what it cannot read it leaves to the agent whose directory it is.
"""

import asyncio
from pathlib import Path

from gpuplane.base import files
from gpuplane.node.core.ledger import CLAIMS_DIRECTORY
from gpuplane.node.host.state import load_ledger
from gpuplane.node.model.facts import LedgerLoaded
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Ledger


def read_stored_ledger(directory: Path, boot: str) -> Ledger:
    """The ledger that a state directory holds now, as it holds in this boot; an empty one where the directory is not
    there, or somebody else could change it. Raises nothing."""
    try:
        if files.untrusted_reason(directory, follow=True):
            return Ledger(boot_id=boot)
    except OSError:
        return Ledger(boot_id=boot)
    return load_ledger(directory, boot, ours=False)[0]


async def follow_stored_ledger(node: Node, directory: Path, every: float = 0.5) -> None:
    """Tell what the directory holds whenever a file of it was replaced, for ever."""
    seen = _changed(directory)
    while True:
        await asyncio.sleep(every)
        if (now := _changed(directory)) != seen:
            seen = now
            node.apply(
                LedgerLoaded(read_stored_ledger(directory, node.snapshot.ledger.boot_id), previous_agent_ended=False)
            )


def _changed(directory: Path) -> tuple[int, int]:
    return _changed_at(directory), _changed_at(directory / CLAIMS_DIRECTORY)


def _changed_at(directory: Path) -> int:
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return 0
