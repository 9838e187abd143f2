"""Claims of GPUs from the API server through the embedded kubelet to containers, by real agents."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import DraTimes, Kubelet, Pod, pod_from_object
from gpuplane.sandbox.kubelet.dra.apisource import ApiClaims
from tests.node.kubelet.dra.kubelet import DRIVER, kubelet_root, until

from .test_claims import Json, Site, result

FOUR = 4
TIMES = msgspec.structs.replace(
    DraTimes().scaled(0.05), dial=10.0, get_info=10.0, notify=10.0, call=45.0, wiping_delay=30.0, health_age=30.0
)


class Node(Site):
    """A node with a kubelet and an agent."""

    kubelet: Kubelet
    running: Agent

    def describe(self, lost: int | None = None) -> None:
        """As before, with the numbers of device nodes: a container is made with them."""
        super().describe(lost)
        new = self.machine.with_suffix(".new")
        new.write_text(self.machine.read_text() + "major_numbers: {nvidia: 195, nvidiactl: 195, nvidia-uvm: 511}\n")
        new.replace(self.machine)

    async def pod(self, name: str, *claims: str, containers: tuple[Json, ...] = ()) -> Pod:
        """Run a pod that uses these claims, which are reserved for it."""
        uses: tuple[Json, ...] = containers or (
            {"name": "c", "resources": {"claims": [{"name": each} for each in claims]}},
        )
        spec = {"nodeName": "n1", "containers": list(uses)}
        mine = [{"name": each, "resourceClaimName": each} for each in claims]
        made = self.server.put(f"/api/v1/namespaces/default/pods/{name}", {"spec": {**spec, "resourceClaims": mine}})
        assert made is not None
        for each in claims:
            claim = self.claim(each)
            reserved = [{"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}]
            path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{each}"
            self.server.put(path, {**claim, "status": {**claim["status"], "reservedFor": reserved}})
        found = pod_from_object(made)
        await self.kubelet.run(found)
        return found

    async def until_running(self, found: Pod) -> None:
        """Until the pod's containers run."""
        names, running = {each.name for each in found.containers}, self.kubelet.pods[found.key]
        try:
            await self.kubelet.until(lambda: running.started == names, 30)
        except TimeoutError:
            raise TimeoutError(f"{running.waiting_reasons}") from None

    def nodes(self, found: Pod, container: str = "c") -> list[str]:
        """The GPUs that a container sees."""
        paths = [each.path for each in self.kubelet.pods[found.key].created[container].device_nodes]
        return sorted(path for path in paths if path.removeprefix("/dev/nvidia").isdigit())

    def health(self, found: Pod) -> set[str]:
        """What the pod's status says of its claims."""
        status = self.kubelet.claim_health(found.key).get("c", {})
        return {each.health for claim in status.values() for each in claim}

    async def until_ready(self) -> None:
        """Until the driver is registered, connected and published."""
        await self.kubelet.until(lambda: DRIVER in self.kubelet.dra.health.entries)
        await until(lambda: len(self.slices()) == FOUR)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        root = await stack.enter_async_context(kubelet_root())
        server = await stack.enter_async_context(ApiServer())
        node = Node(root, server)
        claims = await stack.enter_async_context(ApiClaims(server.url, "n1", server.token))
        node.kubelet = Kubelet(root, claims=claims, cdi_dirs=root / "cdi", dra_times=TIMES)
        await stack.enter_async_context(node.kubelet)
        node.running = await stack.enter_async_context(node.agent())
        await node.until_ready()
        yield node


async def test_a_claim_becomes_what_its_container_sees(node: Node) -> None:
    node.create("train", result(2))
    train = await node.pod("p", "train")
    await node.until_running(train)

    assert node.nodes(train) == ["/dev/nvidia2"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in node.kubelet.pods[train.key].created["c"].env
    await node.kubelet.end(train.key)
    assert (node.kubelet.pods, node.files()) == ({}, [])


async def test_containers_see_the_requests_that_they_name(node: Node) -> None:
    node.create("both", result(0, "a"), result(1, "b"))
    uses = tuple(
        {"name": name, "resources": {"claims": claims}}
        for name, claims in (
            ("one", [{"name": "both", "request": "a"}]),
            ("other", [{"name": "both", "request": "b"}]),
            ("all", [{"name": "both"}]),
            ("none", []),
        )
    )
    found = await node.pod("p", "both", containers=uses)
    await node.until_running(found)

    seen = {each.name: node.nodes(found, each.name) for each in found.containers}
    assert seen == {
        "one": ["/dev/nvidia0"],
        "other": ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
        "none": [],
    }


async def test_a_pod_holds_a_claim_beside_a_resource_of_the_device_plugin(node: Node) -> None:
    await node.kubelet.until_capacity("nvidia.com/gpu", FOUR, FOUR)
    node.create("train", result(3))
    limits = {"claims": [{"name": "train"}], "limits": {"nvidia.com/gpu": "1"}}
    found = await node.pod("p", "train", containers=({"name": "c", "resources": limits},))
    await node.until_running(found)

    assert "/dev/nvidia3" in node.nodes(found)
    assert len(node.kubelet.devices.held_by(found.uid, "c")["nvidia.com/gpu"]) == 1


async def test_a_restart_of_kubelet_ends_slices_for_a_moment_and_no_claim(node: Node) -> None:
    node.create("train", result(0))
    train = await node.pod("p", "train")
    await node.until_running(train)
    before = node.kubelet.pods[train.key].created["c"]
    await node.kubelet.restart()
    await node.until_ready()
    node.kubelet.crash(train.key, "c")
    await node.until_running(train)

    assert node.kubelet.pods[train.key].created["c"] == before
    methods = [each.method for each in node.kubelet.trace]
    assert methods.count("NodePrepareResources") == 1
    await node.kubelet.end(train.key)
    assert (node.kubelet.pods, node.files()) == ({}, [])


async def test_a_gpu_that_is_lost_shows_in_the_status_of_the_pod_that_claims_it(node: Node) -> None:
    for gpu in (0, 1):
        node.create(f"train-{gpu}", result(gpu))
    pods = [await node.pod(f"p{gpu}", f"train-{gpu}") for gpu in (0, 1)]
    for each in pods:
        await node.until_running(each)
        await node.kubelet.until(lambda each=each: node.health(each) == {"Healthy"})  # type: ignore[misc]
    node.describe(lost=0)
    await node.kubelet.until(lambda: node.health(pods[0]) == {"Unhealthy"})

    assert node.health(pods[1]) == {"Healthy"}


async def test_an_agent_that_dies_keeps_its_pods_and_ends_them_later(node: Node) -> None:
    node.create("train", result(1))
    train = await node.pod("p", "train")
    await node.until_running(train)
    await node.running.kill()
    await node.kubelet.end(train.key)
    assert node.kubelet.pods[train.key].is_terminating
    await node.running.start()
    await node.kubelet.until(lambda: not node.kubelet.pods)

    await until(lambda: node.files() == [])
