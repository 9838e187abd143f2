"""A toy DRA plugin on real sockets. The name of a claim says what it does with it, as of the plugin that was recorded:

err3: three errors; skip2: twice no answer for the claim; grpc2: two failed calls; extra1: once an answer for a claim
that nobody asked for; slow1: once no answer for a long time; unerr3: three errors of Unprepare; nocdi: no CDI device;
badcdi: one that no file defines; wrong: another request's name. Every other claim is prepared.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import grpc

from gpuplane.node.kubelet.protocols import dra_v1_pb2 as v1
from gpuplane.node.kubelet.protocols import dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from gpuplane.node.kubelet.protocols import drahealth_pb2 as health
from gpuplane.node.kubelet.protocols import pluginregistration_pb2 as registration
from gpuplane.node.kubelet.protocols.drahealth_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from gpuplane.node.kubelet.protocols.pluginregistration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpuplane.sandbox.changes import Changes

DRIVER, POOL = "gpu.lab.io", "pool"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
NOBODY = "00000000-dead-beef-0000-000000000000"
DEVICES = ("g0", "g1", "g2", "g3", "g4", "g5")


class ToyPlugin(RegistrationServicer, DRAResourceHealthServicer):
    """`calls`: what kubelet asked, in order, as "prepare NAME,NAME"; `claims` the claims of each call; `deadlines` the
    seconds that were left. It allocates what `allocated` says of a claim's UID: (device, share ID)."""

    def __init__(
        self,
        root: Path,
        *,
        driver: str = DRIVER,
        instance: str = "",
        versions: Sequence[str] = VERSIONS,
        type: str = "DRAPlugin",
    ) -> None:
        self.driver = driver
        self.registration_socket = root / "plugins_registry" / f"{driver}{instance}-reg.sock"
        self.service_socket = root / "plugins" / driver / f"dra{instance}.sock"
        self.info = registration.PluginInfo(
            type=type, name=driver, endpoint=str(self.service_socket), supported_versions=versions
        )
        self.cdi = root / "cdi"
        self.calls, self.claims, self.deadlines = list[str](), list[Any](), list[tuple[str, float]]()
        self.statuses: list[registration.RegistrationStatus] = []
        self.allocated: dict[str, list[tuple[str, str | None]]] = {}
        self.health: dict[str, health.DeviceHealth] = {}
        self.changes, self._streams = Changes(), list[asyncio.Queue[health.NodeWatchResourcesResponse | None]]()
        self._times: dict[tuple[str, str], int] = {}
        self.refuses_statuses = 0  # so often it fails when it is told that it is registered
        self.slow = asyncio.Event()  # set to let the slow claim go on
        for each in DEVICES:
            self.set_health(each, health.HEALTHY, send=False)

    # its life

    async def start(self) -> None:
        """Serve: the service socket first, then the one by which kubelet finds it."""
        for path in (self.service_socket, self.registration_socket):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        self._servers = [grpc.aio.server(), grpc.aio.server()]
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(cast(Any, _Service(self, v1)), self._servers[0])
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(
            cast(Any, _Service(self, dra_v1beta1_pb2)), self._servers[0]
        )
        add_DRAResourceHealthServicer_to_server(self, self._servers[0])
        add_RegistrationServicer_to_server(self, self._servers[1])
        for server, path in zip(self._servers, (self.service_socket, self.registration_socket), strict=True):
            hidden = path.with_name(f".{path.name}")  # gRPC removes at its end what it knows
            server.add_insecure_port(f"unix:{hidden}")
            await server.start()
            hidden.rename(path)

    async def stop(self) -> None:
        """Go, and take the sockets along."""
        self.registration_socket.unlink(missing_ok=True)
        for server in self._servers:
            await server.stop(None)
        self.service_socket.unlink(missing_ok=True)
        self._streams.clear()

    async def kill(self) -> None:
        """Die: the sockets stay behind, and nobody answers there."""
        for server in self._servers:
            await server.stop(None)
        self._streams.clear()

    async def until(self, *calls: str, deadline: float = 60.0) -> None:
        """Until kubelet has called this, and nothing else."""
        try:
            await self.changes.until(lambda: len(self.calls) >= len(calls), deadline)
        except TimeoutError:
            raise TimeoutError(f"{self.calls}, not {list(calls)}") from None
        assert self.calls == list(calls)

    async def until_registered(self, times: int = 1) -> None:
        """Until kubelet has said so often that the plugin is registered."""
        await self.changes.until(lambda: sum(each.plugin_registered for each in self.statuses) >= times)

    # registration and health

    async def GetInfo(self, request: registration.InfoRequest, context: Any) -> registration.PluginInfo:
        self.deadlines.append(("GetInfo", context.time_remaining()))
        return self.info

    async def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        self.deadlines.append(("NotifyRegistrationStatus", context.time_remaining()))
        self.statuses.append(request)
        self.changes.notify()
        if request.plugin_registered and self.refuses_statuses:
            self.refuses_statuses -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        return registration.RegistrationStatusResponse()

    async def NodeWatchResources(
        self, request: health.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        stream: asyncio.Queue[health.NodeWatchResourcesResponse | None] = asyncio.Queue()
        self._streams.append(stream)
        self.changes.notify()
        yield self._health_list()
        while (answer := await stream.get()) is not None:
            yield answer

    def set_health(
        self, device: str, state: health.HealthStatus.ValueType, message: str = "", send: bool = True, timeout: int = 0
    ) -> None:
        """Another health of a device, sent at once."""
        self.health[device] = health.DeviceHealth(
            device=health.DeviceIdentifier(pool_name=POOL, device_name=device),
            health=state,
            last_updated_time=int(time.time()),
            message=message,
            health_check_timeout_seconds=timeout,
        )
        if send:
            self.send_health()

    def send_health(self) -> None:
        """The list as it is now."""
        for stream in self._streams:
            stream.put_nowait(self._health_list())

    async def end_streams(self) -> None:
        """End every stream in good order; the connection stays."""
        for stream in self._streams:
            stream.put_nowait(None)
        self._streams.clear()

    def _health_list(self) -> health.NodeWatchResourcesResponse:
        return health.NodeWatchResourcesResponse(devices=self.health.values())

    # what it makes of a claim

    def called(self, method: str, request: Any, context: Any) -> None:
        self.calls.append(f"{method} {','.join(claim.name for claim in request.claims)}")
        self.claims.append(list(request.claims))
        self.deadlines.append((method, context.time_remaining()))
        self.changes.notify()

    def again(self, method: str, claim: Any) -> int:
        """How often a method was called for a claim, this call included."""
        self._times[method, claim.uid] = times = self._times.get((method, claim.uid), 0) + 1
        return times

    def devices(self, claim: Any) -> list[dict[str, Any]]:
        """The claim's devices, and its CDI file."""
        found, defined = list[dict[str, Any]](), list[dict[str, Any]]()
        for device, share in self.allocated.get(claim.uid, [("g4", None)]):
            name = f"c{claim.uid}-{device}"
            ids = {"nocdi": [], "badcdi": ["gpu.lab.io/claim=does-not-exist"]}.get(
                claim.name, [f"{self.driver}/claim={name}"]
            )
            request = "wrong" if claim.name == "wrong" else "gpu"
            found.append(
                {
                    "request_names": [request],
                    "pool_name": POOL,
                    "device_name": device,
                    "cdi_device_ids": ids,
                    "share_id": share,
                }
            )
            defined.append({"name": name, "containerEdits": {"env": [f"GOT_{device}={claim.name}"]}})
        self.cdi.mkdir(exist_ok=True)
        spec = {"cdiVersion": "0.5.0", "kind": f"{self.driver}/claim", "devices": defined}
        self.file(claim).write_text(json.dumps(spec))
        return found

    def file(self, claim: Any) -> Path:
        return self.cdi / f"{self.driver}-{claim.uid}.json"


class _Service:
    """DRAPlugin in one of its versions, whose messages `pb` has."""

    def __init__(self, plugin: ToyPlugin, pb: Any) -> None:
        self.plugin, self.pb = plugin, pb

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        self.plugin.called("prepare", request, context)
        answer = self.pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            times = self.plugin.again("prepare", claim)
            if claim.name == "grpc2" and times <= 2:
                await context.abort(grpc.StatusCode.INTERNAL, "prepare grpc error on purpose")
            if claim.name == "slow1" and times == 1:
                await self.plugin.slow.wait()
            if claim.name == "skip2" and times <= 2:
                continue
            if claim.name == "err3" and times <= 3:
                answer.claims[claim.uid].error = f"prepare failed on purpose, attempt {times}"
                continue
            if claim.name == "extra1" and times == 1:
                answer.claims[NOBODY].devices.add(request_names=["x"], pool_name="p", device_name="d")
            for device in self.plugin.devices(claim):
                if self.pb is not v1:
                    del device["share_id"]
                answer.claims[claim.uid].devices.add(**device)
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        self.plugin.called("unprepare", request, context)
        answer = self.pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            times = self.plugin.again("unprepare", claim)
            failed = claim.name == "unerr3" and times <= 3
            answer.claims[claim.uid].error = f"unprepare failed on purpose, attempt {times}" if failed else ""
            if not failed:
                self.plugin.file(claim).unlink(missing_ok=True)
        return answer
