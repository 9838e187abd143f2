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
- Somebody else serves our name: we wait and say who. Where they took it from us, our streams stay open but silent until
  they have gone: to close them would make kubelet drop *their* devices.

Nothing of it ends the process or another resource's life. After a failure the rests grow; a rest ends early only when
another socket stands at kubelet's path or at ours, since that is something new to try.
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import grpc

from gpuplane.core.resources.offer import offer
from gpuplane.core.text import clip
from gpuplane.kubelet.plugin import Plugin
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpuplane.kubelet.sockets import Identity, Taken, address, check_length, complaint, identity, owner, serving, stands
from gpuplane.model.facts import Stood
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Condition

LOOK = 0.2  # seconds between two looks at the sockets
GLANCE = 1.0  # seconds between two looks while kubelet reads the list: the end of its stream is an event
PROBE = 1.0  # seconds between two looks whether another still serves our name
READ = 2.0  # seconds that kubelet may take to open a stream, and to read the last list of a resource that goes
REGISTER = 15.0  # seconds that kubelet may take to accept; it gives up dialling us after 10 itself
RESTS = (0.2, 10.0)  # seconds: the first rest after a failure, and the longest
STEADY = 10.0  # seconds after which a registration counts as one that held

log = logging.getLogger(__name__)


async def plugins(node: Node, directory: Path, rests: tuple[float, float] = RESTS) -> None:
    """Reconcile the plugin servers with the offer, for ever."""
    lives: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        async for snapshot in node.changes():
            for resource in offer(snapshot).resources:
                if resource.name not in lives or lives[resource.name].done():
                    lives[resource.name] = group.create_task(Life(node, directory, resource.name, rests).run())


class Lost(Exception):
    """The registration no longer holds, and why."""


class Life:
    """One resource, as long as it is offered. It tells the condition `plugin/<resource>`."""

    def __init__(self, node: Node, directory: Path, resource: str, rests: tuple[float, float]) -> None:
        self.node, self.resource, self.rests = node, resource, rests
        self.logged = ""  # the last error that should not happen
        self.kubelet = directory / "kubelet.sock"
        self.path = directory / f"nvidia-{resource.rpartition('/')[2]}.sock"

    async def run(self) -> None:
        """Register, and register again, until the resource is gone. Raises nothing."""
        rest = self.rests[0]
        try:
            while self._offered():
                began = self.node.now()
                await self._try()
                steady = self.node.now() - began > STEADY
                something_new = await self._rest(self.rests[0] if steady else rest)
                rest = self.rests[0] if steady or something_new else min(rest * 2, self.rests[1])
        finally:
            self.node.tell(Stood(f"plugin/{self.resource}", None))

    async def _try(self) -> None:
        try:
            await self._hold()
        except (Lost, Taken) as why:
            self._stand("waiting", str(why))
        except grpc.aio.AioRpcError as error:
            self._stand("failing", f"kubelet did not accept the registration: {complaint(error)}")
        except OSError as error:
            self._stand("failing", f"{error.filename or self.path.parent}: {error.strerror or error}")
        except Exception as error:
            self._wonder(error)

    def _wonder(self, error: Exception) -> None:
        """What should not happen is logged once while it stays the same, with where it did."""
        why = f"{type(error).__name__}: {error}"
        if why != self.logged:
            log.exception("%s: the registration failed", self.resource)
        self.logged = why
        self._stand("failing", clip(why))

    async def _rest(self, seconds: float) -> bool:
        """Rest before the next try; whether it ended early because there is something new to try."""
        before, until = self._sight(), self.node.now() + seconds
        while self._offered() and (left := until - self.node.now()) > 0:
            await asyncio.sleep(min(LOOK, left))
            if self._sight() != before:
                return True
        return False

    def _sight(self) -> object:
        try:
            return identity(self.kubelet), identity(self.path)
        except (Taken, OSError) as error:
            return str(error)

    async def _hold(self) -> None:
        """One registration, from its socket to its loss. Returns where the resource has gone."""
        check_length(self.kubelet)
        there = identity(self.kubelet)
        if there is None:
            raise Lost(f"kubelet is not there: no {self.kubelet}")
        plugin = Plugin(self.node, self.resource)
        async with serving(self.path, partial(add_DevicePluginServicer_to_server, plugin)) as ours:
            accepted = asyncio.create_task(self._register(plugin))
            accepted.add_done_callback(lambda _: plugin.stir.set())
            try:
                await self._watch(plugin, accepted, there, ours)
            finally:
                accepted.cancel()
                await asyncio.gather(accepted, return_exceptions=True)

    async def _register(self, plugin: Plugin) -> float:
        """Ask kubelet to read us; when it accepted."""
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=self.path.name, resource_name=self.resource, options=plugin.options()
        )
        alone = [("grpc.use_local_subchannel_pool", 1)]  # no back-off of an earlier connection
        async with grpc.aio.insecure_channel(address(self.kubelet), alone) as channel:
            await RegistrationStub(channel).Register(request, timeout=REGISTER)
        return self.node.now()

    async def _watch(self, plugin: Plugin, accepted: asyncio.Task[float], there: Identity, ours: Identity) -> None:
        """Follow a registration. Raises Lost, and what Register raised; returns where the resource has gone."""
        began, was_read = self.node.now(), False
        while self._offered():
            found = identity(self.kubelet)
            if found != there and (found is not None or not plugin.streams):
                raise Lost("kubelet has restarted" if found else "kubelet has gone")
            if not stands(self.path, ours):
                await self._give_way(plugin)
                raise Lost(f"{self.path.name} was removed, or taken by another")
            when = accepted.result() if accepted.done() else None
            if when is None:
                if self.node.now() - began > LOOK:
                    self._stand("waiting", "kubelet was asked to register it and has not answered yet")
            elif plugin.streams:
                was_read = True
                self._stand("ok", f"registered by {self.path.name}, and kubelet reads the list")
            elif was_read:
                raise Lost("kubelet no longer reads the list")
            elif self.node.now() - when > READ:
                raise Lost(f"kubelet accepted the registration, but did not read the list within {READ:g} s")
            await _stirred(plugin, GLANCE if was_read else LOOK)
        await self._take_leave(plugin)

    async def _give_way(self, plugin: Plugin) -> None:
        """While another serves the name that it took from us, keep the streams that kubelet reads, and be silent."""
        plugin.silent = True
        while self._offered() and plugin.streams and (other := owner(self.path)):
            self._stand("waiting", f"{self.path.name} was taken by {other}: this agent takes over when that ends")
            await _stirred(plugin, PROBE)

    async def _take_leave(self, plugin: Plugin) -> None:
        """The streams end by themselves after the empty list; those that nobody reads are cut then."""
        until = self.node.now() + READ
        while plugin.streams and (left := until - self.node.now()) > 0:
            await _stirred(plugin, left)

    def _offered(self) -> bool:
        offered = offer(self.node.snapshot)
        return bool(offered.waiting) or offered.resource(self.resource) is not None

    def _stand(self, standing: Literal["ok", "waiting", "failing"], reason: str) -> None:
        self.node.tell(Stood(f"plugin/{self.resource}", Condition(standing=standing, reason=reason)))


async def _stirred(plugin: Plugin, seconds: float) -> None:
    """Until a stream opens or ends, or Register is answered, but no longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await plugin.stir.wait()
    plugin.stir.clear()
