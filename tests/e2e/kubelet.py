"""A small kubelet of the judge's own: it registers plugins, follows their lists, and asks them as kubelet does.

The embedded one of `gpuplane sandbox kubelet` is part of what is judged; this one is not.
"""

import threading
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols import podresources_pb2 as pods_pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from tests.e2e.waiting import PATIENCE, until

Fields = dict[str, Any]


class Plugin:
    """A registered plugin: its options, the newest list of its devices, and how many lists it has sent."""

    def __init__(self, folder: Path, request: pb.RegisterRequest) -> None:
        self.version, self.resource = request.version, request.resource_name
        self.channel = grpc.insecure_channel(f"unix:{folder / request.endpoint}")
        self.stub = DevicePluginStub(self.channel)
        self.options = self.stub.GetDevicePluginOptions(pb.Empty(), timeout=PATIENCE)
        self.registered = request.options
        self.devices: dict[str, pb.Device] = {}
        self.lists = 0
        self._following = threading.Thread(target=self._follow, daemon=True)
        self._following.start()

    def _follow(self) -> None:
        try:
            for said in self.stub.ListAndWatch(pb.Empty()):
                self.devices = {each.ID: each for each in said.devices}
                self.lists += 1
        except grpc.RpcError:
            self.devices = {}

    def close(self) -> None:
        """Leave it."""
        self.channel.close()
        self._following.join(PATIENCE)


class Kubelet(RegistrationServicer, PodResourcesListerServicer):
    """`with Kubelet(root) as kubelet:`. `pods` is what it says that containers hold: (namespace, pod) → resource → ids.

    Registration and pod-resources in one object, since tests look at both.
    """

    def __init__(self, root: Path) -> None:
        self.plugins_dir, self.resources_dir = root / "device-plugins", root / "pod-resources"
        self.plugins: dict[str, Plugin] = {}
        self.pods: dict[tuple[str, str], dict[str, list[str]]] = {}
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Self:
        for folder in (self.plugins_dir, self.resources_dir):
            folder.mkdir(parents=True, exist_ok=True)
            folder.joinpath("kubelet.sock").unlink(missing_ok=True)
            server = grpc.server(futures.ThreadPoolExecutor(4))
            if folder == self.plugins_dir:
                add_RegistrationServicer_to_server(self, server)
            else:
                add_PodResourcesListerServicer_to_server(self, server)
            server.add_insecure_port(f"unix:{folder}/kubelet.sock")
            server.start()
            self._servers.append(server)
        return self

    def __exit__(self, *_: object) -> None:
        for plugin in list(self.plugins.values()):
            plugin.close()
        self.plugins.clear()
        for server in self._servers:
            server.stop(None).wait()
        self._servers.clear()

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        plugin = Plugin(self.plugins_dir, request)
        before = self.plugins.get(request.resource_name)
        self.plugins[request.resource_name] = plugin
        if before:
            before.close()
        return pb.Empty()

    def List(
        self, request: pods_pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_pb.ListPodResourcesResponse:
        return pods_pb.ListPodResourcesResponse(
            pod_resources=[
                pods_pb.PodResources(
                    name=name,
                    namespace=namespace,
                    containers=[
                        pods_pb.ContainerResources(
                            name="main",
                            devices=[
                                pods_pb.ContainerDevices(resource_name=resource, device_ids=ids)
                                for resource, ids in held.items()
                            ],
                        )
                    ],
                )
                for (namespace, name), held in self.pods.items()
            ]
        )

    def Get(
        self, request: pods_pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_pb.GetPodResourcesResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    def GetAllocatableResources(
        self, request: pods_pb.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pods_pb.AllocatableResourcesResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    def plugin(self, resource: str) -> Plugin:
        """The plugin of a resource, once it has registered and sent a list."""
        return until(
            lambda: found if (found := self.plugins.get(resource)) and found.lists else None, f"{resource} registers"
        )

    def health(self, resource: str = "nvidia.com/gpu") -> dict[str, str]:
        """id → health, by the newest list; empty while there is none."""
        plugin = self.plugins.get(resource)
        return {id: each.health for id, each in plugin.devices.items()} if plugin else {}

    def listed(self, resource: str) -> list[Fields]:
        """Its newest list, in the order of ids."""
        devices = self.plugin(resource).devices
        return [
            {"id": id, "health": devices[id].health, "numa": [each.ID for each in devices[id].topology.nodes]}
            for id in sorted(devices)
        ]

    def options(self, resource: str) -> Fields:
        """As its plugin tells them: when it registers, and when it is asked."""
        plugin = self.plugin(resource)
        asked, registered = _options(plugin.options), _options(plugin.registered)
        return {"version": plugin.version, **asked} | ({} if asked == registered else {"registered": registered})

    def preferred(self, resource: str, available: list[str], size: int, required: tuple[str, ...] = ()) -> list[str]:
        """What it would rather have taken, sorted: kubelet takes a set."""
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size
        )
        answer = self.plugin(resource).stub.GetPreferredAllocation(
            pb.PreferredAllocationRequest(container_requests=[request]), timeout=PATIENCE
        )
        (container,) = answer.container_responses
        return sorted(container.deviceIDs)

    def allocate(self, resource: str, ids: list[str]) -> Fields | str:
        """What a container gets with these; the name of the gRPC status where it is refused."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            answer = self.plugin(resource).stub.Allocate(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            return str(error.code().name)
        (container,) = answer.container_responses
        return plain(container)


def plain(got: pb.ContainerAllocateResponse) -> Fields:
    """An answer as plain values, of which those that are empty are left out."""
    whole: Fields = {
        "envs": dict(sorted(got.envs.items())),
        "annotations": dict(sorted(got.annotations.items())),
        "mounts": [[each.host_path, each.container_path, "ro" if each.read_only else "rw"] for each in got.mounts],
        "devices": [[each.host_path, each.container_path, each.permissions] for each in got.devices],
        "cdi_devices": [each.name for each in got.cdi_devices],
    }
    return {name: value for name, value in whole.items() if value}


def _options(said: pb.DevicePluginOptions) -> dict[str, bool]:
    return {
        "pre_start_required": said.pre_start_required,
        "get_preferred_allocation_available": said.get_preferred_allocation_available,
    }
