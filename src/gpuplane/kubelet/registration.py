"""Being registered with kubelet: one life for each resource that is offered.

A registration is one socket, one server, one Register and the stream that follows. When any of them is lost all are
made anew, after a rest. So a stream that is open belongs to the registration that we watch: never to a kubelet that
half died, and never to an earlier Register. (Kubelet takes the end of *any* stream of a resource for the end of the
plugin that registered last: pkg/kubelet/cm/devicemanager/manager.go, PluginDisconnected. So an old stream must have
ended before we register again.)

What can be lost, and how it comes back (observed on kubelet 1.36.2):
- Kubelet restarts: at its start it removes every socket of the directory, then makes its own anew. We see that another
  socket stands there, however fast it was.
- The stream is lost while kubelet lives: its devices count as unhealthy there until we register again.
- Our socket is removed: nobody could dial it again.
- NVIDIA's plugin serves this resource, by its socket's name: we wait and say who. Where it came after us, our streams
  stay open but silent until it has gone: to close them would make kubelet drop *its* devices.

Who may register at all is `core.serving`'s answer, and the lock's on kubelet's directory (`turn`). An agent that was
told to end keeps what it has, and registers no more; when it serves no more its streams end, without an empty list.

Nothing of it ends the process or another resource's life. After a failure the rests grow; a rest ends early only when
another socket stands at kubelet's path or at NVIDIA's, or the lock is had: that is something new to try.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc

from gpuplane.core.advertising import offer
from gpuplane.core.serving import registers, serves
from gpuplane.core.text import clip
from gpuplane.kubelet.plugin import Plugin
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpuplane.kubelet.sockets import (
    LONGEST,
    Identity,
    Taken,
    address,
    check_length,
    complaint,
    identity,
    owner,
    serving,
    stands,
)
from gpuplane.model.facts import StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.status import State, Status, plugin_of
from gpuplane.model.views import LogSubject

LOOK = 0.2  # seconds between two looks at the sockets
GLANCE = 1.0  # seconds between two looks while kubelet reads the list: the end of its stream is an event
PROBE = 1.0  # seconds between two looks whether NVIDIA's plugin still serves the resource
READ = 2.0  # seconds that kubelet may take to open a stream, and to read the last list of a resource that goes
REGISTER = 15.0  # seconds that kubelet may take to accept; it gives up dialling us after 10 itself
RESTS = (0.2, 10.0)  # seconds: the first rest after a failure, and the longest
STEADY = 10.0  # seconds after which a registration counts as one that held

log = logging.getLogger(__name__)


def unlocked() -> bool:
    """Nobody else serves this kubelet: whoever calls knows."""
    return True


async def plugins(
    node: Node, directory: Path, rests: tuple[float, float] = RESTS, ours: Callable[[], bool] = unlocked
) -> None:
    """Reconcile the plugin servers with the offer, for ever. `ours`: whether the directory's lock is ours."""
    lives: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        async for snapshot in node.changes():
            for resource in offer(snapshot).resources:
                if resource.name not in lives or lives[resource.name].done():
                    lives[resource.name] = group.create_task(Life(node, directory, resource.name, rests, ours).run())


async def unregistered(node: Node) -> None:
    """Say of each resource that nobody registers it, for ever. So it is wanted, and no reason to be unready."""
    told = set[str]()
    ok = Status("ok", "not registered with kubelet, since --kubelet-socket is empty")
    async for snapshot in node.changes():
        offered = {resource.name for resource in offer(snapshot).resources}
        for name in sorted(offered ^ told):
            node.apply(StatusChanged(plugin_of(name), ok if name in offered else None))
        told = offered


class Lost(Exception):
    """The registration no longer holds, and why."""


class Life:
    """One resource, as long as it is offered. It reports the status of its plugin."""

    def __init__(
        self, node: Node, directory: Path, resource: str, rests: tuple[float, float], ours: Callable[[], bool]
    ) -> None:
        self.node, self.directory, self.resource, self.rests, self.ours = node, directory, resource, rests, ours
        self.part = plugin_of(resource)
        self.logged = ""  # the last error that should not happen
        self.kubelet = directory / "kubelet.sock"
        self.rival = directory / f"nvidia-{resource.rpartition('/')[2]}.sock"  # that of NVIDIA's plugin

    async def run(self) -> None:
        """Register, and register again, until the resource is gone or we serve no more. Raises nothing."""
        rest = self.rests[0]
        try:
            while self._offered():
                began = self.node.now()
                await self._try()
                steady = self.node.now() - began > STEADY
                something_new = await self._rest(self.rests[0] if steady else rest)
                rest = self.rests[0] if steady or something_new else min(rest * 2, self.rests[1])
        finally:
            self.node.apply(StatusChanged(self.part, None))

    async def _try(self) -> None:
        try:
            await self._hold()
        except (Lost, Taken) as why:
            self._report_status("waiting", str(why))
        except grpc.aio.AioRpcError as error:
            self._report_status("failing", f"kubelet did not accept the registration: {complaint(error)}")
        except OSError as error:
            self._report_status("failing", f"{error.filename or self.directory}: {error.strerror or error}")
        except Exception as error:
            self._wonder(error)

    def _wonder(self, error: Exception) -> None:
        """What should not happen is logged once while it stays the same, with where it did."""
        why = f"{type(error).__name__}: {error}"
        if why != self.logged:
            about = LogSubject(part=self.part.name, resources=(self.resource,))
            log.exception("%s: the registration failed", self.resource, extra=about.extra)
        self.logged = why
        self._report_status("failing", clip(why))

    async def _rest(self, seconds: float) -> bool:
        """Rest before the next try; whether it ended early because there is something new to try."""
        before, until = self._sight(), self.node.now() + seconds
        while self._offered() and (left := until - self.node.now()) > 0:
            await asyncio.sleep(min(LOOK, left))
            if self._sight() != before:
                return True
        return False

    def _sight(self) -> object:
        return _seen(self.kubelet), _seen(self.rival), self.ours()

    async def _hold(self) -> None:
        """One registration, from its socket to its loss. Returns where the resource has gone, or we serve no more."""
        check_length(self.kubelet)
        there = identity(self.kubelet)
        if there is None:
            raise Lost(f"kubelet is not there: no {self.kubelet}")
        if other := self._other():
            raise Taken(f"{self.rival.name} is served by {other}: this agent takes over when that ends")
        if not self.ours():
            raise Lost(f"the lock of {self.directory} is not ours yet")
        if not registers(self.node.snapshot):
            raise Lost("this agent was told to end: it registers with kubelet no more")
        plugin = Plugin(self.node, self.resource)
        add = partial(add_DevicePluginServicer_to_server, plugin)
        async with serving(self.directory, add) as (path, ours):
            accepted = asyncio.create_task(self._register(plugin, path))
            accepted.add_done_callback(lambda _: plugin.stir.set())
            try:
                await self._watch(plugin, accepted, there, path, ours)
            finally:
                accepted.cancel()
                await asyncio.gather(accepted, return_exceptions=True)

    async def _register(self, plugin: Plugin, path: Path) -> float:
        """Ask kubelet to read us; when it accepted."""
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=path.name, resource_name=self.resource, options=plugin.options()
        )
        alone = [("grpc.use_local_subchannel_pool", 1)]  # no back-off of an earlier connection
        async with grpc.aio.insecure_channel(address(self.kubelet), alone) as channel:
            await RegistrationStub(channel).Register(request, timeout=REGISTER)
        return self.node.now()

    async def _watch(
        self, plugin: Plugin, accepted: asyncio.Task[float], there: Identity, path: Path, ours: Identity
    ) -> None:
        """Follow a registration. Raises Lost, and what Register raised; returns as `_hold` does."""
        began, was_read = self.node.now(), False
        while self._offered():
            found = identity(self.kubelet)
            if found != there and (found is not None or not plugin.streams):
                raise Lost("kubelet has restarted" if found else "kubelet has gone")
            if not stands(path, ours):
                raise Lost(f"{path.name} was removed")
            if self._other():
                await self._give_way(plugin)
                raise Lost(f"{self.rival.name} was served by another")
            when = accepted.result() if accepted.done() else None
            if when is None:
                if self.node.now() - began > LOOK:
                    self._report_status("waiting", "kubelet was asked to register it and has not answered yet")
            elif plugin.streams:
                was_read = True
                self._report_status("ok", f"registered by {path.name}, and kubelet reads the list")
            elif was_read:
                raise Lost("kubelet no longer reads the list")
            elif self.node.now() - when > READ:
                raise Lost(f"kubelet accepted the registration, but did not read the list within {READ:g} s")
            await _stirred(plugin, GLANCE if was_read else LOOK)
        await self._take_leave(plugin)

    async def _give_way(self, plugin: Plugin) -> None:
        """While NVIDIA's plugin serves what it took from us, keep the streams that kubelet reads, and be silent."""
        plugin.silent = True
        while self._offered() and plugin.streams and (other := self._other()):
            taken = f"{self.resource} was taken by {other}, which serves {self.rival.name}"
            self._report_status("waiting", f"{taken}: this agent takes over when that ends")
            await _stirred(plugin, PROBE)

    async def _take_leave(self, plugin: Plugin) -> None:
        """The streams end by themselves after the empty list; those that nobody reads are cut then."""
        until = self.node.now() + READ
        while plugin.streams and (left := until - self.node.now()) > 0:
            await _stirred(plugin, left)

    def _other(self) -> str | None:
        """Who serves the resource as NVIDIA's plugin does; nobody where its socket would have too long a path."""
        return owner(self.rival) if len(os.fsencode(self.rival)) <= LONGEST else None

    def _offered(self) -> bool:
        if not serves(self.node.snapshot):
            return False
        offered = offer(self.node.snapshot)
        return bool(offered.waiting) or offered.resource(self.resource) is not None

    def _report_status(self, state: State, reason: str) -> None:
        self.node.apply(StatusChanged(self.part, Status(state, reason)))


def _seen(path: Path) -> object:
    try:
        return identity(path)
    except (Taken, OSError) as error:
        return str(error)


async def _stirred(plugin: Plugin, seconds: float) -> None:
    """Until a stream opens or ends, or Register is answered, but no longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await plugin.stir.wait()
    plugin.stir.clear()
