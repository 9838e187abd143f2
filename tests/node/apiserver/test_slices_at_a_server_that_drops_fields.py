"""ResourceSlices at an API server that drops fields: nothing that looks well is published in their place."""

from pathlib import Path
from typing import Any

from gpuplane.node.model.facts import ClaimPrepareRequested, DrainRequested
from gpuplane.node.model.health import Drain
from gpuplane.sandbox.apiserver.objects import ResourcePath
from gpuplane.sandbox.apiserver.server import ApiServer
from tests.node.apiserver.test_slices import DRAIN, PATH, RESTORE, all_published, publishing
from tests.node.core.dra.nodes import claim

Json = dict[str, Any]
OTHER_DRAIN = DrainRequested("GPU-2", Drain(reason="fan"))


def drop_taints(path: ResourcePath, new: Json) -> Json:
    """As a server with the gate DRADeviceTaints off: without a word."""
    if path.plural != "resourceslices":
        return new
    devices = [{key: each[key] for key in each if key != "taints"} for each in new["spec"].get("devices") or ()]
    return {**new, "spec": {**new["spec"], "devices": devices}}


async def test_a_device_whose_taint_is_dropped_is_withdrawn(tmp_path: Path) -> None:
    """Not even for a moment it is there without its taint; the slice stays; nothing is written again and again."""
    server = ApiServer(admit=drop_taints)
    seen: list[str] = []
    async with publishing(tmp_path, server=server) as site:
        await all_published(site)
        site.node.apply(DRAIN)
        await site.becomes(lambda: site.status().code == "slices-fields-dropped")
        assert "gpu-1" not in site.ours()
        assert len(site.slices()) == 4
        assert site.status().withdrawn == ("gpu-1",)
        assert site.status().differing == {"n1-gpu.nvidia.com-gpu-1": ("devices[gpu-1].taints",)}
        await site.rest(1.0)
        seen = site.writes()
        patches = [each for each in seen if each == f"PATCH {PATH}/n1-gpu.nvidia.com-gpu-1"]
        assert len(patches) == 3  # at first, as a dry run, and without the device
        events = [each["reason"] for path, each in server.objects._objects.items() if path.plural == "events"]
        assert events == ["ResourceSlicesIncomplete"]
        site.node.apply(RESTORE)
        await site.becomes(lambda: "gpu-1" in site.ours() and site.status().state == "ok")


async def test_what_a_claim_has_is_not_withdrawn(tmp_path: Path) -> None:
    """The scheduler would take it for free."""
    async with publishing(tmp_path, server=ApiServer(admit=drop_taints)) as site:
        await all_published(site)
        site.node.apply(ClaimPrepareRequested(claim("u1", 1)))
        site.node.apply(DRAIN)
        await site.becomes(lambda: site.status().code == "slices-fields-dropped")
        await site.rest(1.0)
        assert "gpu-1" in site.ours()
        assert site.status().withdrawn == ()
        before = len(site.writes())
        site.node.apply(OTHER_DRAIN)
        await site.becomes(lambda: "gpu-2" not in site.ours())
        await site.rest(1.0)
        assert len(site.writes()) <= before + 2
        assert not [each for each in site.writes()[before:] if "gpu-1" in each]


async def test_a_server_whose_gate_is_on_keeps_taints(tmp_path: Path) -> None:
    """It is asked once, and the taints are published."""
    async with publishing(tmp_path, server=ApiServer()) as site:
        await all_published(site)
        site.node.apply(DRAIN)
        await site.becomes(lambda: site.taints("gpu-1") and site.status().state == "ok")
        await site.rest()
        before = len(site.writes())
        site.node.apply(OTHER_DRAIN)
        await site.becomes(lambda: site.taints("gpu-2"))
        await site.rest()
        assert len(site.writes()) == before + 1
