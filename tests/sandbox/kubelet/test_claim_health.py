"""Pods show the health that plugins tell, as with kubelet 1.36: when they are synced, and not before."""

import asyncio
from pathlib import Path

import msgspec

from gpuplane.node.kubelet.protocols import drahealth_pb2 as pb
from gpuplane.sandbox.kubelet import Pod

from .site import NEVER, TIMES, Site, cdi, dra_node
from .toyplugin import DRIVER

RARELY = msgspec.structs.replace(TIMES, pod_sync=NEVER)
"""Pods are synced when something happens, and not from time to time."""


async def test_a_pod_shows_what_its_plugin_says(root: Path) -> None:
    async with dra_node(root, RARELY) as site:
        found, id = await held(site)
        for health, text, shown in (
            (pb.UNHEALTHY, "XID 79 on purpose", "Unhealthy"),
            (pb.UNHEALTHY, "other text", "Unhealthy"),
            (pb.UNKNOWN, "", "Unknown"),
            (pb.HEALTHY, "", "Healthy"),
        ):
            site.plugin.set_health("g0", health, text)
            await until_shown(site, found, (id, shown, text))


async def test_a_message_has_at_most_1024_characters(root: Path) -> None:
    async with dra_node(root, RARELY) as site:
        found, id = await held(site)
        site.plugin.set_health("g0", pb.UNHEALTHY, 2000 * "x")

        await until_shown(site, found, (id, "Unhealthy", 1021 * "x" + "..."))


async def test_a_device_that_is_left_out_keeps_its_health_for_a_time(root: Path) -> None:
    now = [0.0]
    async with dra_node(root, RARELY, now=lambda: now[0]) as site:
        found, id = await held(site)
        del site.plugin.health["g0"]
        site.plugin.set_health("g1", pb.UNHEALTHY)
        await site.kubelet.until(lambda: site.kubelet.dra.health.find(DRIVER, "pool", "g1", 0).state == "Unhealthy")
        assert shown(site, found) == (id, "Healthy", "")

        now[0] = 31.0
        site.plugin.set_health("g1", pb.HEALTHY)
        await until_shown(site, found, (id, "Unknown", ""))


async def test_an_entry_counts_for_as_long_as_the_plugin_says(root: Path) -> None:
    now = [0.0]
    async with dra_node(root, msgspec.structs.replace(TIMES, pod_sync=0.05), now=lambda: now[0]) as site:
        found, id = await held(site)
        site.plugin.set_health("g0", pb.UNHEALTHY, "slow to look", timeout=120)
        await until_shown(site, found, (id, "Unhealthy", "slow to look"))
        now[0] = 119.0
        await asyncio.sleep(0.2)
        assert shown(site, found) == (id, "Unhealthy", "slow to look")

        now[0] = 121.0
        await until_shown(site, found, (id, "Unknown", ""))


async def test_the_end_of_the_stream_changes_a_pod_when_it_is_synced(root: Path) -> None:
    async with dra_node(root, RARELY) as site:
        found, id = await held(site)
        await site.plugin.stop()
        await site.kubelet.until(lambda: not site.kubelet.dra.health.entries)
        assert shown(site, found) == (id, "Healthy", "")

        site.kubelet.crash(found.key, "c")
        await until_shown(site, found, (id, "Unknown", ""))
        await site.plugin.start()
        await until_shown(site, found, (id, "Healthy", ""))


async def test_a_stream_that_ends_is_opened_again(root: Path) -> None:
    async with dra_node(root, RARELY) as site:
        await site.plugin.end_streams()
        await site.kubelet.until(lambda: [each.method for each in site.kubelet.trace].count("NodeWatchResources") == 2)

        methods = [each.method for each in site.kubelet.trace if each.method.startswith("NodeWatch")]
        assert methods == ["NodeWatchResources", "NodeWatchResources ended", "NodeWatchResources"]
        assert len(site.plugin.statuses) == 1


async def held(site: Site) -> tuple[Pod, str]:
    """A pod that holds g0, and what its status calls that."""
    found = await site.run_with("tmpl", device="g0")
    await site.until_running(found)
    (claim,) = site.kubelet.dra.books.of_pod(found.uid)
    id = cdi(claim.uid, "g0")
    await until_shown(site, found, (id, "Healthy", ""))
    return found, id


def shown(site: Site, found: Pod) -> tuple[str, str, str]:
    ((health,),) = site.health(found).values()
    return health


async def until_shown(site: Site, found: Pod, health: tuple[str, str, str]) -> None:
    try:
        await site.kubelet.until(lambda: site.health(found) == {"claim:g": [health]})
    except TimeoutError:
        raise TimeoutError(f"{site.health(found)}, not {health}") from None
