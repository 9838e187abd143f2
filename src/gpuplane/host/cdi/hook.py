"""Whether our hook is installed. Who installs it is not this agent, which cannot write there."""

import asyncio
import stat
from pathlib import Path

from gpuplane.core.containers.cdi.condition import HOOK
from gpuplane.model.facts import Stood
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Condition

INSTALLED = Path("/opt/gpuplane/bin/gpuplane-hook")


async def watch_hook(node: Node, path: Path, every: float = 5.0) -> None:
    """Tell whether the program is there, for ever. `path` is the same on the host and here."""
    while True:
        node.tell(Stood(HOOK, look(path)))
        await asyncio.sleep(every)


def look(path: Path) -> Condition:
    """Without it containers start as well: libraries are then mounted under each of their names."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Condition(standing="ok", reason=f"not installed at {path}: links become mounts")
    except OSError as error:
        return Condition(standing="failing", reason=f"{path}: {error.strerror}")
    if not stat.S_ISREG(mode) or not mode & stat.S_IXUSR:
        return Condition(standing="failing", reason=f"{path} is no program: install the hook there anew")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Condition(standing="failing", reason=f"{path} may be written by others, and runs as root: chmod go-w it")
    return Condition(standing="ok", reason=str(path), detail=str(path))
