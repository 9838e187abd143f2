"""An embedded kubelet with a toy DRA plugin, and claims and pods for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import msgspec

from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerStub
from gpuplane.sandbox.kubelet import Container, ContainerClaim, DraTimes, GivenClaims, Kubelet, Pod, PodClaim

from .toyplugin import DRIVER, POOL, ToyPlugin

NAMESPACE = "dra-lab"
FAILED = "Failed to prepare dynamic resources: prepare dynamic resources: "
TIMES = msgspec.structs.replace(
    DraTimes().scaled(0.02), dial=10.0, get_info=10.0, notify=10.0, call=45.0, pod_sync=0.5, health_age=30.0
)
"""Kubelet's times, 50 times shorter; but not those in which something has to be done on a busy machine."""
NEVER = 600.0


class Site:
    """`plugin` is registered with `kubelet`, whose claims are `claims`."""

    def __init__(self, root: Path, times: DraTimes, **kubelet: Any) -> None:
        self.root, self.claims = root, GivenClaims()
        (root / "cdi").mkdir(exist_ok=True)
        self.kubelet = Kubelet(root, claims=self.claims, dra_times=times, cdi_dirs=root / "cdi", **kubelet)
        self.plugin = ToyPlugin(root)

    def claim(self, name: str, *pods: Pod, device: str = "g4", share: str | None = None, **more: Any) -> str:
        """Give a claim that is allocated, and reserved for these pods; its UID."""
        uid = more.pop("uid", None) or str(uuid4())
        result = {"request": "gpu", "pool": POOL, "device": device}
        drivers = more.pop("drivers", (DRIVER,))
        results = [{**result, "driver": each, **({"shareID": share} if share else {})} for each in drivers]
        owners = [{"kind": "Pod", "uid": each.uid, "controller": True} for each in more.pop("owners", ())]
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": each.name, "uid": each.uid} for each in pods],
        }
        metadata = {"name": name, "namespace": NAMESPACE, "uid": uid, "ownerReferences": owners}
        self.claims.give({"metadata": metadata, "status": status | more})
        self.plugin.allocated[uid] = [(device, share)]
        return uid

    async def run_with(self, name: str, **more: Any) -> Pod:
        """Run a pod with a claim of its own, by the same name."""
        found = pod(f"p-{name}", g=name)
        self.claim(name, found, **more)
        await self.kubelet.run(found)
        return found

    async def until_prepared(self, found: Pod) -> None:
        """Until its claims are."""
        await self.kubelet.until(lambda: self.kubelet.pods[found.key].has_sandbox)

    async def until_running(self, found: Pod) -> None:
        """Until all its containers have started."""
        names = {each.name for each in found.containers}
        await self.kubelet.until(lambda: self.kubelet.pods[found.key].started == names)

    async def until_gone(self, found: Pod) -> None:
        """Until the pod is no more."""
        await self.kubelet.until(lambda: found.key not in self.kubelet.pods and not self.kubelet.workers.claims.ending)

    async def until_failed(self, found: Pod, times: int = 1) -> str:
        """Until Prepare has failed so often; what kubelet said last."""
        await self.kubelet.until(lambda: len(self.kubelet.pods[found.key].events) >= times)
        event = self.kubelet.pods[found.key].events[-1]
        assert event.reason == "FailedPrepareDynamicResources"
        return event.message.removeprefix(FAILED)

    def health(self, found: Pod, container: str = "c") -> dict[str, list[tuple[str, str, str]]]:
        """allocatedResourcesStatus: name → (resource, health, message)."""
        status = self.kubelet.claim_health(found.key).get(container, {})
        return {
            name: [(each.resource_id, each.health, each.message) for each in resources]
            for name, resources in status.items()
        }

    def environment(self, found: Pod, container: str = "c") -> tuple[str, ...]:
        """What the plugin's CDI devices gave a container."""
        return self.kubelet.pods[found.key].created[container].env

    async def listed(self) -> dict[str, dict[str, list[pb.DynamicResource]]]:
        """What pod-resources lists: pod → container → claims."""
        alone = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self.root}/pod-resources/kubelet.sock", alone) as channel:
            answer = await PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest())
        return {
            each.name: {container.name: list(container.dynamic_resources) for container in each.containers}
            for each in answer.pod_resources
        }


def pod(name: str, *containers: Container, **claims: str) -> Pod:
    """A pod with these claims: its name for one → the claim's. Its container "c" uses them all if nothing else is
    said."""
    uses = containers or (Container("c", claims=tuple(ContainerClaim(each) for each in claims)),)
    mine = tuple(PodClaim(each, claim) for each, claim in claims.items())
    return Pod(name, uses, namespace=NAMESPACE, claims=mine)


def cdi(uid: str, device: str) -> str:
    """The CDI device that the plugin makes for a claim."""
    return f"{DRIVER}/claim=c{uid}-{device}"


@asynccontextmanager
async def dra_node(
    root: Path, times: DraTimes = TIMES, *, registers: bool = True, **kubelet: Any
) -> AsyncIterator[Site]:
    """A kubelet, and a plugin that it has registered."""
    site = Site(root, times, **kubelet)
    async with site.kubelet:
        if registers:
            await site.plugin.start()
            await site.plugin.until_registered()
            await site.kubelet.until(lambda: bool(site.kubelet.dra.health.entries))
        try:
            yield site
        finally:
            site.plugin.slow.set()
            if hasattr(site.plugin, "_servers"):
                await site.plugin.stop()
