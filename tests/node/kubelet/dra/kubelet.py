"""Kubelet's plugin watcher by script, and clients of what it finds."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from gpuplane.node.kubelet.protocols import pluginregistration_pb2 as pb
from gpuplane.node.kubelet.protocols.pluginregistration_pb2_grpc import RegistrationStub
from tests.removal import remove

DEADLINE = 60.0
DRIVER = "gpu.nvidia.com"
ALONE = [("grpc.use_local_subchannel_pool", 1)]


@asynccontextmanager
async def connected(path: Path | str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own."""
    async with grpc.aio.insecure_channel(f"unix:{path}", ALONE) as channel:
        yield channel


@asynccontextmanager
async def kubelet_root() -> AsyncIterator[Path]:
    """Kubelet's directory, at a short path: a socket's has 107 bytes."""
    root = Path(tempfile.mkdtemp(prefix="gp"))
    (root / "plugins_registry").mkdir()
    try:
        yield root
    finally:
        remove(root)


class Watcher:
    """Registers each socket of the directory once, as kubelet does, until the block ends.

    `registered`: what it took, by path, as long as the socket is there. `asked`: what said what, in order.
    """

    def __init__(self, root: Path) -> None:
        self.directory = root / "plugins_registry"
        self.registered: dict[Path, pb.PluginInfo] = {}
        self.asked: list[tuple[float, Path, pb.PluginInfo]] = []
        self.refusal = ""
        self._known: dict[Path, tuple[int, int]] = {}

    async def __aenter__(self) -> "Watcher":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while True:
            found: dict[Path, tuple[int, int]] = {}  # numbers of inodes are used again
            with suppress(FileNotFoundError):
                there = {each: each.stat() for each in self.directory.iterdir() if each.name[0] != "."}
                found = {path: (each.st_ino, each.st_ctime_ns) for path, each in there.items()}
            for path in [each for each, known in self._known.items() if found.get(each) != known]:
                del self._known[path]
                self.registered.pop(path, None)
            for path, identity in found.items():
                if path not in self._known and await self._register(path):
                    self._known[path] = identity
            await asyncio.sleep(0.01)

    async def _register(self, path: Path) -> bool:
        """Whether it need not be asked again."""
        refusal = self.refusal
        async with connected(path) as channel:
            try:
                stub = RegistrationStub(channel)
                info = await stub.GetInfo(pb.InfoRequest(), timeout=1)
                self.asked.append((time.monotonic(), path, info))
                status = pb.RegistrationStatus(plugin_registered=not refusal, error=refusal)
                await stub.NotifyRegistrationStatus(status, timeout=5)
            except grpc.aio.AioRpcError:
                return False
        if not refusal:
            self.registered[path] = info
        return not refusal


async def until(ready: Callable[[], bool]) -> None:
    """Until it is so."""
    async with asyncio.timeout(DEADLINE):
        while not ready():
            await asyncio.sleep(0.005)
