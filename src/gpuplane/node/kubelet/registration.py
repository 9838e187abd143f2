"""Registration with kubelet: one for each resource that is offered.

A registration is one socket, one server, one Register and the stream that follows. If any of them is lost all are made
anew, after a pause. So an open stream always belongs to the current registration: never to a kubelet that half died,
and never to an earlier Register. (Kubelet takes the end of *any* stream of a resource for the end of the
plugin that registered last: pkg/kubelet/cm/devicemanager/manager.go, PluginDisconnected. So an old stream must have
ended before we register again.)

What can be lost, and how it comes back (observed on kubelet 1.36.2):
- Kubelet restarts: it removes every socket of the directory, then makes its own anew. We see that another socket is
  there, however fast it was.
- The stream is lost while kubelet lives: its devices count as unhealthy there until we register again.
- Our socket is removed: kubelet could not dial it again.
- NVIDIA's plugin serves this resource, as its socket's name shows: we wait, and report its process. If it started after
  us our streams stay open, but send nothing until it has gone: to close them would make kubelet drop *its* devices.

`core.serving` and the lock on kubelet's directory (`lock`) decide who may register. An agent that was told to end keeps
its registrations, and makes no new one; when it stops serving its streams end, without an empty list.

No failure here ends the process or another resource's registration. After each failure the pauses grow. A pause ends
early only if there is another socket at kubelet's path or at NVIDIA's, or the lock was taken: then a new try may work.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path

import grpc

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.pauses import Backoff, seconds_until_next
from gpuplane.base.text import clip
from gpuplane.kubernetes.resourcenames import RESOURCE_PREFIX
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.serving import may_register, may_serve
from gpuplane.node.kubelet.plugin import Plugin
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpuplane.node.kubelet.sockets import (
    LONGEST_PATH,
    SocketIdentity,
    SocketUnavailable,
    check_length,
    describe_server,
    error_details,
    grpc_target,
    is_same_socket,
    serve_at_new_socket,
    socket_identity,
)
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import PartState, Status, plugin_part

SOCKET_INTERVAL = 0.2  # seconds between two checks of the sockets
STREAM_INTERVAL = 1.0  # seconds between two checks while kubelet reads the list: the end of its stream is an event
RIVAL_INTERVAL = 1.0  # seconds between two checks that NVIDIA's plugin still serves the resource
READ_TIMEOUT = 2.0  # seconds that kubelet may take to open a stream, and to read the last list of a resource that goes
REGISTER_TIMEOUT = 15.0  # seconds that kubelet may take to accept; it gives up dialling us after 10 itself
BACKOFF = (0.2, 10.0)  # seconds: the first pause after a failure, and the longest
STEADY_AFTER = 10.0  # seconds after which a registration counts as stable

log = logging.getLogger(__name__)


def always_may_serve() -> bool:
    """True: the caller knows that no other agent serves this kubelet."""
    return True


async def register_plugins(
    node: Node,
    directory: Path,
    backoff: tuple[float, float] = BACKOFF,
    may_serve: Callable[[], bool] = always_may_serve,
) -> None:
    """Reconcile the plugin servers with what is offered, for ever. `may_serve`: whether we hold the lock."""
    registrations: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        async for snapshot in node.changes(offer, attrgetter("statuses")):  # a registration that ends has no status
            for resource in offer(snapshot).resources:
                if resource.name not in registrations or registrations[resource.name].done():
                    registrations[resource.name] = group.create_task(
                        Registration(node, directory, resource.name, backoff, may_serve).run()
                    )


async def report_unregistered(node: Node) -> None:
    """Report that no resource is registered, for ever. That is configured, so the agent is ready all the same."""
    told = set[str]()
    ok = Status("ok", "the agent does not register with kubelet, because --kubelet-socket is empty")
    async for snapshot in node.changes(offer):
        offered = {resource.name for resource in offer(snapshot).resources}
        for name in sorted(offered ^ told):
            node.apply(StatusChanged(plugin_part(name), ok if name in offered else None))
        told = offered


class RegistrationLost(Exception):
    """The registration was lost. The message says why."""


class Registration:
    """The registration of one resource, for as long as that is offered. It reports the status of its plugin."""

    def __init__(
        self, node: Node, directory: Path, resource: str, backoff: tuple[float, float], may_serve: Callable[[], bool]
    ) -> None:
        self.node, self.directory, self.resource = node, directory, resource
        self.backoff, self.may_serve = backoff, may_serve
        self.part = plugin_part(resource)
        self.last_logged = ""  # the last unexpected error
        self.kubelet_socket = directory / "kubelet.sock"
        self.nvidia_socket = directory / f"nvidia-{resource.rpartition('/')[2]}.sock"  # the socket of NVIDIA's plugin

    async def run(self) -> None:
        """Register, and register again, until the resource is gone or we stop serving. Raises nothing."""
        pauses = Backoff(*self.backoff)
        try:
            while self._is_offered():
                began = self.node.now()
                await self._try_once()
                steady = self.node.now() - began > STEADY_AFTER
                something_new = await self._pause(self.backoff[0] if steady else pauses.seconds)
                pauses.after(well=steady or something_new)
        finally:
            self.node.apply(StatusChanged(self.part, None))

    async def _try_once(self) -> None:
        try:
            await self._hold_registration()
        except (RegistrationLost, SocketUnavailable) as why:
            self._report_status("waiting", str(why))
        except grpc.aio.AioRpcError as error:
            self._report_status("failing", f"kubelet did not accept the registration: {error_details(error)}")
        except OSError as error:
            self._report_status("failing", f"{error.filename or self.directory}: {error.strerror or error}")
        except Exception as error:
            self._report_unexpected(error)

    def _report_unexpected(self, error: Exception) -> None:
        """Log an unexpected error with its traceback, once while it stays the same."""
        why = f"{type(error).__name__}: {error}"
        if why != self.last_logged:
            about = LogSubject(part=self.part.name, resources=(self.resource,))
            log.exception("%s: the registration failed", self.resource, extra=about.extra)
        self.last_logged = why
        self._report_status("failing", clip(why))

    async def _pause(self, seconds: float) -> bool:
        """Pause before the next try. True if the pause ended early because a new try may work."""
        before, until = self._observe_sockets(), self.node.now() + seconds
        while self._is_offered() and (left := until - self.node.now()) > 0:
            await asyncio.sleep(min(SOCKET_INTERVAL, left))
            if self._observe_sockets() != before:
                return True
        return False

    def _observe_sockets(self) -> object:
        return _identity_or_error(self.kubelet_socket), _identity_or_error(self.nvidia_socket), self.may_serve()

    async def _hold_registration(self) -> None:
        """One registration, from its socket to its loss. Returns when the resource is gone or we stop serving."""
        check_length(self.kubelet_socket)
        there = socket_identity(self.kubelet_socket)
        if there is None:
            raise RegistrationLost(f"kubelet is not running: {self.kubelet_socket} does not exist")
        if other := self._nvidia_server():
            raise SocketUnavailable(
                f"{other} serves {self.nvidia_socket.name}: this agent takes over when that process ends"
            )
        if not self.may_serve():
            raise RegistrationLost(f"another agent holds the lock on {self.directory}")
        if not may_register(self.node.snapshot):
            raise RegistrationLost("this agent is stopping: it no longer registers with kubelet")
        plugin = Plugin(self.node, self.resource)
        add = partial(add_DevicePluginServicer_to_server, plugin)
        async with serve_at_new_socket(self.directory, add) as (path, ours):
            accepted = asyncio.create_task(self._register(plugin, path))
            accepted.add_done_callback(lambda _: plugin.changed.set())
            try:
                await self._watch(plugin, accepted, there, path, ours)
            finally:
                accepted.cancel()
                await asyncio.gather(accepted, return_exceptions=True)

    async def _register(self, plugin: Plugin, path: Path) -> float:
        """Send Register; returns the time at which kubelet accepted it."""
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=path.name, resource_name=self.resource, options=plugin.options()
        )
        options = [("grpc.use_local_subchannel_pool", 1)]  # no back-off of an earlier connection
        async with grpc.aio.insecure_channel(grpc_target(self.kubelet_socket), options) as channel:
            await RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT)
        return self.node.now()

    async def _watch(
        self,
        plugin: Plugin,
        registering: asyncio.Task[float],
        kubelet_identity: SocketIdentity,
        path: Path,
        our_identity: SocketIdentity,
    ) -> None:
        """Watch a registration. Raises RegistrationLost, and what Register raised; returns as `_hold_registration`."""
        began, was_read = self.node.now(), False
        while self._is_offered():
            found = socket_identity(self.kubelet_socket)
            if found != kubelet_identity and (found is not None or not plugin.open_streams):
                raise RegistrationLost("kubelet has restarted" if found else "kubelet's socket was removed")
            if not is_same_socket(path, our_identity):
                raise RegistrationLost(f"{path.name} was removed")
            if self._nvidia_server():
                await self._yield_to_nvidia(plugin)
                raise RegistrationLost(f"another process served {self.nvidia_socket.name}")
            when = registering.result() if registering.done() else None
            if when is None:
                if self.node.now() - began > SOCKET_INTERVAL:
                    self._report_status("waiting", "kubelet has not answered the registration request yet")
            elif plugin.open_streams:
                was_read = True
                self._report_status("ok", f"registered as {path.name}; kubelet reads the device list")
            elif was_read:
                raise RegistrationLost("kubelet no longer reads the device list")
            elif self.node.now() - when > READ_TIMEOUT:
                raise RegistrationLost(
                    f"kubelet accepted the registration, but did not read the device list within {READ_TIMEOUT:g} s"
                )
            await _wait_for_change(plugin, seconds_until_next(STREAM_INTERVAL if was_read else SOCKET_INTERVAL))
        await self._wait_for_stream_ends(plugin)

    async def _yield_to_nvidia(self, plugin: Plugin) -> None:
        """While NVIDIA's plugin serves the resource, keep the streams that kubelet reads, and send nothing."""
        plugin.is_paused = True
        while self._is_offered() and plugin.open_streams and (other := self._nvidia_server()):
            taken = f"{other} took over {self.resource} with {self.nvidia_socket.name}"
            self._report_status("waiting", f"{taken}: this agent takes over when that process ends")
            await _wait_for_change(plugin, RIVAL_INTERVAL)

    async def _wait_for_stream_ends(self, plugin: Plugin) -> None:
        """Wait for streams to end by themselves after the empty list; those that nobody reads are closed then."""
        until = self.node.now() + READ_TIMEOUT
        while plugin.open_streams and (left := until - self.node.now()) > 0:
            await _wait_for_change(plugin, left)

    def _nvidia_server(self) -> str | None:
        """The process that serves NVIDIA's socket of this resource; None if there is none, or the path is too long."""
        if not self.resource.startswith(RESOURCE_PREFIX) or len(os.fsencode(self.nvidia_socket)) > LONGEST_PATH:
            return None
        return describe_server(self.nvidia_socket)

    def _is_offered(self) -> bool:
        if not may_serve(self.node.snapshot):
            return False
        offered = offer(self.node.snapshot)
        return bool(offered.waiting_reason) or offered.resource(self.resource) is not None

    def _report_status(self, state: PartState, reason: str) -> None:
        self.node.apply(StatusChanged(self.part, Status(state, reason)))


def _identity_or_error(path: Path) -> object:
    try:
        return socket_identity(path)
    except (SocketUnavailable, OSError) as error:
        return str(error)


async def _wait_for_change(plugin: Plugin, seconds: float) -> None:
    """Wait until a stream opens or ends, or Register is answered, but no longer than `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await plugin.changed.wait()
    plugin.changed.clear()
