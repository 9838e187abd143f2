"""What a kubelet could give out, and what it lists as held, as devices go and come: as recorded from 1.36.2.

The recording has, for each cause, the moments at which an answer was another one, in seconds after it. Compared is what
kubelet says in the end. Left out: the init container (its side-car is a pod of its own here); and the pods after
kubelet's restart, of which that kubelet had not heard yet, and the sandbox's has.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod

from .plugin import CHECKPOINT, DEADLINE, DEV, Plugin, device, node
from .test_conformance_restart import lister

if TYPE_CHECKING:
    from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerAsyncStub

RECORDED = Path(__file__).parent / "testdata/kubernetes-1.36/withdraw.jsonl"
IDS = ("d0", "d1", "d2", "d3", "d4", "d5")

Json = dict[str, Any]
Cause = Callable[[], Awaitable[None]]


class Site:
    """A kubelet, its plugin, and what brings each recorded case about."""

    def __init__(self, root: Path, kubelet: Kubelet, plugin: Plugin) -> None:
        self.root, self.kubelet, self.plugin = root, kubelet, plugin

    async def baseline(self) -> None:
        """The pods of the recording, with the devices that it shows."""
        for pod, container, *ids in (
            ("full", "app-one", "d2", "d4"),
            ("full-side", "side", "d3"),
            ("guaranteed", "g", "d5"),
        ):
            self.plugin.advice = ids
            await self.kubelet.run(Pod(pod, (Container(container, {DEV: len(ids)}),)))

    def lists(self, *, without: tuple[str, ...] = (), unhealthy: str = "") -> Cause:
        """The plugin sends a list."""

        async def send() -> None:
            self.plugin.send(
                *(device(id, "Unhealthy" if id == unhealthy else "Healthy") for id in IDS if id not in without)
            )

        return send

    async def end_of_pod(self) -> None:
        await self.kubelet.end("default/guaranteed")

    async def register(self) -> None:
        await self.plugin.stop()
        await self.plugin.serve()
        await self.plugin.register()

    def causes(self) -> Iterator[tuple[str, Cause]]:
        """What happens, in the words of the recording, in its order."""
        yield "baseline", self.baseline
        yield "free device d0 becomes Unhealthy", self.lists(unhealthy="d0")
        yield "free device d0 Healthy again", self.lists()
        yield "free device d0 withdrawn from the list", self.lists(without=("d0",))
        yield "held device d5 (pod guaranteed) becomes Unhealthy", self.lists(without=("d0",), unhealthy="d5")
        yield "held device d5 withdrawn from the list", self.lists(without=("d0", "d5"))
        yield "pod guaranteed deleted while its device is withdrawn", self.end_of_pod
        yield "held device d5 and free device d0 back", self.lists()
        yield "plugin stops (stream lost)", self.plugin.stop
        yield "plugin serves and registers again", self.register
        yield "kubelet restarted (SIGTERM), plugin does not register", self.kubelet.restart
        yield "plugin registers after the kubelet restart", self.register

    async def answers(self, stub: "PodResourcesListerAsyncStub") -> Json:
        """What could be given out; (pod, container, device) of what is held; what the checkpoint has as registered."""
        could = await stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=10)
        pods = await stub.List(pb.ListPodResourcesRequest(), timeout=10)
        checkpoint = json.loads((self.root / "device-plugins" / CHECKPOINT).read_bytes())
        return {
            "allocatable": sorted(id for each in could.devices for id in each.device_ids),
            "list": sorted(
                [pod.name.removesuffix("-side"), container.name, id]
                for pod in pods.pod_resources
                for container in pod.containers
                for each in container.devices
                for id in each.device_ids
            ),
            "registered": sorted(checkpoint["Data"]["RegisteredDevices"][DEV]),
        }


def recorded() -> Iterator[tuple[str, Json]]:
    """(cause, what kubelet said in the end) of each case."""
    for line in RECORDED.read_text().splitlines():
        case = json.loads(line)
        said: Json = {}
        for moment in case["moments"]:
            said |= {key: sorted(value) for key, value in moment.items() if key != "t"}
        if "kubelet restart" in case["what"]:
            said.pop("list")
        yield case["what"], said


async def test_kubelet_says_what_it_could_give_out(root: Path) -> None:
    """Held devices, too, while they are healthy; nothing of what is unhealthy, withdrawn or without a stream."""
    async with node(root, *IDS) as (kubelet, plugin):
        site = Site(root, kubelet, plugin)
        for (what, cause), (case, said) in zip(site.causes(), recorded(), strict=True):
            assert what == case
            await cause()
            async with lister(root) as stub:
                found: Json = {}
                try:
                    async with asyncio.timeout(DEADLINE):
                        while found != said:
                            await asyncio.sleep(0.02)
                            found = {key: each for key, each in (await site.answers(stub)).items() if key in said}
                except TimeoutError:
                    raise AssertionError(f"{what}: {found} is not {said}") from None
