"""The registration server and the streams that follow (pkg/kubelet/cm/devicemanager/plugin/v1beta1).

Kubelet keeps one client for each resource, the newest. When *any* stream of the resource ends, whichever Register it
belongs to, that client counts as gone: its connection is closed and its devices are unhealthy. A registration that
fails leaves no client at all, so the end of an older stream goes unnoticed then. Kubelet carries a registration out
whether or not the plugin still waits for the answer.
"""

import asyncio
import os
import re
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import msgspec

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import RegistrationServicer
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.endpoint import Call, Endpoint
from gpuplane.sandbox.kubelet.manager import DeviceManager

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

DEVICE_PLUGIN_VERSION = "v1beta1"
DIAL_TIMEOUT = 10.0
"""Seconds that kubelet tries to reach a plugin that registers."""


class Failures(msgspec.Struct):
    """How this kubelet misbehaves: all that can be injected."""

    register_error: str = ""  # the error that Register is answered with; "" for none
    response_delay: float = 0.0  # seconds before Register and pod-resources are answered
    opens_streams: bool = True  # opens ListAndWatch after Register
    reads_lists: bool = True  # reads the lists that are sent
    serves_pod_resources: bool = True  # answers pod-resources
    knows_pods: bool = True  # knows its pods from the API server; not so right after its start


class Registration(RegistrationServicer):
    """Registers plugins with a device manager, and follows their lists."""

    def __init__(self, manager: DeviceManager, dial_timeout: float) -> None:
        self.manager, self.dial_timeout, self.failures = manager, dial_timeout, Failures()
        self._clients: dict[str, Endpoint] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.Empty:
        registering = self._spawn(self._register(request))
        registering.add_done_callback(_retrieve_exception)
        try:
            await asyncio.shield(registering)
        except KubeletError as refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        return pb.Empty()

    async def _register(self, request: pb.RegisterRequest) -> None:
        self.manager.record_call(Call("Register", request.resource_name))
        await asyncio.sleep(self.failures.response_delay)
        try:
            if problem := self.failures.register_error or registration_problem(request):
                raise KubeletError(problem)
            endpoint = await self._connect(request)
        except KubeletError as refusal:
            self.manager.record_call(Call("Register failed", request.resource_name, error=str(refusal)))
            raise
        if self.failures.opens_streams:
            self._spawn(self._follow_stream(endpoint))

    async def _connect(self, request: pb.RegisterRequest) -> Endpoint:
        socket = Path(os.path.normpath(f"{self.manager.directory}/{request.endpoint}"))
        endpoint = Endpoint(
            request.resource_name, socket, self.manager.record_call, self.manager.options.pre_start_timeout
        )
        self._clients[endpoint.resource] = endpoint
        try:
            await endpoint.connect(self.dial_timeout)
        except BaseException:
            self._clients.pop(endpoint.resource, None)
            await endpoint.close()
            raise
        self.manager.plugin_connected(endpoint)
        return endpoint

    async def _follow_stream(self, endpoint: Endpoint) -> None:
        try:
            async with aclosing(endpoint.list_and_watch()) as lists:
                async for response in lists:
                    while not self.failures.reads_lists:
                        await self.manager.changes.next_change()
                    self.manager.list_received(endpoint.resource, response)
        finally:
            await endpoint.close()
            await self._disconnect(endpoint.resource)

    async def _disconnect(self, resource: str) -> None:
        if client := self._clients.pop(resource, None):
            self.manager.plugin_disconnected(resource)
            await client.close()

    async def drop_streams(self) -> None:
        """Lose every stream, as by a fault of kubelet's."""
        for client in list(self._clients.values()):
            await client.close()

    async def close(self) -> None:
        """Kubelet ends: every stream and connection does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for resource in list(self._clients):
            await self._disconnect(resource)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def registration_problem(request: pb.RegisterRequest) -> str:
    """Why kubelet refuses a registration at once; "" where it does not (plugin/v1beta1/server.go)."""
    if request.version != DEVICE_PLUGIN_VERSION:
        supported = f'Supported version is ["{DEVICE_PLUGIN_VERSION}"]'
        return f'requested API version "{request.version}" is not supported by kubelet. {supported}'
    if not _is_extended_resource(request.resource_name):
        return f'the ResourceName "{request.resource_name}" is invalid'
    return ""


def _is_extended_resource(resource: str) -> bool:
    """Whether a name is an extended resource's (apis/core/v1/helper, IsExtendedResourceName): a qualified name even
    with the quota's prefix "requests." before it, and not Kubernetes' own."""
    domain, slash, name = resource.partition("/")
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    qualified = re.fullmatch(rf"{label}(\.{label})*", domain) and len(f"requests.{domain}") <= 253
    named = re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) and len(name) <= 63
    own = "kubernetes.io/" in resource or resource.startswith("requests.")
    return bool(slash and qualified and named and not own)


def _retrieve_exception(registering: asyncio.Task[None]) -> None:
    """A plugin that has hung up is told of no refusal; the trace has it."""
    if not registering.cancelled():
        registering.exception()
