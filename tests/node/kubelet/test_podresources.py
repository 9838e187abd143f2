"""What containers hold, asked of a kubelet by script: when, from where, and what is never believed too early."""

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.core.withholding import withheld_reasons
from gpuplane.node.kubelet import podresources, sockets
from gpuplane.node.kubelet.podresources import follow_allocations, is_urgent
from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.node.model.claims import AllocatedDevice, ClaimName, PreparedClaim, PreparedDevice
from gpuplane.node.model.config import DraSettings, NamingRule, Settings
from gpuplane.node.model.facts import (
    AllocateAnswered,
    ClaimUnprepareRequested,
    ConfigLoaded,
    LedgerLoaded,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import DeviceRecord, Finding, HealthRecords
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, POD_RESOURCES_PART, Status, Statuses, TurnStatus, plugin_part
from tests import hostile
from tests.removal import remove
from tests.texts import as_shown

GPU = "nvidia.com/gpu"
DEADLINE = 60.0
QUICK = {
    "CHECKPOINT_AFTER": 0.1,
    "FIRST_INTERVAL": 0.01,
    "SHORT_INTERVAL": 0.02,
    "LONG_INTERVAL": 3600,
    "ANSWER_TIMEOUT": 0.2,
}
RENAMED = ConfigLoaded(Settings(gpus=(NamingRule(pattern="*", name="nvidia.com/t4"),)))
TRAIN = ("ml/train", "main", GPU, ("GPU-0", "GPU-1"))
Holding = tuple[str, str, str, tuple[str, ...]]


def listing(*holdings: Holding) -> pb.ListPodResourcesResponse:
    """As kubelet lists: each device by itself, and once for each of its NUMA nodes."""
    pods = []
    for pod, container, resource, ids in holdings:
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=0)])
        devices = [pb.ContainerDevices(resource_name=resource, device_ids=[id], topology=topology) for id in ids]
        namespace, _, name = pod.partition("/")
        containers = [pb.ContainerResources(name=container, devices=[*devices, *devices])]
        pods.append(pb.PodResources(namespace=namespace, name=name, containers=containers))
    return pb.ListPodResourcesResponse(pod_resources=pods)


def held(*holdings: Holding) -> tuple[Allocation, ...]:
    return tuple(Allocation(resource=r, devices=ids, holder=PodRef.parse(f"{pod}/{c}")) for pod, c, r, ids in holdings)


class Kubelet:
    """Serves List with `answer`: bytes, so that it can also be garbage."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked, self.now, self.most = root, 0, 0, 0
        self.answer: Callable[[], Awaitable[bytes]] = self.list
        self.holdings: list[Holding] = []
        self.changed = asyncio.Event()

    async def list(self) -> bytes:
        return listing(*self.holdings).SerializeToString()

    async def hang(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def handle(self, request: bytes, context: Any) -> bytes:
        self.asked, self.now = self.asked + 1, self.now + 1
        self.most = max(self.most, self.now)
        self.changed.set()
        try:
            return await self.answer()
        finally:
            self.now -= 1

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.asked < times:
                self.changed.clear()
                await self.changed.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        path = self.root / "pod-resources/kubelet.sock"
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(self.handle)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})]
        )
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in a tenth of the time, but one question leads to the next only where that is urgent."""
    for name, seconds in QUICK.items():
        monkeypatch.setattr(podresources, name, seconds)


@pytest.fixture
def root() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="gp"))
    for name in ("pod-resources", "device-plugins"):
        (root / name).mkdir()
    yield root
    remove(root)


@pytest.fixture
def kubelet(root: Path) -> Kubelet:
    return Kubelet(root)


@pytest.fixture
async def node(root: Path) -> AsyncIterator[Node]:
    """A node with four GPUs that asks."""
    node = Node(Snapshot())
    node.apply(MachineObserved(Machine(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", model="T4") for i in range(4)))))
    node.apply(ConfigLoaded(Settings()))
    task = asyncio.create_task(follow_allocations(node, root))
    yield node
    assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def knows(node: Node, *holdings: Holding) -> None:
    assert await node.wait_until(lambda s: s.allocations == held(*holdings), DEADLINE), node.snapshot.allocations


async def stands(node: Node, standing: str, *reasons: str) -> None:
    def ready(snapshot: Snapshot) -> bool:
        now = snapshot.statuses.of(POD_RESOURCES_PART)
        return now is not None and now.state == standing and all(reason in as_shown(now.text) for reason in reasons)

    assert await node.wait_until(ready, DEADLINE), node.snapshot.statuses


def checkpointed(root: Path, *holdings: Holding) -> Path:
    """Kubelet's checkpoint, as kubelet 1.36.2 writes it, and with keys that a newer one may add."""
    entries = [
        {"PodUID": pod, "ContainerName": c, "ResourceName": r, "DeviceIDs": {"-1": list(ids)}, "AllocResp": "CgA="}
        for pod, c, r, ids in holdings
    ]
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {GPU: ["GPU-0"]}, "BootID": "newer"}
    path = root / "device-plugins/kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": data, "Checksum": 3126723484, "Newer": {}}))
    return path


async def test_devices_of_a_container_are_one_allocation_and_foreign_ones_are_dropped(
    node: Node, kubelet: Kubelet
) -> None:
    """Kubelet's order is that of a Go map; ours is always the same, so that the same answer changes nothing."""
    side = ("ml/train", "side", GPU, ("MIG-7", "GPU-3::1"))
    foreign = ("net/router", "main", "example.com/nic", ("0000:3b:02.1",))
    kubelet.holdings = [foreign, side, TRAIN]
    async with kubelet.running():
        await knows(node, TRAIN, ("ml/train", "side", GPU, ("GPU-3::1", "MIG-7")))
        generation = node.snapshot.generation
        kubelet.holdings.reverse()
        node.apply(AllocateAnswered(GPU, ("GPU-0",)))  # listed already: the next answer takes it back
        await knows(node, TRAIN, ("ml/train", "side", GPU, ("GPU-3::1", "MIG-7")))
        assert node.snapshot.generation == generation + 2


async def test_it_asks_only_while_somebody_waits_for_the_answer(node: Node, kubelet: Kubelet) -> None:
    """Once while nothing is withheld; again and again from a grant until kubelet lists it, and while pods hold devices
    under an old name until they end; one question at a time."""
    async with kubelet.running():
        await knows(node)
        await asyncio.sleep(5 * podresources.SHORT_INTERVAL)
        assert kubelet.asked == 1

        node.apply(AllocateAnswered(GPU, ("GPU-0", "GPU-1")))
        await kubelet.until_asked(4)
        kubelet.holdings = [TRAIN]
        await knows(node, TRAIN)
        asked = kubelet.asked
        await asyncio.sleep(5 * podresources.SHORT_INTERVAL)
        assert kubelet.asked <= asked + 1

        node.apply(RENAMED)
        await kubelet.until_asked(asked + 4)
        kubelet.holdings = []
        await knows(node)
        assert not is_urgent(node.snapshot)
    assert kubelet.most == 1


def test_a_name_that_another_may_be_giving_out_is_urgent() -> None:
    waiting = Snapshot(allocations=(), statuses=Statuses({plugin_part(GPU): Status("waiting")}))
    assert is_urgent(waiting)
    assert not is_urgent(waiting.but(statuses=Statuses({plugin_part(GPU): Status("ok")})))


def test_a_device_that_waits_for_its_pod_to_end_is_urgent() -> None:
    """Only kubelet tells of the end, and until then it is not known that the device could be given out again."""
    befallen = Finding(
        "xid-94", "", since=1.0, last_seen=1.0, is_event=True, confirmed=True, holders=(PodRef.parse("ml/train/main"),)
    )
    ill = Snapshot(allocations=held(TRAIN), ledger=Ledger(health=HealthRecords({"GPU-0": DeviceRecord((befallen,))})))
    assert is_urgent(ill)
    assert not is_urgent(ill.but(allocations=()))


async def test_without_kubelet_its_checkpoint_speaks_then_kubelet(node: Node, kubelet: Kubelet, root: Path) -> None:
    """Pods are named by UID until kubelet lists them."""
    path = checkpointed(root, ("1b2c", *TRAIN[1:]), ("9f9f", "gone", GPU, ("GPU-2",)))
    await knows(node, ("1b2c", *TRAIN[1:]), ("9f9f", "gone", GPU, ("GPU-2",)))
    await stands(node, "failing", "pod-resources/kubelet.sock", str(path))
    kubelet.holdings = [TRAIN]
    async with kubelet.running():
        await stands(node, "ok")


async def test_without_kubelet_and_checkpoint_nothing_is_held(node: Node, root: Path) -> None:
    await knows(node)
    await stands(node, "failing", f"{root}/device-plugins/kubelet_internal_checkpoint")


async def test_an_empty_checkpoint_is_one(node: Node, root: Path) -> None:
    checkpointed(root)
    await knows(node)


async def test_a_checkpoint_that_is_nested_deep_is_not_read(node: Node, root: Path) -> None:
    path = checkpointed(root)
    path.write_text('{"x":' * 20_000)
    await stands(node, "failing", f"{path} cannot be decoded")


async def test_an_entry_of_the_checkpoint_without_an_answer_is_one(node: Node, root: Path) -> None:
    """Nothing of what its container was told is known; what it holds is."""
    path = checkpointed(root, ("9f9f", "main", GPU, ("GPU-2::0",)))
    path.write_text(path.read_text().replace('"CgA="', "null"))
    await knows(node, ("9f9f", "main", GPU, ("GPU-2::0",)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b'{"\xff": 1}',
        b'{"Data": {"PodDeviceEntries": [{"PodUID": "\xff"}]}}',
        b'{"Data": 7}',
        b'{"Data": {"PodDeviceEntries": [{}]}}',
    ],
)
async def test_a_checkpoint_that_cannot_be_understood_is_not_taken_for_an_empty_one(
    node: Node, kubelet: Kubelet, root: Path, content: bytes
) -> None:
    """It is named, nothing is offered meanwhile, and kubelet's own word ends it."""
    checkpointed(root).write_bytes(content)
    await stands(node, "failing", "kubelet_internal_checkpoint")
    assert node.snapshot.allocations is None
    async with kubelet.running():
        await knows(node)
        await stands(node, "ok")


@pytest.mark.parametrize("kind", hostile.KINDS)
async def test_a_checkpoint_that_cannot_be_read_is_named(node: Node, kubelet: Kubelet, root: Path, kind: str) -> None:
    """Nobody waits for it, nothing is offered meanwhile, and kubelet's own word ends it."""
    hostile.put(checkpointed(root), kind)
    await stands(node, "failing", "kubelet_internal_checkpoint")
    assert node.snapshot.allocations is None
    async with kubelet.running():
        await knows(node)
        await stands(node, "ok")


async def test_a_plain_file_in_the_place_of_the_socket_is_named(node: Node, kubelet: Kubelet, root: Path) -> None:
    (root / "pod-resources/kubelet.sock").write_text("")
    await stands(node, "failing", "is not a socket")
    async with kubelet.running():
        await stands(node, "ok")


async def test_once_kubelet_has_listed_its_last_word_stays(node: Node, kubelet: Kubelet, root: Path) -> None:
    kubelet.holdings = [TRAIN]
    async with kubelet.running():
        await knows(node, TRAIN)
        node.apply(RENAMED)  # so that it goes on asking
    checkpointed(root)
    await stands(node, "failing", "pod-resources/kubelet.sock")
    await asyncio.sleep(2 * podresources.CHECKPOINT_AFTER)
    assert node.snapshot.allocations == held(TRAIN)
    assert "checkpoint" not in as_shown(node.snapshot.statuses[POD_RESOURCES_PART].text)


async def test_garbage_and_silence_are_failures_and_pass(node: Node, kubelet: Kubelet) -> None:
    async def garbage() -> bytes:
        return b"\xff" * 100

    kubelet.answer = garbage
    async with kubelet.running():
        await stands(node, "failing", "not a list of pod resources")
        kubelet.answer = kubelet.hang
        await stands(node, "failing", "Deadline")
        kubelet.answer = kubelet.list
        await stands(node, "ok")
    assert kubelet.most == 1


async def test_a_huge_answer_is_read(node: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than gRPC's 4 MiB: other plugins may have many devices."""
    monkeypatch.setattr(podresources, "ANSWER_TIMEOUT", DEADLINE)
    many = tuple(f"dev-{i:060}" for i in range(25_000))
    kubelet.holdings = [("kv/vm", "main", "devices.kubevirt.io/kvm", many), TRAIN]
    assert len(await kubelet.list()) > 4 * 1024 * 1024
    async with kubelet.running():
        await knows(node, TRAIN)


async def test_a_kubelet_that_has_just_started_is_not_believed_to_know_all_its_pods(
    node: Node, kubelet: Kubelet, root: Path
) -> None:
    """It lists none before the API server has told it of them, while their containers run on."""
    other = ("ml/other", "main", GPU, ("GPU-2",))
    kubelet.holdings = [TRAIN, other]
    async with kubelet.running():
        await knows(node, other, TRAIN)
        node.apply(RENAMED)
    kubelet.holdings = []
    async with kubelet.running():
        await stands(node, "ok")
        assert node.snapshot.allocations == held(other, TRAIN)
        kubelet.holdings = [TRAIN]  # heard of: from now on its word counts for this pod
        await kubelet.until_asked(kubelet.asked + 2)
        kubelet.holdings = []
        await knows(node, other)


async def test_what_was_granted_just_before_kubelet_restarted_counts(node: Node, kubelet: Kubelet, root: Path) -> None:
    """No list had shown it; the checkpoint has it."""
    async with kubelet.running():
        await knows(node)
        node.apply(AllocateAnswered(GPU, TRAIN[3]))
    checkpointed(root, ("1b2c", *TRAIN[1:]))
    async with kubelet.running():
        await knows(node, ("1b2c", *TRAIN[1:]))
        await stands(node, "ok")


async def test_an_agent_that_starts_with_a_young_kubelet_adds_the_checkpoint(
    kubelet: Kubelet, root: Path, node: Node
) -> None:
    checkpointed(root, ("1b2c", *TRAIN[1:]))
    async with kubelet.running():
        await knows(node, ("1b2c", *TRAIN[1:]))
        await stands(node, "ok")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet needs little time to hear of its pods."""
    monkeypatch.setattr(podresources, "KUBELET_START_PERIOD", 0.3)


@pytest.mark.usefixtures("soon")
async def test_a_young_kubelet_grows_up(kubelet: Kubelet, root: Path, node: Node) -> None:
    """What it does not list by then counts until its checkpoint does not have it either, which plugins ask it to write
    again now and then."""
    other = ("5d5d", "main", GPU, ("GPU-2",))
    checkpointed(root, ("1b2c", *TRAIN[1:]), other)
    node.apply(RENAMED)
    async with kubelet.running():
        await stands(node, "ok")
        await stands(node, "ok", "kubelet_internal_checkpoint")
        assert node.snapshot.allocations == held(("1b2c", *TRAIN[1:]), other)
        wanted = node.snapshot.checkpoint_rewrite
        assert wanted
        assert await node.wait_until(lambda s: s.checkpoint_rewrite != wanted, DEADLINE)
        checkpointed(root, other)
        await knows(node, other)
        checkpointed(root)
        await knows(node)
        await stands(node, "ok")


@pytest.mark.usefixtures("soon")
async def test_what_a_checkpoint_that_cannot_be_understood_may_have_counts(
    kubelet: Kubelet, root: Path, node: Node
) -> None:
    path = checkpointed(root, ("1b2c", *TRAIN[1:]))
    node.apply(RENAMED)
    async with kubelet.running():
        await stands(node, "ok")
        path.write_bytes(b"{")
        await stands(node, "ok", "kubelet_internal_checkpoint")
        assert node.snapshot.allocations == held(("1b2c", *TRAIN[1:]))
        path.unlink()
        await knows(node)


@pytest.mark.parametrize("step", [-1e6, 1e6])
async def test_a_step_of_the_wall_clock_makes_no_kubelet_old(
    kubelet: Kubelet, root: Path, node: Node, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """A kubelet that restarts is new when its socket changes, and the first one's checkpoint is heard anyway."""
    monkeypatch.setattr(podresources, "time", SimpleNamespace(time=lambda: time.time() + step))
    checkpointed(root, ("1b2c", *TRAIN[1:]))
    async with kubelet.running():
        await knows(node, ("1b2c", *TRAIN[1:]))
        kubelet.holdings = [TRAIN]
        node.apply(RENAMED)
        await knows(node, TRAIN)
    checkpointed(root)
    kubelet.holdings = []
    async with kubelet.running():
        await stands(node, "ok")
        assert node.snapshot.allocations == held(TRAIN)


async def test_an_answer_counts_only_for_the_kubelet_that_was_asked(kubelet: Kubelet, root: Path, node: Node) -> None:
    """Another stands there when the first one's answer comes."""
    path, aside = root / "pod-resources/kubelet.sock", root / "pod-resources/aside.sock"

    async def late() -> bytes:
        kubelet.answer = kubelet.hang
        path.rename(aside)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
        return listing(TRAIN).SerializeToString()

    kubelet.answer = late
    async with kubelet.running():
        await stands(node, "failing", "onnect")  # the other one does not answer
        assert node.snapshot.allocations is None or not node.snapshot.allocations


async def test_a_path_that_no_socket_can_have_is_named_and_never_asked(tmp_path: Path, capfd: Any) -> None:
    root = tmp_path / ("d" * 100)
    (root / "pod-resources").mkdir(parents=True)
    node = Node(Snapshot())
    task = asyncio.create_task(follow_allocations(node, root))
    await stands(node, "failing", f"{root}/pod-resources/kubelet.sock", str(sockets.LONGEST_PATH))
    await knows(node)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "path" not in capfd.readouterr().err


STANDBY_TOLD = StatusChanged(KUBELET_LOCK_PART, TurnStatus(state="waiting", text="process 1 serves", turn="standby"))
LATE = ("uid-late", "main", GPU, ("GPU-3",))


async def test_what_an_agent_before_us_granted_last_is_known_before_anything_is_offered(
    node: Node, kubelet: Kubelet, root: Path
) -> None:
    """Kubelet does not list it yet, but has it in its checkpoint. It is asked at once, however rarely otherwise."""
    node.apply(STANDBY_TOLD)
    async with kubelet.running():
        await knows(node)
        checkpointed(root, LATE)
        node.apply(LedgerLoaded(Ledger()))
        assert node.snapshot.allocations is None
        await knows(node, LATE)


async def test_an_answer_to_what_was_asked_before_the_take_over_does_not_count(
    node: Node, kubelet: Kubelet, root: Path
) -> None:
    """The agent before us could still grant something after that question."""
    node.apply(STANDBY_TOLD)
    async with kubelet.running():
        await knows(node)
        on_its_way, go_on = kubelet.asked + 1, asyncio.Event()

        async def slowly() -> bytes:
            await go_on.wait()
            return await kubelet.list()

        kubelet.answer = slowly
        node.apply(AllocateAnswered(GPU, ("GPU-0",)))  # so that kubelet is asked
        await kubelet.until_asked(on_its_way)
        checkpointed(root, LATE)
        node.apply(LedgerLoaded(Ledger()))
        go_on.set()
        await knows(node, LATE)
        assert kubelet.asked > on_its_way


async def test_a_kubelet_that_is_silent_at_the_take_over_is_known_by_its_checkpoint(
    node: Node, kubelet: Kubelet, root: Path
) -> None:
    node.apply(STANDBY_TOLD)
    async with kubelet.running():
        await knows(node)
    checkpointed(root, LATE)
    node.apply(LedgerLoaded(Ledger()))
    await knows(node, LATE)


def claiming(*uses: tuple[str, str, str, str, str]) -> pb.ListPodResourcesResponse:
    """As kubelet lists claims: (pod, claim, driver, pool, device) of the container main."""
    pods = []
    for pod, claim, driver, pool, device in uses:
        (namespace, _, name), (_, _, claim_name) = pod.partition("/"), claim.partition("/")
        found = pb.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)
        dynamic = pb.DynamicResource(claim_name=claim_name, claim_namespace=namespace, claim_resources=[found])
        containers = [pb.ContainerResources(name="main", dynamic_resources=[dynamic])]
        pods.append(pb.PodResources(namespace=namespace, name=name, containers=containers))
    return pb.ListPodResourcesResponse(pod_resources=pods)


def claimed(node: Node) -> set[tuple[str, str, tuple[str, ...], str]]:
    """(pod, claim, devices, driver) of what is listed for claims."""
    return {
        (each.holder.pod_name_or_uid, each.claim, each.devices, each.resource)
        for each in node.snapshot.allocations or ()
        if each.claim
    }


USES = (
    ("ml/train", "ml/a", "gpu.nvidia.com", "n1/gpu-0", "gpu-0"),
    ("ml/train", "ml/b", "gpu.example.com", "n1/gpu-1", "gpu-1"),
    ("ml/train", "ml/c", "gpu.nvidia.com", "n1/gpu-9", "gpu-9"),
    ("ml/train", "ml/d", "gpu.nvidia.com", "n1", "gpu-1"),
    ("ml/train", "ml/e", "gpu.nvidia.com", "n1/gpu-1/../x", "x"),
)
"""What a container holds of our driver, and four that are no GPUs of this node."""


def answering(kubelet: Kubelet, *uses: tuple[str, str, str, str, str]) -> None:
    """Have kubelet list claims beside its devices."""

    async def answer() -> bytes:
        both = listing(*kubelet.holdings)
        both.MergeFrom(claiming(*uses))
        return both.SerializeToString()

    kubelet.answer = answer


async def test_what_claims_hold_is_known_beside_what_plugins_hold(node: Node, kubelet: Kubelet) -> None:
    """Devices of other drivers, and names that no GPU of this node has, are left out."""
    kubelet.holdings = [("ml/other", "main", GPU, ("GPU-1",))]
    answering(kubelet, *USES)
    async with kubelet.running():
        assert await node.wait_until(lambda s: bool(s.allocations), DEADLINE)
        assert claimed(node) == {("ml/train", "ml/a", ("GPU-0",), "gpu.nvidia.com")}
        assert [each.devices for each in node.snapshot.allocations or () if not each.claim] == [("GPU-1",)]


async def test_a_claim_with_admin_access_holds_nothing(node: Node, kubelet: Kubelet) -> None:
    """As the ledger knows it, which also knows a GPU that is not there any more."""
    admin = PreparedDevice(AllocatedDevice("gpu", "n1/gpu-0", "gpu-0", is_admin=True), "GPU-0", "x")
    lost = PreparedDevice(AllocatedDevice("gpu", "n1/gpu-9", "gpu-9"), "GPU-9", "x")
    claims = {
        uid: PreparedClaim(ClaimName("ml", uid, uid), "gpu.nvidia.com", (device,))
        for uid, device in (("a", admin), ("c", lost))
    }
    node.apply(LedgerLoaded(Ledger(claims=claims)))
    answering(kubelet, *USES)
    async with kubelet.running():
        assert await node.wait_until(lambda s: bool(claimed(node)), DEADLINE)
        assert claimed(node) == {("ml/train", "ml/c", ("GPU-9",), "gpu.nvidia.com")}


async def test_claims_are_known_before_the_machine_is(kubelet: Kubelet, root: Path) -> None:
    """And asked about again when it is: nothing that is held is offered in between."""
    node = Node(Snapshot())
    answering(kubelet, *USES)
    task = asyncio.create_task(follow_allocations(node, root))
    async with kubelet.running():
        assert await node.wait_until(lambda s: bool(s.allocations), DEADLINE)
        assert claimed(node) == {
            ("ml/train", "ml/a", ("GPU-0",), "gpu.nvidia.com"),
            ("ml/train", "ml/c", ("GPU-9",), "gpu.nvidia.com"),
        }
        node.apply(ConfigLoaded(Settings(dra=DraSettings(driver="gpu.example.com"))))
        node.apply(MachineObserved(Machine(gpus=tuple(Gpu(index=n, uuid=f"GPU-{n}", model="T4") for n in range(3)))))
        assert await node.wait_until(lambda s: len(claimed(node)) == 1, DEADLINE)
        assert claimed(node) == {("ml/train", "ml/b", ("GPU-1",), "gpu.example.com")}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_claim_that_is_prepared_is_not_urgent(node: Node, kubelet: Kubelet) -> None:
    """Listed or not: kubelet tells of its end. Once it is unprepared its GPU waits for the end of the container."""
    device = PreparedDevice(AllocatedDevice("gpu", "n1/gpu-0", "gpu-0"), "GPU-0", "x")
    promise = PreparedClaim(ClaimName("ml", "a", "a"), "gpu.nvidia.com", (device,))
    node.apply(LedgerLoaded(Ledger(claims={"a": promise})))
    async with kubelet.running():
        assert await node.wait_until(lambda s: s.allocations is not None, DEADLINE)
        assert withheld_reasons(node.snapshot)
        assert not is_urgent(node.snapshot)
        answering(kubelet, USES[0])
        node.apply(AllocateAnswered(GPU, ("GPU-1",)))
        assert is_urgent(node.snapshot)
        assert await node.wait_until(lambda s: bool(claimed(node)), DEADLINE)
        kubelet.holdings = [("ml/other", "main", GPU, ("GPU-1",))]
        assert await node.wait_until(lambda s: not is_urgent(s), DEADLINE)
        assert withheld_reasons(node.snapshot)
        asked = kubelet.asked
        node.apply(ClaimUnprepareRequested(ClaimName("default", "a", "a")))
        assert is_urgent(node.snapshot)
        await kubelet.until_asked(asked + 2)
        answering(kubelet)
        assert await node.wait_until(lambda s: not claimed(node), DEADLINE)
