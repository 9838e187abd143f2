"""Plugins register with the embedded kubelet as with kubelet 1.36: by sockets in plugins_registry."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from gpuplane.sandbox.kubelet import Kubelet

from .recorded import CALLS, REFUSAL
from .site import NEVER, TIMES, Site, dra_node
from .toyplugin import DRIVER, VERSIONS, ToyPlugin

PATIENT = msgspec.structs.replace(TIMES, wiping_delay=NEVER)


async def test_a_plugin_of_other_versions_is_told_why_and_asked_again(root: Path) -> None:
    times = msgspec.structs.replace(TIMES, watch_period=0.02, first_backoff=0.1)
    async with Kubelet(root, dra_times=times) as kubelet:
        plugin = ToyPlugin(root, versions=["1.0.0"])
        await plugin.start()
        began = asyncio.get_running_loop().time()
        await plugin.changes.until(lambda: len(plugin.statuses) == 3)
        took = asyncio.get_running_loop().time() - began

        why = REFUSAL.format(endpoint=plugin.service_socket, offered='"1.0.0"')
        assert [(each.plugin_registered, each.error) for each in plugin.statuses] == [(False, why)] * 3
        assert took >= 0.1 + 0.2  # twice as late each time
        assert kubelet.dra.plugins.by_driver == {}
        await plugin.stop()


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"versions": ()}, "empty list of supported gRPC services (aka supported versions)"),
        ({"versions": ("v1alpha1.DRAResourceHealth",)}, 'none of services supported by the plugin (["v1alpha1.'),
        ({"type": "CSIPlugin"}, "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket "),
    ],
)
async def test_a_plugin_that_kubelet_cannot_use_is_told_why(root: Path, info: dict[str, str], why: str) -> None:
    async with Kubelet(root, dra_times=TIMES):
        plugin = ToyPlugin(root, **info)
        await plugin.start()
        await plugin.changes.until(lambda: plugin.statuses)

        assert not plugin.statuses[0].plugin_registered
        assert why in plugin.statuses[0].error
        await plugin.stop()


async def test_of_a_plugins_versions_the_first_that_kubelet_knows_is_used(root: Path) -> None:
    async with dra_node(root, registers=False) as site:
        site.plugin.info.supported_versions[:] = ["v2.DRAPlugin", *reversed(VERSIONS[:2])]
        await site.plugin.start()
        await site.plugin.until_registered()
        found = await site.run_with("one", share="share-1")
        await site.until_running(found)

        assert site.kubelet.dra.plugins.get(DRIVER).service == "v1beta1.DRAPlugin"
        assert site.environment(found) == ("GOT_g4=one",)
        ((_, device),) = site.kubelet.dra.books.of_pod(found.uid)[0].devices()
        assert device.share_id is None  # v1beta1 has none


async def test_a_plugin_that_was_there_before_kubelet_is_found(root: Path) -> None:
    plugin = ToyPlugin(root)
    await plugin.start()
    async with Kubelet(root, dra_times=TIMES):
        await plugin.until_registered()
    await plugin.stop()


async def test_only_sockets_without_a_dot_are_asked_in_every_directory(root: Path) -> None:
    registry = root / "plugins_registry"
    (registry / "more").mkdir(parents=True)
    (registry / ".less").mkdir()
    (registry / "file.sock").write_text("")
    hidden, less = ToyPlugin(root), ToyPlugin(root)
    hidden.registration_socket = registry / ".hidden.sock"
    less.registration_socket = registry / ".less" / "plugin.sock"
    for each in (hidden, less):
        await each.start()
    async with dra_node(root, registers=False) as site:
        site.plugin.registration_socket = registry / "more" / "plugin.sock"
        await site.plugin.start()
        await site.plugin.until_registered()

        assert (hidden.deadlines, less.deadlines) == ([], [])
        assert (registry / "file.sock").exists()
    for each in (hidden, less):
        await each.stop()


async def test_a_socket_where_nobody_answers_does_not_hinder_others(root: Path) -> None:
    (root / "plugins_registry").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(root / "plugins_registry" / "a-dead.sock"))
    async with dra_node(root) as site:
        assert list(site.kubelet.dra.plugins.by_driver) == [DRIVER]


async def test_a_driver_is_used_by_its_newest_instance_that_is_connected(root: Path) -> None:
    async with dra_node(root, PATIENT) as site:
        newer = ToyPlugin(root, instance="-2")
        newer.allocated = site.plugin.allocated
        await newer.start()
        await newer.until_registered()
        await site.kubelet.until(lambda: all(each.is_connected for each in site.kubelet.dra.plugins.by_driver[DRIVER]))
        first = await site.run_with("first")
        await site.until_running(first)
        await newer.stop()
        await site.kubelet.until(lambda: len(site.kubelet.dra.plugins.by_driver[DRIVER]) == 1)
        second = await site.run_with("second")
        await site.until_running(second)

        assert (newer.calls, site.plugin.calls) == (["prepare first"], ["prepare second"])
        assert site.claims.deleted_slices == [""]


async def test_an_instance_that_has_died_is_passed_over(root: Path) -> None:
    async with dra_node(root, PATIENT) as site:
        newer = ToyPlugin(root, instance="-2")
        await newer.start()
        await newer.until_registered()
        await newer.kill()
        await site.kubelet.until(
            lambda: [each.is_connected for each in site.kubelet.dra.plugins.by_driver[DRIVER]] == [True, False]
        )
        await site.until_running(await site.run_with("one"))

        assert (newer.calls, site.plugin.calls) == ([], ["prepare one"])


async def test_an_endpoint_registers_once(root: Path) -> None:
    async with dra_node(root) as site:
        other = ToyPlugin(root, instance="-2")
        other.info.endpoint = str(site.plugin.service_socket)
        await other.start()
        await other.changes.until(lambda: other.statuses)

        endpoint = f"endpoint {site.plugin.service_socket} already registered for DRA driver plugin {DRIVER}"
        assert other.statuses[0].error == f"RegisterPlugin error -- plugin registration failed with err: {endpoint}"
        await other.stop()


async def test_a_plugin_that_cannot_be_told_is_not_registered_and_tried_again(root: Path) -> None:
    async with dra_node(root, registers=False) as site:
        site.plugin.refuses_statuses = 2
        await site.plugin.start()
        await site.plugin.until_registered(3)
        await site.until_running(await site.run_with("one"))

        assert len(site.kubelet.dra.plugins.by_driver[DRIVER]) == 1


async def test_a_plugin_that_returns_in_time_keeps_its_slices(root: Path) -> None:
    async with dra_node(root, PATIENT) as site:
        found = await site.run_with("tmpl")
        await site.until_running(found)
        await site.plugin.stop()
        await site.kubelet.until(lambda: not site.kubelet.dra.plugins.by_driver)
        await site.plugin.start()
        await site.plugin.until_registered(2)
        await site.kubelet.until(lambda: site.kubelet.dra.plugins.get(DRIVER).is_connected)

        assert tuple(site.plugin.calls) == CALLS["plugin restart within 3 s"]
        assert site.claims.deleted_slices == [""]


async def test_a_new_socket_in_the_place_of_another_registers_anew(root: Path) -> None:
    """As when a plugin was killed, and its successor removes the socket that it finds."""
    async with dra_node(root, PATIENT) as site:
        await site.plugin.kill()
        heir = ToyPlugin(root)
        await heir.start()
        await heir.until_registered()
        await site.until_running(await site.run_with("one"))

        assert (site.plugin.calls, heir.calls) == ([], ["prepare one"])
        await heir.stop()


async def test_a_plugin_that_stays_away_loses_its_slices_once(root: Path) -> None:
    async with dra_node(root) as site:
        began = asyncio.get_running_loop().time()
        await site.plugin.stop()
        await until_wiped(site, "", DRIVER)

        assert asyncio.get_running_loop().time() - began >= TIMES.wiping_delay
        await asyncio.sleep(2 * TIMES.wiping_delay)
        assert site.claims.deleted_slices == ["", DRIVER]


async def test_a_plugin_whose_process_has_died_loses_its_slices(root: Path) -> None:
    """Its registration socket is still there."""
    async with dra_node(root) as site:
        await site.plugin.kill()
        await until_wiped(site, "", DRIVER)

        assert site.plugin.registration_socket.exists()


async def test_a_plugin_whose_registration_socket_is_removed_counts_as_gone(root: Path) -> None:
    """Its service answers all the while."""
    async with dra_node(root) as site:
        site.plugin.registration_socket.unlink()
        await site.kubelet.until(lambda: not site.kubelet.dra.plugins.by_driver)
        found = await site.run_with("one")

        assert await site.until_failed(found) == f"DRA driver {DRIVER} is not registered"
        await until_wiped(site, "", DRIVER)
        assert site.plugin.calls == []


async def test_while_the_plugin_is_gone_pods_wait_both_to_start_and_to_end(root: Path) -> None:
    times = msgspec.structs.replace(TIMES, end_retry=NEVER)
    async with dra_node(root, times) as site:
        ends = await site.run_with("again", device="g2")
        await site.until_running(ends)
        await site.plugin.stop()
        await site.kubelet.until(lambda: not site.kubelet.dra.plugins.by_driver)
        await site.kubelet.end(ends.key)
        starts = await site.run_with("new")

        assert await site.until_failed(starts) == f"DRA driver {DRIVER} is not registered"
        assert site.kubelet.pods[ends.key].unprepare_error.endswith(f"DRA driver {DRIVER} is not registered")
        await until_wiped(site, "", DRIVER)
        await site.plugin.start()  # and its health wakes the pod that ends, long before its time
        await site.until_gone(ends)
        await site.until_running(starts)
        assert set(site.plugin.calls) == {*CALLS["plugin gone"], "prepare new"}


async def until_wiped(site: Site, *drivers: str) -> None:
    async with asyncio.timeout(60):
        while site.claims.deleted_slices != list(drivers):
            await asyncio.sleep(0.01)
