"""Registration and the node's figures, as kubelet 1.36.2 was observed to handle them, on real sockets.

What was not observed follows kubelet's source (pkg/kubelet/cm/devicemanager) and says so.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet import Kubelet, PodRejected
from gpuplane.sandbox.kubelet.registration import DIAL_TIMEOUT

from .plugin import CHECKPOINT, DEV, SIX, Plugin, calls, device, node, wants

# registration


async def test_options_are_asked_before_register_is_answered(root: Path) -> None:
    """Kubelet dials the plugin and asks for its options while Register waits; ListAndWatch comes right after."""
    async with Kubelet(root) as kubelet:
        plugin = Plugin(root / "device-plugins", *SIX)
        plugin.gates["GetDevicePluginOptions"] = asyncio.Event()
        await plugin.serve()
        register = asyncio.create_task(plugin.register())
        await plugin.until_asked("GetDevicePluginOptions")

        assert not register.done()
        assert not plugin.asked("ListAndWatch")

        plugin.gates["GetDevicePluginOptions"].set()
        await register
        await kubelet.until_capacity(DEV, 6, 6)

        assert calls(kubelet) == ["Register", "GetDevicePluginOptions", "ListAndWatch"]
        await plugin.stop()


@pytest.mark.parametrize("name", ["notqualified", "kubernetes.io/dev", "x.kubernetes.io/dev", "xkubernetes.io/dev"])
@pytest.mark.parametrize("version", ["v1beta1"])
async def test_a_name_that_is_no_extended_resource_is_refused(root: Path, name: str, version: str) -> None:
    await refused(root, f'the ResourceName "{name}" is invalid', resource_name=name, version=version)


@pytest.mark.parametrize(
    "name",
    ["requests.lab.io/dev", "lab.io/", "/dev", "lab.io/a/b", "Lab.io/dev", "lab.io/-a", f"lab.io/{'a' * 64}", ""],
)
async def test_a_name_that_is_no_qualified_name_is_refused(root: Path, name: str) -> None:
    """By the source: IsExtendedResourceName."""
    await refused(root, f'the ResourceName "{name}" is invalid', resource_name=name)


async def test_the_quota_prefix_has_to_fit_before_a_name(root: Path) -> None:
    """By the source: "requests." stands before the name when it is checked, so a domain has 244 characters."""
    long, longer = (".".join(["a" * 60] * 4) + "." + "b" * n + "/dev" for n in (0 + 1, 0 + 2))
    assert len(long.partition("/")[0]) == 245
    await refused(root, f'the ResourceName "{longer}" is invalid', resource_name=longer)
    await refused(root, f'the ResourceName "{long}" is invalid', resource_name=long)


async def test_another_version_is_refused(root: Path) -> None:
    """And the version is looked at first."""
    message = 'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]'
    await refused(root, message, version="v1alpha")
    await refused(root, message, version="v1alpha", resource_name="notqualified")


async def refused(root: Path, message: str, **request: Any) -> None:
    """A Register is answered UNKNOWN_LAYOUT with this message, without a look at the plugin."""
    async with Kubelet(root) as kubelet:
        plugin = Plugin(root / "device-plugins")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await plugin.register(**request)

        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNKNOWN, message)
        assert calls(kubelet) == ["Register", "Register failed"]
        assert kubelet.trace[-1].error == message


async def test_an_endpoint_that_does_not_exist_blocks_register_until_kubelet_gives_up(root: Path) -> None:
    """After 10 s on a node. A client that waits no longer than that sees its own deadline."""
    assert DIAL_TIMEOUT == 10.0
    async with Kubelet(root, dial_timeout=0.5):
        plugin = Plugin(root / "device-plugins")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await plugin.register()
        message = "failed to dial device plugin: context deadline exceeded"
        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNKNOWN, message)

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await plugin.register(timeout=0.1)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_options_that_are_answered_by_an_error_fail_the_registration(root: Path) -> None:
    """By the source: manager.go, PluginConnected."""
    async with Kubelet(root) as kubelet:
        plugin = Plugin(root / "device-plugins")
        plugin.errors["GetDevicePluginOptions"] = "not today"
        await plugin.serve()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await plugin.register()
        problem = "rpc error: code = Internal desc = not today"
        assert error.value.details() == f"failed to get device plugin options: {problem}"
        assert kubelet.node_capacities() == {}
        await plugin.stop()


async def register_again(kubelet: Kubelet, plugin: Plugin) -> None:
    """A second Register, and kubelet has read the first list of the second stream."""
    plugin.devices = [device("new")]
    await plugin.register()
    await kubelet.until(lambda: kubelet.device_health() == {DEV: {"new": "Healthy"}})


async def test_a_second_register_opens_a_second_stream_and_both_are_read(root: Path) -> None:
    """The first stays open. A plugin that would tell the second alone could be overruled by the first."""
    async with node(root, *SIX) as (kubelet, plugin):
        await register_again(kubelet, plugin)
        first, second = plugin.streams

        first.put_nowait(pb.ListAndWatchResponse(devices=[device("by-the-first")]))
        await kubelet.until(lambda: kubelet.device_health() == {DEV: {"by-the-first": "Healthy"}})
        second.put_nowait(pb.ListAndWatchResponse(devices=[device("by-the-second")]))
        await kubelet.until(lambda: kubelet.device_health() == {DEV: {"by-the-second": "Healthy"}})

        assert "ListAndWatch ended" not in calls(kubelet)


async def test_the_end_of_any_stream_is_the_end_of_the_newest_plugin(root: Path) -> None:
    """By the source: kubelet knows clients by resource. So the older stream's end makes the devices unhealthy and cuts
    the newer stream."""
    async with node(root, *SIX) as (kubelet, plugin):
        await register_again(kubelet, plugin)
        plugin.streams[0].put_nowait(None)

        await kubelet.until(lambda: calls(kubelet).count("ListAndWatch ended") == 2)
        assert kubelet.capacity(DEV) == (1, 0)

        await plugin.register()
        await kubelet.until_capacity(DEV, 1, 1)


async def test_a_registration_goes_on_though_the_plugin_no_longer_waits(root: Path) -> None:
    """By the source: kubelet dials and asks for options under no deadline of the caller's."""
    async with Kubelet(root) as kubelet:
        plugin = Plugin(root / "device-plugins", *SIX)
        gate = plugin.gates["GetDevicePluginOptions"] = asyncio.Event()
        await plugin.serve()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await plugin.register(timeout=0.2)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

        gate.set()
        await kubelet.until_capacity(DEV, 6, 6)
        await plugin.stop()


# the node's figures


async def test_capacity_counts_all_devices_and_allocatable_the_healthy_ones(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, plugin):
        plugin.send(device("d1"), device("d2", "Unhealthy"), device("d3", "Unknown"))
        await kubelet.until_capacity(DEV, 3, 1)
        assert kubelet.device_health() == {DEV: {"d1": "Healthy", "d2": "Unhealthy", "d3": "Unhealthy"}}


async def test_a_device_that_is_listed_no_longer_is_counted_no_longer(root: Path) -> None:
    """And after an empty list the resource stays, with zeros."""
    async with node(root, *SIX) as (kubelet, plugin):
        plugin.send(device("d1"), device("d2"))
        await kubelet.until_capacity(DEV, 2, 2)
        plugin.send()
        await kubelet.until_capacity(DEV, 0, 0)
        assert kubelet.node_capacities() == {DEV: (0, 0)}


async def test_the_node_object_may_lag_behind_the_device_manager(root: Path) -> None:
    """On a node by up to 10 s. The scheduler sends pods by the Node object; kubelet itself refuses at once."""
    async with node(root, *SIX, node_sync_period=0.3) as (kubelet, plugin):
        await kubelet.until(lambda: kubelet.node_capacities() == {DEV: (6, 6)})
        plugin.send(device("d1", "Unhealthy"))
        await kubelet.until_capacity(DEV, 1, 0)

        if kubelet.node_capacities() == {
            DEV: (6, 6)
        }:  # it has most of its time left, but a slow machine may have used it up
            assert kubelet.insufficient_resources(wants("a")) == []
        with pytest.raises(PodRejected, match="no healthy devices present"):
            await kubelet.run(wants("a"))

        await kubelet.until(lambda: kubelet.node_capacities() == {DEV: (1, 0)})
        assert kubelet.insufficient_resources(wants("b")) == [f"Insufficient {DEV}"]


async def test_a_lost_stream_makes_all_devices_unhealthy_at_once(root: Path) -> None:
    """Capacity keeps its number. Pods that hold devices run on, new ones stay pending, until a Register."""
    async with node(root, *SIX) as (kubelet, plugin):
        await kubelet.run(wants("old"))
        await plugin.stop()
        await kubelet.until_capacity(DEV, 6, 0)

        assert list(kubelet.pods) == ["default/old"]
        assert kubelet.insufficient_resources(wants("new")) == [f"Insufficient {DEV}"]

        await plugin.serve()
        await plugin.register()
        await kubelet.until_capacity(DEV, 6, 6)
        assert kubelet.insufficient_resources(wants("new")) == []


async def test_a_plugin_that_is_gone_for_five_minutes_takes_its_resource_along(root: Path) -> None:
    """By the source: endpointStopGracePeriod. The Node object keeps the key, with zeros."""
    time = [0.0]
    async with node(root, *SIX, now=lambda: time[0]) as (kubelet, plugin):
        await plugin.stop()
        await kubelet.until_capacity(DEV, 6, 0)
        time[0] = 300.0
        assert kubelet.capacity(DEV) == (6, 0)
        time[0] = 300.1
        assert kubelet.capacity(DEV) == (0, 0)
        assert kubelet.node_capacities() == {DEV: (0, 0)}
        assert json.loads((root / "device-plugins" / CHECKPOINT).read_bytes())["Data"]["RegisteredDevices"] == {}


async def test_a_plugin_that_comes_back_in_time_keeps_its_resource(root: Path) -> None:
    time = [0.0]
    async with node(root, *SIX, now=lambda: time[0]) as (kubelet, plugin):
        await kubelet.drop_streams()
        await kubelet.until_capacity(DEV, 6, 0)
        time[0] = 299.0
        await plugin.register()
        await kubelet.until_capacity(DEV, 6, 6)
        time[0] = 900.0
        assert kubelet.capacity(DEV) == (6, 6)
