"""Being registered with kubelet: one life for each resource that is offered.

What can be lost and how it comes back (field guide: kubelet-observed.md):
- Kubelet restarts: at its start it removes every socket of the directory, then makes its own anew. We serve anew,
  then register.
- The stream is lost while kubelet lives: its devices count as unhealthy there until we register again.
- Our socket is removed by somebody: nobody could dial it again, so it is made anew.
- Somebody else serves our name: we wait and say who.
Nothing of it ends the process, and no retry comes sooner than the back-off allows.
"""

import asyncio
from pathlib import Path

import grpc

from gpuplane.core.resources.offer import offer
from gpuplane.kubelet.plugin import Plugin
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpuplane.kubelet.sockets import Taken, identity, serving
from gpuplane.model.facts import Stood
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Condition

LOOK = 0.2  # seconds between two looks at the sockets
PATIENCE = 2.0  # seconds that kubelet may take to open a stream
BACKOFF = (0.2, 10.0)  # seconds: the first wait after a failure, and the longest
REGISTER = 15.0  # seconds; kubelet itself gives up dialling us after 10


async def plugins(node: Node, directory: Path) -> None:
    """Reconcile the plugin servers with the offer, for ever."""
    lives: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        async for snapshot in node.changes():
            for resource in offer(snapshot).resources:
                life = lives.get(resource.name)
                if life is None or life.done():
                    lives[resource.name] = group.create_task(_live(node, directory, resource.name))


async def _live(node: Node, directory: Path, name: str) -> None:
    """Serve one resource while it is offered."""
    plugin = Plugin(node, name)
    wait = BACKOFF[0]
    while plugin.devices(node.snapshot) != ():
        try:
            await _serve(node, directory, plugin)
            wait = BACKOFF[0]
        except Taken as taken:
            _stand(node, name, "waiting", str(taken))
        except grpc.aio.AioRpcError as error:
            _stand(node, name, "failing", f"kubelet refused the registration: {error.details()}")
        except OSError as error:
            _stand(node, name, "failing", f"{error.filename or directory}: {error.strerror or error}")
        await asyncio.sleep(wait)
        wait = min(wait * 2, BACKOFF[1])
    node.tell(Stood(f"plugin/{name}", None))


async def _serve(node: Node, directory: Path, plugin: Plugin) -> None:
    """One socket's life: from bind to its loss, or to the end of the resource."""
    kubelet = directory / "kubelet.sock"
    while identity(kubelet) is None:
        _stand(node, plugin.resource, "waiting", f"kubelet is not there: no {kubelet}")
        await asyncio.sleep(LOOK)
    path = directory / f"nvidia-{plugin.resource.rpartition('/')[2]}.sock"
    server = grpc.aio.server()
    add_DevicePluginServicer_to_server(plugin, server)
    async with serving(server, path) as ours:
        wait = BACKOFF[0]
        while identity(path) == ours and plugin.devices(node.snapshot) != ():
            there = identity(kubelet)
            if there is None:
                return
            await _register(node, kubelet, path, plugin)
            lost = await _until_lost(node, kubelet, there, path, ours, plugin)
            if lost:
                _stand(node, plugin.resource, "waiting", lost)
                await asyncio.sleep(wait)
                wait = min(wait * 2, BACKOFF[1])


async def _register(node: Node, kubelet: Path, path: Path, plugin: Plugin) -> None:
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=path.name, resource_name=plugin.resource, options=plugin.options()
        )
        await RegistrationStub(channel).Register(request, timeout=REGISTER)


async def _until_lost(
    node: Node,
    kubelet: Path,
    there: tuple[int, int, int],
    path: Path,
    ours: tuple[int, int, int],
    plugin: Plugin,
) -> str:
    """Watch a registration until it no longer holds; why, or "" where the resource itself has gone."""
    unread = 0.0
    while True:
        if identity(kubelet) != there:
            return "kubelet has restarted"
        if identity(path) != ours:
            return f"{path.name} was removed"
        if plugin.streams:
            unread = 0.0
            _stand(node, plugin.resource, "ok", f"{path.name}: registered, and kubelet reads the list")
        elif plugin.devices(node.snapshot) == ():
            return ""
        elif unread > PATIENCE:
            return "kubelet does not read the list"
        else:
            unread += LOOK
        await asyncio.sleep(LOOK)


def _stand(node: Node, name: str, standing: str, reason: str) -> None:
    node.tell(Stood(f"plugin/{name}", Condition(standing=standing, reason=reason)))  # type: ignore[arg-type]
