"""The plugin watcher: who has a socket in plugins_registry is asked what it is, and registered (pkg/kubelet/
pluginmanager).

Every second kubelet compares the sockets that are there with what it has registered. A socket that is gone, or another
one in its place, ends a registration. One that fails is tried again after 500 ms, then twice as late each time. Names
that begin with a dot are passed over, and so is what is no socket.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import msgspec

from gpuplane.node.kubelet.protocols import pluginregistration_pb2 as pb
from gpuplane.node.kubelet.protocols.pluginregistration_pb2_grpc import RegistrationStub
from gpuplane.node.kubelet.sockets import grpc_target
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.plugins import DraPlugins
from gpuplane.sandbox.kubelet.dra.times import DraTimes
from gpuplane.sandbox.kubelet.endpoint import Call

PLUGIN_TYPE = "DRAPlugin"
REGISTER_FAILED_TEXT = "RegisterPlugin error -- "

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of a socket: another one at the same path differs in one of them."""


class _Registered(msgspec.Struct, frozen=True):
    identity: SocketIdentity
    driver: str
    endpoint: Path


class PluginWatcher:
    """Follows one directory, from `run` to its cancellation."""

    def __init__(self, directory: Path, plugins: DraPlugins, times: DraTimes, trace: Callable[[Call], None]) -> None:
        self.directory, self.plugins, self.times, self._trace = directory, plugins, times, trace
        self._registered: dict[Path, _Registered] = {}
        self._backoff: dict[Path, tuple[float, float]] = {}  # when a registration may be tried again, and the pause
        self._operations: dict[Path, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the directory."""
        try:
            while True:
                await self._reconcile(dict(self._sockets()))
                await asyncio.sleep(self.times.watch_period)
        finally:
            for operation in self._operations.values():
                operation.cancel()
            await asyncio.gather(*self._operations.values(), return_exceptions=True)

    def _sockets(self) -> Iterator[tuple[Path, SocketIdentity]]:
        for directory, subdirectories, names in os.walk(self.directory):
            subdirectories[:] = [each for each in subdirectories if not each.startswith(".")]
            for name in names:
                path = Path(directory, name)
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISSOCK(found.st_mode) and not name.startswith("."):
                    yield path, (found.st_dev, found.st_ino, found.st_mtime_ns)

    async def _reconcile(self, sockets: dict[Path, SocketIdentity]) -> None:
        for path, known in list(self._registered.items()):
            if sockets.get(path) != known.identity:
                del self._registered[path]
                await self.plugins.remove(known.driver, known.endpoint)
        now = asyncio.get_running_loop().time()
        for path, identity in sockets.items():
            busy = path in self._operations and not self._operations[path].done()
            if not busy and path not in self._registered and self._backoff.get(path, (now, 0))[0] <= now:
                self._operations[path] = asyncio.create_task(self._try_to_register(path, identity))

    async def _try_to_register(self, path: Path, identity: SocketIdentity) -> None:
        try:
            await self._register(path, identity)
            self._backoff.pop(path, None)
        except (KubeletError, grpc.aio.AioRpcError, TimeoutError) as error:
            self._trace(Call("Register failed", path.name, error=str(error)))
            pause = self._backoff.get(path, (0, 0))[1]
            pause = min(2 * pause or self.times.first_backoff, self.times.longest_backoff)
            self._backoff[path] = (asyncio.get_running_loop().time() + pause, pause)

    async def _register(self, path: Path, identity: SocketIdentity) -> None:
        """GetInfo, what follows of it, and NotifyRegistrationStatus. Raises what makes kubelet try again."""
        alone = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(grpc_target(path), alone) as channel:
            async with asyncio.timeout(self.times.dial):
                await channel.channel_ready()
            client = RegistrationStub(channel)
            info = await client.GetInfo(pb.InfoRequest(), timeout=self.times.get_info)
            self._trace(Call("GetInfo", info.name))
            endpoint, problem = Path(info.endpoint or path), ""
            try:
                self._check_plugin_info(info, endpoint, path)
                self._registered[path] = _Registered(identity, info.name, endpoint)
                problem = f"{REGISTER_FAILED_TEXT}plugin registration failed with err: "
                self.plugins.add(info.name, endpoint, info.supported_versions)
            except KubeletError as refusal:
                status = pb.RegistrationStatus(error=f"{problem}{refusal}")
            else:
                status = pb.RegistrationStatus(plugin_registered=True)
            self._trace(Call("NotifyRegistrationStatus", info.name, error=status.error))
            try:
                await client.NotifyRegistrationStatus(status, timeout=self.times.notify)
            except grpc.aio.AioRpcError:
                if status.plugin_registered:
                    del self._registered[path]
                    await self.plugins.remove(info.name, endpoint)
                raise
            if status.error:
                raise KubeletError(status.error)

    def _check_plugin_info(self, info: pb.PluginInfo, endpoint: Path, path: Path) -> None:
        """Raises KubeletError, which the plugin is told."""
        if info.type != PLUGIN_TYPE:
            raise KubeletError(
                f"{REGISTER_FAILED_TEXT}no handler registered for plugin type: {info.type} at socket {path}"
            )
        try:
            self.plugins.check(info.name, endpoint, info.supported_versions)
        except KubeletError as refusal:
            raise KubeletError(f"{REGISTER_FAILED_TEXT}plugin validation failed with err: {refusal}") from None
