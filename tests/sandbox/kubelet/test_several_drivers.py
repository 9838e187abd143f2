"""A pod whose claims have devices of several drivers: the embedded kubelet calls each of them, as kubelet 1.36 does."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from .site import TIMES, Site, dra_node, pod
from .toyplugin import DRIVER, NOBODY, ToyPlugin

NIC = "nic.lab.io"
QUICK = msgspec.structs.replace(TIMES, pod_sync=0.1, first_sync=0.1)


@pytest.fixture
async def site(root: Path) -> AsyncIterator[Site]:
    async with dra_node(root, QUICK) as site:
        yield site


@pytest.fixture
async def nic(site: Site) -> AsyncIterator[ToyPlugin]:
    nic = ToyPlugin(site.root, driver=NIC)
    nic.allocated = site.plugin.allocated
    await nic.start()
    await nic.until_registered()
    yield nic
    nic.slow.set()
    await nic.stop()


async def test_each_driver_is_called_once_for_its_claims(site: Site, nic: ToyPlugin) -> None:
    three = pod("p", a="gpu", b="nic", c="both")
    site.claim("gpu", three, device="g0")
    site.claim("nic", three, device="g1", drivers=(NIC,))
    site.claim("both", three, device="g2", drivers=(DRIVER, NIC))
    await site.kubelet.run(three)
    await site.until_running(three)

    assert (site.plugin.calls, nic.calls) == (["prepare gpu,both"], ["prepare nic,both"])
    assert site.environment(three) == ("GOT_g0=gpu", "GOT_g1=nic", "GOT_g2=both")
    (both,) = (await site.listed())["p"]["c"][2:]
    assert {each.driver_name for each in both.claim_resources} == {DRIVER, NIC}
    await site.kubelet.end(three.key)
    await site.until_gone(three)
    assert (site.plugin.calls[1:], nic.calls[1:]) == (["unprepare gpu,both"], ["unprepare nic,both"])


async def test_no_driver_is_called_while_one_of_them_is_not_registered(site: Site) -> None:
    both = pod("p", g="both")
    site.claim("both", both, drivers=(DRIVER, NIC))
    await site.kubelet.run(both)

    assert await site.until_failed(both, 2) == f"DRA driver {NIC} is not registered"
    assert (site.plugin.calls, site.kubelet.dra.books.claims) == ([], {})


async def test_a_driver_that_was_called_is_called_again_when_another_one_fails(site: Site, nic: ToyPlugin) -> None:
    two = pod("p", a="one", b="err3")
    site.claim("one", two, device="g0")
    site.claim("err3", two, device="g1", drivers=(NIC,))
    await site.kubelet.run(two)
    await site.until_running(two)

    assert nic.calls == ["prepare err3"] * 4
    assert site.plugin.calls == ["prepare one"] * len(site.plugin.calls)
    assert 1 <= len(site.plugin.calls) <= 4  # which driver is called first is left open
    assert site.environment(two) == ("GOT_g0=one", "GOT_g1=err3")


async def test_kubelet_that_dies_between_two_drivers_prepares_all_again(site: Site, nic: ToyPlugin) -> None:
    two = pod("p", a="one", b="slow1")
    site.claim("one", two, device="g0")
    site.claim("slow1", two, device="g1", drivers=(NIC,))
    await site.kubelet.run(two)
    await nic.until("prepare slow1")
    asked = len(site.plugin.calls)
    await site.kubelet.kill()
    assert {claim.name for claim in site.kubelet.dra.books.of_pod(two.uid)} == {"one", "slow1"}
    await site.kubelet.start()
    await site.until_running(two)
    await site.kubelet.end(two.key)
    await site.until_gone(two)

    assert nic.calls == ["prepare slow1", "prepare slow1", "unprepare slow1"]
    assert site.plugin.calls == ["prepare one"] * (asked + 1) + ["unprepare one"]


async def test_a_claim_without_devices_needs_no_driver(site: Site) -> None:
    empty = pod("p", g="empty")
    site.claim("empty", empty, drivers=(), uid=NOBODY)
    await site.kubelet.run(empty)
    await site.until_running(empty)
    await site.kubelet.end(empty.key)
    await site.until_gone(empty)

    assert site.plugin.calls == []
    assert site.kubelet.dra.books.claims == {}
