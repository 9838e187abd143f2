"""The control socket: how the command line reaches a running agent.

It lies in the state directory with mode 0600. One JSON document a line each way. A request shows the picture or adds
a wish to the ledger; nothing is done by the request itself, and a wish is on disk before its answer leaves.
"""

import asyncio
import errno
import logging
import os
import socket
import time
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.base.pauses import sleep_until_next
from gpuplane.base.text import Text, clip, join, join_first_names
from gpuplane.node.core import lookup
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.health import devicehealth
from gpuplane.node.core.kinds.table import is_record_key_of_kind
from gpuplane.node.core.ledger import is_ledger_stored
from gpuplane.node.core.partitions.desired import MIG_MANAGER_TEXT, requested_name
from gpuplane.node.core.partitions.gpuplan import impossible_layout_reason
from gpuplane.node.core.requests import driver_release_reason, node_requests
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model import encoding
from gpuplane.node.model.control import (
    MAX_DRAIN_SECONDS,
    MAX_DRIVER_RELEASE_SECONDS,
    AgentInfo,
    ControlRequest,
    ControlResponse,
    DrainDevice,
    GetNodeState,
    NodeState,
    ReleaseDriver,
    RequestLayouts,
    RestoreDevice,
    ResumeDriver,
    WithdrawLayouts,
)
from gpuplane.node.model.facts import DrainRequested, DriverReleaseRequested, Fact, LayoutRequested
from gpuplane.node.model.health import Drain
from gpuplane.node.model.node import Node
from gpuplane.node.model.partitions import LayoutRequest
from gpuplane.node.model.snapshot import DriverRelease

MOST = 32
"""Connections at a time; where there are more the oldest gives way: a request is over at once."""
LOOK = 2.0  # seconds between two looks whether the socket is still there
DEADLINE = 10.0  # seconds for one request; after that its sender no longer waits
NOBODY = AgentInfo()
log = logging.getLogger(__name__)


async def control(node: Node, path: Path, about: AgentInfo = NOBODY) -> None:
    """Answer on the socket for ever. The state directory is locked, so a socket that stands there is a dead agent's.

    Raises OSError where there can be none.
    """
    _check(path.parent)
    path.unlink(missing_ok=True)
    bound = _bound(path)
    async with asyncio.TaskGroup() as group:
        group.create_task(_lost(path))
        group.create_task(_serve(node, bound, about))


async def _lost(path: Path) -> None:
    """Raises OSError once another socket, or none, is at the path: no command could reach ours."""
    ours = path.lstat()
    while True:
        await sleep_until_next(LOOK)
        if not os.path.samestat(path.lstat(), ours):
            raise OSError(
                errno.ESTALE, "another file replaced the socket; the agent creates the socket again", str(path)
            )


async def control_standby(node: Node, directory: Path, about: AgentInfo) -> None:
    """Serve the state of an agent in standby, for ever, if no other agent answers in its state directory."""
    path = directory / "control.sock"
    try:
        _check(directory)
        server = _bound(path)
    except OSError:  # somebody else's socket is there, or there is no directory yet
        server = None
    if server is None:
        await asyncio.Event().wait()
    else:
        try:
            await _serve(node, server, about)
        finally:
            path.unlink(missing_ok=True)


def _check(directory: Path) -> None:
    """Raises OSError where somebody else could put another thing in the place of a socket, or there is no directory."""
    if reason := files.untrusted_reason(directory, follow=True):
        raise PermissionError(errno.EPERM, f"{reason}, so the agent creates no control socket in {directory}")


def _bound(path: Path) -> socket.socket:
    """A socket at a path where nothing is. Raises OSError with the path."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        path.chmod(0o600)
    except OSError as error:  # of a path too long it does not say which
        bound.close()
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    return bound


async def _serve(node: Node, bound: socket.socket, about: AgentInfo) -> None:
    connected: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(connected) >= MOST:
            oldest = next(iter(connected))
            del connected[oldest]
            oldest.transport.abort()
        connected[writer] = None
        try:
            async with asyncio.timeout(DEADLINE):
                line = await reader.readline()
                writer.write(encode((await answer(node, line, about)).but(agent=about)) + b"\n")
                writer.close()
                await writer.wait_closed()  # once all of it is sent
        except (OSError, TimeoutError, ValueError) as error:
            log.debug("control socket: %s", error)
            writer.transport.abort()  # else one that never reads is kept, with what it has not read
        finally:
            connected.pop(writer, None)

    async with await asyncio.start_unix_server(serve, sock=bound) as server:
        await server.serve_forever()


def encode(answer: ControlResponse) -> bytes:
    """An answer as it is sent."""
    return encoding.encode(answer)


async def answer(node: Node, line: bytes, about: AgentInfo = NOBODY) -> ControlResponse:
    """The answer to one request line. A request with an unknown field is refused: it may mean something else."""
    try:
        ask: ControlRequest = msgspec.json.decode(line, type=ControlRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        ours = f"this agent, gpuplane {about.version}," if about.version else "this agent"
        return ControlResponse(
            error=f"{ours} does not understand the request: {error}: use a command of the same version"
        )
    match ask:
        case GetNodeState():
            return ControlResponse(state=NodeState(snapshot=node.snapshot, offer=offer(node.snapshot), now=node.now()))
        case _ if why := standby_reason(node.snapshot):
            return ControlResponse(error=f"this agent is in standby and changes nothing: {why}")
        case (
            ReleaseDriver(at)
            | ResumeDriver(at)
            | DrainDevice(at)
            | RestoreDevice(at)
            | RequestLayouts(at)
            | WithdrawLayouts(at)
        ) if node.now() - at > DEADLINE:
            return ControlResponse(error="the request is too old and was not applied: run the command again")
        case ReleaseDriver(_, seconds, why):
            reason = clip(why)
            if problem := _unfit("a release", reason, seconds, MAX_DRIVER_RELEASE_SECONDS, "seven days"):
                return ControlResponse(error=problem)
            return await _wish(node, DriverReleaseRequested(DriverRelease(until=node.now() + seconds, reason=reason)))
        case ResumeDriver():
            answer = await _wish(node, DriverReleaseRequested(None))
            still = driver_release_reason(node.snapshot)
            return (
                ControlResponse(error=(f"the driver stays released, because the Node object requests this: {still}"))
                if still and not answer.error
                else answer
            )
        case DrainDevice(_, name, seconds, why):
            reason = clip(why)
            if problem := _unfit("a drain", reason, seconds, MAX_DRAIN_SECONDS, "ten years"):
                return ControlResponse(error=problem)
            now = node.now()
            until, wall = (None, None) if seconds is None else (now + seconds, time.time() + seconds)
            return await _about(node, name, Drain(reason=reason, until=until, until_wall_clock=wall, since=now))
        case RestoreDevice(_, name):
            return await _about(node, name, None)
        case RequestLayouts(_, request):
            if problem := _unfit_layouts(node, request):
                return ControlResponse(error=problem)
            return await _wish(node, LayoutRequested(request))
        case WithdrawLayouts():
            return await _wish(node, LayoutRequested(None))


def _unfit(wish: str, reason: Text, seconds: float | None, longest: float, called: str) -> Text:
    """What is wrong with a request; "" for nothing. `seconds` None: until it is ended."""
    if not reason:
        return f"{wish} needs a reason: --why"
    if seconds is not None and not 0 < seconds <= longest:
        return f"{wish} must last more than 0 s and at most {called}: change --for"
    return ""


def _unfit_layouts(node: Node, request: LayoutRequest) -> Text:
    """Why layouts cannot be requested; "" for nothing."""
    if label := requested_name(node.snapshot):
        return (
            f"the Node's label nvidia.com/mig.config requests the MIG configuration {label!r}: change the label, or "
            "remove it"
        )
    if node_requests(node.snapshot).has_mig_manager:
        return MIG_MANAGER_TEXT
    if unknown := [uuid for uuid in request.layouts if node.snapshot.gpu(uuid) is None]:
        return f"the agent knows no GPU {join_first_names(unknown, 3)}"
    asked = [(gpu, request.layouts[gpu.uuid]) for gpu in node.snapshot.gpus if gpu.uuid in request.layouts]
    found = ((gpu, impossible_layout_reason(gpu, layout, mode_only=request.mode_only)) for gpu, layout in asked)
    return join("; ", [f"GPU {gpu.index}: {why}" for gpu, why in found if why])


async def _about(node: Node, name: str, drain: Drain | None) -> ControlResponse:
    """Drain or restore the device that a person names."""
    device = lookup.find_device(node.snapshot, name)
    if device is None:
        known = ", ".join(
            each.index or each.device
            for each in devicehealth.health_without_parents(node.snapshot)
            if each.device and not is_record_key_of_kind(each.device)
        )
        return ControlResponse(
            error=(f"there is no device {name!r}; known devices: {known or 'none yet'}; you can also use a UUID")
        )
    return await _wish(node, DrainRequested(device, drain))


async def _wish(node: Node, wish: Fact) -> ControlResponse:
    node.apply(wish)
    if await node.wait_until(is_ledger_stored, deadline=5.0):
        return ControlResponse()
    return ControlResponse(
        error=(
            "the change is active, but the agent could not store the change and will lose it when the agent "
            "restarts: see the agent's log"
        )
    )
