"""Claims over a restart of the embedded kubelet, as with kubelet 1.36: what runs is not prepared again."""

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.sandbox.kubelet import Container, Kubelet
from gpuplane.sandbox.kubelet.dra import checkpoint

from .recorded import CALLS, CHECKPOINTS
from .site import NEVER, TIMES, Site, cdi, dra_node, pod
from .toyplugin import DRIVER

STATE = checkpoint.CHECKPOINT_FILE_NAME
SLOWLY = msgspec.structs.replace(TIMES, pod_sync=NEVER, first_sync=0.3, end_retry=0.2)


@pytest.mark.parametrize("data", CHECKPOINTS)
def test_the_checkpoint_is_kubelets(tmp_path: Path, data: str) -> None:
    recorded = json.dumps({"Data": data, "Checksum": CHECKPOINTS[data]}, separators=(",", ":")).encode()
    (tmp_path / STATE).write_bytes(recorded)

    assert checkpoint.encode(checkpoint.load(tmp_path / STATE)) == recorded


async def test_a_running_pod_is_not_prepared_again(root: Path) -> None:
    async with dra_node(root, SLOWLY) as site:
        tmpl = await site.run_with("tmpl", device="g0")
        await site.until_running(tmpl)
        failing = await site.run_with("err3")
        await site.until_failed(failing)
        (claim,) = site.kubelet.dra.books.of_pod(tmpl.uid)
        await restart(site)
        await site.until_failed(failing, 2)  # at once, and not after the time of a sync

        assert site.claims.deleted_slices == ["", ""]
        (restored,) = site.kubelet.dra.books.of_pod(tmpl.uid)
        assert (restored.uid, restored.drivers, restored.is_prepared) == (claim.uid, claim.drivers, False)
        assert (await site.listed())["p-tmpl"]["c"][0].claim_name == "tmpl"
        await site.kubelet.end(tmpl.key)
        await site.until_gone(tmpl)
        assert tuple(site.plugin.calls) == CALLS["kubelet restart"]
        assert site.health(failing) == {}


async def test_a_container_that_is_created_anew_after_a_restart_gets_its_devices(root: Path) -> None:
    async with dra_node(root, SLOWLY) as site:
        tmpl = await site.run_with("tmpl", device="g0")
        await site.until_running(tmpl)
        await restart(site, kill=True)
        site.kubelet.crash(tmpl.key, "c")
        await site.until_running(tmpl)

        assert tuple(site.plugin.calls) == CALLS["container killed after a kubelet restart"]
        assert site.environment(tmpl) == ("GOT_g0=tmpl",)


async def test_a_second_pod_after_a_restart_has_the_claim_prepared_again(root: Path) -> None:
    """That is kubelet's code: whether a claim is prepared is kept in memory, and devices are appended."""
    async with dra_node(root, SLOWLY) as site:
        first, second = pod("p-sh1", g="shared"), pod("p-sh2", g="shared")
        uid = site.claim("shared", first, second, device="g2")
        await site.kubelet.run(first)
        await site.until_running(first)
        await restart(site)
        await site.kubelet.run(second)
        await site.until_running(second)

        assert site.plugin.calls == ["prepare shared", "prepare shared"]
        assert site.kubelet.dra.books.cdi_ids(second, second.containers[0]) == [cdi(uid, "g2")] * 2
        assert site.environment(second) == ("GOT_g2=shared",)
        assert site.health(second) == {"claim:g": [(cdi(uid, "g2"), "Healthy", "")]}


async def test_claims_of_pods_that_went_while_kubelet_was_away_are_unprepared(root: Path) -> None:
    async with dra_node(root, SLOWLY) as site:
        found = await site.run_with("one")
        await site.until_running(found)
        await site.kubelet.stop()
        del site.kubelet.workers.pods[found.key]
        site.kubelet.inject(knows_pods=False)
        await site.kubelet.start()
        await site.plugin.until_registered(2)
        await site.kubelet.dra.reconcile()
        assert site.plugin.calls == ["prepare one"]  # as long as kubelet does not know its pods

        site.kubelet.inject(knows_pods=True)
        await site.plugin.until("prepare one", "unprepare one")
        await site.kubelet.until(lambda: not site.kubelet.dra.books.claims)


async def test_a_pod_that_ended_while_kubelet_died_is_unprepared(root: Path) -> None:
    async with dra_node(root, msgspec.structs.replace(SLOWLY, stop_containers=0.3)) as site:
        found = await site.run_with("one")
        await site.until_running(found)
        ending = asyncio.create_task(site.kubelet.end(found.key))
        await site.kubelet.until(lambda: site.kubelet.pods[found.key].is_terminating)
        await site.kubelet.kill()
        assert site.plugin.calls == ["prepare one"]
        await site.kubelet.start()
        await site.until_gone(found)
        await ending

        assert site.plugin.calls == ["prepare one", "unprepare one"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"Data":"{}","Checksum":1}', b"[]", b'{"Data":"{}"}'])
async def test_kubelet_does_not_start_with_a_damaged_checkpoint(root: Path, content: bytes) -> None:
    (root / STATE).write_bytes(content)

    with pytest.raises(OSError, match="drain node and remove DRA state file"):
        async with Kubelet(root):
            pass
    assert (root / STATE).read_bytes() == content


async def test_a_checkpoint_of_another_shape_is_refused_although_it_fits_its_checksum(root: Path) -> None:
    (root / STATE).write_bytes(json.dumps({"Data": "{}", "Checksum": zlib.crc32(b"{}")}).encode())

    with pytest.raises(OSError, match="drain node and remove DRA state file"):
        await Kubelet(root).start()


async def test_a_checkpoint_that_cannot_be_written_keeps_the_pod_waiting(root: Path) -> None:
    async with dra_node(root) as site:
        (root / STATE).unlink(missing_ok=True)
        (root / STATE).mkdir()
        (root / STATE / "in the way").write_text("")
        found = await site.run_with("one")

        assert (await site.until_failed(found)).startswith("checkpoint ResourceClaim state: ")
        assert site.plugin.calls == []


async def test_a_pod_that_is_deleted_during_prepare_is_unprepared(root: Path) -> None:
    async with dra_node(root) as site:
        found = await site.run_with("slow1")
        await site.plugin.until("prepare slow1")
        await site.kubelet.end(found.key)
        await site.until_gone(found)

        assert site.plugin.calls == ["prepare slow1", "unprepare slow1"]


async def test_a_pod_that_was_never_prepared_goes_without_a_call(root: Path) -> None:
    async with dra_node(root, registers=False) as site:
        found = await site.run_with("one")
        await site.until_failed(found)
        await site.kubelet.end(found.key)

        assert (site.kubelet.pods, site.kubelet.workers.claims.ending) == ({}, {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reservedFor": []}, "pod p-one ({pod}) is not allowed to use ResourceClaim one ({claim})"),
        ({"allocation": None}, "ResourceClaim one: not allocated"),
    ],
)
async def test_a_claim_that_is_not_the_pods_is_not_prepared(root: Path, change: dict[str, Any], why: str) -> None:
    async with dra_node(root) as site:
        found = pod("p-one", g="one")
        uid = site.claim("one", found, **change)
        await site.kubelet.run(found)

        assert await site.until_failed(found) == why.format(pod=found.uid, claim=uid)
        assert site.plugin.calls == []


async def test_a_claim_that_does_not_exist_is_not_prepared(root: Path) -> None:
    async with dra_node(root) as site:
        found = pod("p-one", g="one")
        await site.kubelet.run(found)

        missing = 'fetch ResourceClaim one: resourceclaims.resource.k8s.io "one" not found'
        assert await site.until_failed(found) == missing


async def test_a_claim_made_for_another_pod_is_not_prepared(root: Path) -> None:
    async with dra_node(root) as site:
        owner = pod("p-one", g="t")
        found = msgspec.structs.replace(
            owner, claims=tuple(msgspec.structs.replace(each, is_from_template=True) for each in owner.claims)
        )
        site.claim("t", found, owners=[pod("other")])
        await site.kubelet.run(found)

        theirs = "ResourceClaim dra-lab/t was not created for Pod dra-lab/p-one (Pod is not owner)"
        assert await site.until_failed(found) == theirs
        site.claim("t", found, owners=[found])
        await site.until_running(found)


async def test_a_pod_without_claims_meets_no_plugin(root: Path) -> None:
    async with dra_node(root) as site:
        found = pod("plain", Container("c"))
        await site.kubelet.run(found)
        await site.until_running(found)
        await site.kubelet.end(found.key)

        assert (site.plugin.calls, site.kubelet.pods) == ([], {})
        assert DRIVER in site.kubelet.dra.plugins.by_driver


async def restart(site: Site, kill: bool = False) -> None:
    times = len(site.plugin.statuses)
    await (site.kubelet.kill() if kill else site.kubelet.stop())
    await site.kubelet.start()
    await site.plugin.until_registered(times + 1)
    await site.kubelet.until(lambda: bool(site.kubelet.dra.health.entries))
