"""The embedded kubelet does with claims what kubelet 1.36.2 did: the same calls in the same order."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gpuplane.sandbox.kubelet import Container, ContainerClaim

from .recorded import CALLS, CREATE_ERROR, DEADLINES, FAILURES
from .site import TIMES, cdi, dra_node, pod
from .toyplugin import DRIVER

QUICK = msgspec.structs.replace(TIMES, pod_sync=0.05, end_retry=0.05)
"""Kubelet tries again at once."""


async def test_a_claim_of_a_template_is_prepared_once_the_driver_is_registered(root: Path) -> None:
    async with dra_node(root, registers=False) as site:
        tmpl = pod("p-tmpl", g="p-tmpl-g-6vknc")
        site.claim("p-tmpl-g-6vknc", tmpl, owners=[tmpl], device="g0")
        await site.kubelet.run(tmpl)

        assert await site.until_failed(tmpl) == FAILURES["not registered"][0]
        assert site.plugin.calls == []
        await site.plugin.start()
        await site.until_running(tmpl)
        assert site.plugin.calls == [each.format(claim="p-tmpl-g-6vknc") for each in CALLS["template claim"]]
        assert site.environment(tmpl) == ("GOT_g0=p-tmpl-g-6vknc",)


async def test_two_claims_of_a_pod_are_prepared_by_one_call(root: Path) -> None:
    async with dra_node(root) as site:
        first = Container("c", claims=(ContainerClaim("a"), ContainerClaim("b")))
        two = pod("p-two", first, Container("d", claims=(ContainerClaim("b", "gpu"),)), a="two-a", b="two-b")
        a, b = site.claim("two-a", two, device="g1"), site.claim("two-b", two, device="g4", share="share-1")
        await site.kubelet.run(two)
        await site.until_running(two)

        assert tuple(site.plugin.calls) == CALLS["two claims, two containers"]
        asked = [(claim.namespace, claim.name, claim.uid) for claim in site.plugin.claims[0]]
        assert asked == [("dra-lab", "two-a", a), ("dra-lab", "two-b", b)]
        assert site.environment(two, "c") == ("GOT_g1=two-a", "GOT_g4=two-b")
        assert site.environment(two, "d") == ("GOT_g4=two-b",)
        assert site.health(two, "c") == {
            "claim:a": [(cdi(a, "g1"), "Healthy", "")],
            "claim:b": [(cdi(b, "g4"), "Healthy", "")],
        }
        assert site.health(two, "d") == {"claim:b/gpu": [(cdi(b, "g4"), "Healthy", "")]}


async def test_pod_resources_lists_the_claims_of_containers(root: Path) -> None:
    async with dra_node(root) as site:
        first = Container("c", claims=(ContainerClaim("a"), ContainerClaim("b")))
        two = pod("p-two", first, Container("d", claims=(ContainerClaim("b", "gpu"),)), a="two-a", b="two-b")
        a, b = site.claim("two-a", two, device="g1"), site.claim("two-b", two, device="g4", share="share-1")
        await site.kubelet.run(two)
        await site.until_running(two)

        listed = (await site.listed())["p-two"]
        (one, other), (only,) = listed["c"], listed["d"]
        assert only == other
        assert (one.claim_name, one.claim_namespace, other.claim_name) == ("two-a", "dra-lab", "two-b")
        (mine,), (shared,) = one.claim_resources, other.claim_resources
        assert [each.name for each in mine.cdi_devices] == [cdi(a, "g1")]
        assert (mine.driver_name, mine.pool_name, mine.device_name) == (DRIVER, "pool", "g1")
        assert not mine.HasField("share_id")
        assert ([each.name for each in shared.cdi_devices], shared.share_id) == ([cdi(b, "g4")], "share-1")


async def test_a_shared_claim_is_prepared_once_and_unprepared_with_its_last_pod(root: Path) -> None:
    async with dra_node(root) as site:
        one, other = pod("p-sh1", g="shared"), pod("p-sh2", g="shared")
        uid = site.claim("shared", one, other, device="g2")
        for each in (one, other):
            await site.kubelet.run(each)
            await site.until_running(each)
            assert tuple(site.plugin.calls) == CALLS["claim shared by two pods"]
            assert site.health(each) == {"claim:g": [(cdi(uid, "g2"), "Healthy", "")]}
        await site.kubelet.end(one.key)
        await site.until_gone(one)
        assert tuple(site.plugin.calls) == CALLS["claim shared by two pods"]
        await site.kubelet.end(other.key)
        await site.until_gone(other)

        assert tuple(site.plugin.calls) == CALLS["unprepare: last pod of a shared claim"]
        assert [path.name for path in (root / "cdi").iterdir()] == []


async def test_every_claim_is_prepared_whatever_containers_get_of_it(root: Path) -> None:
    async with dra_node(root) as site:
        pods = {name: pod(f"p-{name}", g=name) for name in ("badcdi", "wrong", "nocdi")}
        pods = {"nouse": pod("p-nouse", Container("c"), g="nouse")} | pods
        uids = {name: site.claim(name, found) for name, found in pods.items()}
        for found in pods.values():
            await site.kubelet.run(found)
            await site.until_prepared(found)
        for name in ("nouse", "wrong", "nocdi"):
            await site.until_running(pods[name])
        await site.kubelet.until(lambda: site.kubelet.pods[pods["badcdi"].key].waiting_reasons == {"c": CREATE_ERROR})

        assert {name: site.health(found) for name, found in pods.items()} == {
            "nouse": {},
            "badcdi": {"claim:g": [("gpu.lab.io/claim=does-not-exist", "Healthy", "")]},
            "wrong": {"claim:g": [(cdi(uids["wrong"], "g4"), "Healthy", "")]},
            "nocdi": {"claim:g": [("gpu.lab.io/pool/g4", "Healthy", "")]},
        }
        assert (site.environment(pods["nouse"]), site.environment(pods["nocdi"])) == ((), ())
        listed = await site.listed()
        assert listed["p-nouse"]["c"] == []
        assert not listed["p-nocdi"]["c"][0].claim_resources[0].cdi_devices
        for name in ("badcdi", "nouse", "wrong", "nocdi"):
            await site.kubelet.end(pods[name].key)
            await site.until_gone(pods[name])
        assert tuple(site.plugin.calls) == CALLS["no CDI, unknown CDI, wrong request, no container"]


async def test_a_container_that_names_a_request_gets_no_device_of_another(root: Path) -> None:
    async with dra_node(root) as site:
        found = pod("p-wrong", Container("c", claims=(ContainerClaim("g", "gpu"),)), Container("d"), g="wrong")
        site.claim("wrong", found)
        await site.kubelet.run(found)
        await site.until_running(found)

        assert (site.environment(found), site.health(found)) == ((), {})


@pytest.mark.parametrize("name", ["err3", "skip2", "grpc2", "extra1"])
async def test_a_pod_whose_claim_is_not_prepared_waits_and_is_tried_again(root: Path, name: str) -> None:
    async with dra_node(root, QUICK) as site:
        found = await site.run_with(name)
        running = site.kubelet.pods[found.key]
        await site.until_failed(found)
        if not running.started:  # one more try may have worked by now
            assert running.waiting_reasons["c"].message.startswith("Failed to prepare dynamic resources: ")
        await site.until_running(found)

        assert tuple(site.plugin.calls) == CALLS[name]
        told = [each.message.partition("prepare dynamic resources: ")[2] for each in running.events]
        assert tuple(each.removeprefix("prepare dynamic resources: ") for each in told) == FAILURES[name]
        assert (running.waiting_reasons, site.environment(found)) == ({}, (f"GOT_g4={name}",))


async def test_a_claim_that_is_not_prepared_is_listed_without_devices(root: Path) -> None:
    async with dra_node(root) as site:
        found = await site.run_with("err3")
        await site.until_failed(found)

        (claim,) = (await site.listed())["p-err3"]["c"]
        assert (claim.claim_name, list(claim.claim_resources)) == ("err3", [])
        assert site.kubelet.dra.books.of_pod(found.uid)[0].drivers == {DRIVER: []}


async def test_a_call_that_takes_too_long_is_made_again(root: Path) -> None:
    async with dra_node(root, msgspec.structs.replace(QUICK, call=0.5)) as site:
        found = await site.run_with("slow1")

        assert await site.until_failed(found) == FAILURES["slow1"][0]
        await site.until_running(found)
        assert tuple(site.plugin.calls) == CALLS["slow1"]


async def test_calls_have_kubelets_deadlines(root: Path) -> None:
    times = msgspec.structs.replace(TIMES, get_info=1.0, notify=5.0)
    async with dra_node(root, times) as site:
        found = await site.run_with("one")
        await site.until_running(found)
        await site.kubelet.end(found.key)

        told = dict(site.plugin.deadlines)
        assert told == {method: pytest.approx(seconds, abs=0.9) for method, seconds in DEADLINES.items()}


async def test_a_pod_stays_until_its_claim_is_unprepared(root: Path) -> None:
    async with dra_node(root) as site:
        found = await site.run_with("unerr3")
        await site.until_running(found)
        await site.kubelet.end(found.key)

        assert site.kubelet.pods[found.key].is_terminating
        assert site.kubelet.pods[found.key].unprepare_error == (
            "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim unerr3: "
            "unprepare failed on purpose, attempt 1"
        )
        assert list(await site.listed()) == ["p-unerr3"]
        await site.until_gone(found)
        assert tuple(site.plugin.calls) == CALLS["unprepare errors"]
        assert site.kubelet.dra.books.claims == {}


async def test_the_claim_of_a_pod_that_is_deleted_by_force_is_unprepared_all_the_same(root: Path) -> None:
    async with dra_node(root) as site:
        found = await site.run_with("force", device="g2")
        await site.until_running(found)
        await site.kubelet.end(found.key, force=True)

        assert found.key not in site.kubelet.pods
        await site.plugin.until(*CALLS["pod force-deleted"])


async def test_another_claim_of_the_same_name_waits_until_the_first_is_unprepared(root: Path) -> None:
    name = "claim deleted and re-created with the same name"
    async with dra_node(root, msgspec.structs.replace(TIMES, stop_containers=0.5)) as site:
        first, second = pod("p-again1", g="again"), pod("p-again2", g="again")
        old = site.claim("again", first, device="g2")
        await site.kubelet.run(first)
        await site.until_running(first)
        ending = asyncio.create_task(site.kubelet.end(first.key, force=True))
        await site.kubelet.until(lambda: first.key not in site.kubelet.pods)
        new = site.claim("again", second, device="g2")
        await site.kubelet.run(second)

        assert await site.until_failed(second) == FAILURES[name][0].format(again=old)
        assert site.health(second) == {"claim:g": [(cdi(old, "g2"), "Healthy", "")]}
        await site.until_running(second)
        await ending
        assert tuple(site.plugin.calls) == CALLS[name]
        assert [claim.uid for claims in site.plugin.claims for claim in claims] == [old, old, new]
        assert site.health(second) == {"claim:g": [(cdi(new, "g2"), "Healthy", "")]}
