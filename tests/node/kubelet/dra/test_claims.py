"""Prepare and Unprepare over the socket, in both versions, with a state directory and CDI files on disk."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.core.dra.preparing import is_claim_gone
from gpuplane.node.core.reports.claims import report_claims
from gpuplane.node.host.cdi.claimfiles import keep_claim_files
from gpuplane.node.host.state import keep_ledger_stored, load_ledger
from gpuplane.node.kubelet.dra import server
from gpuplane.node.kubelet.dra.server import MOST_CLAIMS, MOST_REFUSED, Claims, add_plugin
from gpuplane.node.kubelet.protocols import dra_v1_pb2 as v1
from gpuplane.node.kubelet.protocols import dra_v1beta1_pb2 as v1beta1
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import DRAPluginStub as V1Stub
from gpuplane.node.kubelet.protocols.dra_v1beta1_pb2_grpc import DRAPluginStub as V1Beta1Stub
from gpuplane.node.kubelet.sockets import serve_at
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, ClaimUnavailable
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, LedgerLoaded, MachineObserved
from gpuplane.node.model.machine import Fault
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CLAIM_REQUESTS_PART
from tests.node.core.dra.nodes import DRA, MACHINE, claim
from tests.node.kubelet.dra.kubelet import connected, kubelet_root, until

VERSIONS: list[tuple[ModuleType, Callable[[grpc.aio.Channel], Any]]] = [(v1, V1Stub), (v1beta1, V1Beta1Stub)]
A, B, C = (f"{digit}0e1d2c3-b4a5-4697-8879-6a5b4c3d2e1f" for digit in "abc")


class ApiServer:
    """The claims of an API server. `asked`: what was fetched. It answers only while `open` is set."""

    def __init__(self, *claims: AllocatedClaim) -> None:
        self.claims = {str(each.claim): each for each in claims}
        self.asked: list[ClaimName] = []
        self.open = asyncio.Event()
        self.open.set()

    async def fetch(self, name: ClaimName) -> AllocatedClaim:
        self.asked.append(name)
        await self.open.wait()
        try:
            return self.claims[str(name)]
        except KeyError:
            reason = Reason(kind="problem", text=f"there is no claim {name}", code="claim-not-found")
            raise ClaimUnavailable(reason) from None


class Agent:
    """What serves claims, with its disk."""

    def __init__(self, root: Path, api: ApiServer, deadline: float) -> None:
        self.root, self.api = root, api
        self.node = Node(Snapshot())
        self.claims = Claims(self.node, api.fetch, deadline)
        self.socket = root / "dra.sock"

    @property
    def files(self) -> list[str]:
        """All that is on disk of claims."""
        found = [*(self.root / "cdi").glob("*"), *(self.root / "state" / "claims").glob("*")]
        return sorted(each.name for each in found)


@asynccontextmanager
async def running(root: Path, api: ApiServer, deadline: float = 40.0, disk: bool = True) -> AsyncIterator[Agent]:
    """An agent that has looked and loaded, until the block ends. `disk`: whether it writes."""
    agent = Agent(root, api, deadline)
    state, cdi = root / "state", root / "cdi"
    for each in (state, cdi):
        each.mkdir(exist_ok=True)
    ledger, _ = load_ledger(state, "")
    for fact in (LedgerLoaded(ledger), ConfigLoaded(DRA), MachineObserved(MACHINE), AllocationsListed((), 0.0)):
        agent.node.apply(fact)
    parts = [keep_ledger_stored(agent.node, state), keep_claim_files(agent.node, cdi, 0.1)] if disk else []
    tasks = [asyncio.create_task(each) for each in parts]
    try:
        async with serve_at(agent.socket, partial(add_plugin, agent.claims)):
            yield agent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    async with kubelet_root() as root:
        yield root


async def prepare(agent: Agent, *uids: str, version: int = 0, name: str = "", namespace: str = "default") -> Any:
    """The answer to one Prepare. A claim is called as its UID."""
    pb, stub = VERSIONS[version]
    request = pb.NodePrepareResourcesRequest(
        claims=[pb.Claim(namespace=namespace, name=name or uid, uid=uid) for uid in uids]
    )
    async with connected(agent.socket) as channel:
        return await stub(channel).NodePrepareResources(request, timeout=45)


async def unprepare(agent: Agent, *uids: str, version: int = 0) -> dict[str, str]:
    """UID → error."""
    pb, stub = VERSIONS[version]
    request = pb.NodeUnprepareResourcesRequest(
        claims=[pb.Claim(namespace="default", name=uid, uid=uid) for uid in uids]
    )
    async with connected(agent.socket) as channel:
        answer = await stub(channel).NodeUnprepareResources(request, timeout=45)
        return {uid: each.error for uid, each in answer.claims.items()}


def code(error: str) -> str:
    """The code with which an error begins; "" for none."""
    return error.partition(":")[0]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_claim_gets_its_devices(root: Path, version: int) -> None:
    """The answer, once the promise and the CDI file are on disk; and nothing is left after Unprepare."""
    shared = AllocatedDevice("acc/big", "n1/gpu-1", "gpu-1", share_id="s-1")
    two = claim(A, 0)
    api = ApiServer(two.but(devices=(*two.devices, shared)))
    async with running(root, api) as agent:
        answer = (await prepare(agent, A, version=version)).claims[A]
        assert answer.error == ""
        assert [
            (list(each.request_names), each.pool_name, each.device_name, list(each.cdi_device_ids))
            for each in answer.devices
        ] == [
            (["gpu"], "n1/gpu-0", "gpu-0", [f"k8s.gpu.nvidia.com/claim={A}-gpu-0"]),
            (["acc"], "n1/gpu-1", "gpu-1", [f"k8s.gpu.nvidia.com/claim={A}-gpu-1"]),
        ]
        if version == 0:
            assert [each.share_id for each in answer.devices if each.HasField("share_id")] == ["s-1"]
        assert agent.files == [f"{A}.json", f"k8s.gpu.nvidia.com-claim_{A}.json"]
        spec = json.loads((root / "cdi" / f"k8s.gpu.nvidia.com-claim_{A}.json").read_text())
        assert [each["name"] for each in spec["devices"]] == [f"{A}-gpu-0", f"{A}-gpu-1"]
        assert await unprepare(agent, A, version=version) == {A: ""}
        assert agent.files == []
        assert is_claim_gone(agent.node.snapshot, A)


async def test_the_answer_is_the_same_after_all(root: Path) -> None:
    """Byte for byte: asked again, by the other version, after a restart, without an API server and without GPUs."""
    api = ApiServer(claim(A, 2, 0))
    async with running(root, api) as agent:
        first = (await prepare(agent, A)).claims[A].SerializeToString(deterministic=True)
        assert (await prepare(agent, A)).claims[A].SerializeToString(deterministic=True) == first
        assert (await prepare(agent, A, version=1)).claims[A].SerializeToString(deterministic=True) == first
    api = ApiServer()
    async with running(root, api) as agent:
        assert (await prepare(agent, A)).claims[A].SerializeToString(deterministic=True) == first, "it has no claim"
    api.open.clear()
    async with running(root, api, deadline=2.0) as agent:
        agent.node.apply(MachineObserved(MACHINE.but(gpus=None, faults=(Fault("driver-hang", "it hangs"),))))
        assert (await prepare(agent, A)).claims[A].SerializeToString(deterministic=True) == first


async def test_a_claim_that_is_allocated_anew_is_prepared_anew(root: Path) -> None:
    """Kubelet never had the old one unprepared; what it was given is the new owner's."""
    api = ApiServer(claim(A, 0), claim(B, 0))
    async with running(root, api) as agent:
        await prepare(agent, A)
        api.claims[f"default/{A}"] = claim(A, 1)
        [device] = (await prepare(agent, A)).claims[A].devices
        assert device.device_name == "gpu-1"
        assert (await prepare(agent, B)).claims[B].devices[0].device_name == "gpu-0"

        api.claims[f"default/{A}"] = claim(A, 2).but(is_allocated=False)
        assert code((await prepare(agent, A)).claims[A].error) == "claim-not-allocated"


async def test_each_claim_of_a_request_has_its_own_answer(root: Path) -> None:
    """What goes wrong with one is its error alone. A device is promised once, however many ask at a time."""
    api = ApiServer(claim(A, 0), claim(B, 0), claim(C, 1).but(is_allocated=False))
    async with running(root, api) as agent:
        answer = (await prepare(agent, A, B, C, "unknown", "no/uid")).claims
        assert answer.keys() == {A, B, C, "unknown", "no/uid"}
        assert sorted(code(answer[uid].error) for uid in (A, B)) == ["", "claim-device-in-use"]
        assert {uid: code(answer[uid].error) for uid in (C, "unknown", "no/uid")} == {
            C: "claim-not-allocated",
            "unknown": "claim-not-found",
            "no/uid": "claim-malformed",
        }
        assert [len(each.devices) for each in answer.values() if each.error] == [0] * 4


async def test_requests_at_the_same_time_get_the_same_answer(root: Path) -> None:
    """As of a kubelet that has lost its patience and asks again."""
    async with running(root, ApiServer(*(claim(uid, n) for n, uid in enumerate((A, B, C))))) as agent:
        asked = [prepare(agent, uid, version=n % 2) for n in range(6) for uid in (A, B, C)]
        answers = await asyncio.gather(*asked)
        found = {uid: set[bytes]() for uid in (A, B, C)}
        for each in answers:
            [(uid, answer)] = each.claims.items()
            found[uid].add(answer.SerializeToString(deterministic=True))
            assert not answer.error
        assert [len(each) for each in found.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("uid", "name", "namespace"),
    [
        ("../../etc/passwd", "a", "default"),
        ("a/b", "a", "default"),
        ("", "a", "default"),
        ("x" * 64, "a", "default"),
        ("ok\n", "a", "default"),
        (A, "../a", "default"),
        (A, "a?watch=1", "default"),
        (A, "x" * 254, "default"),
        (A, "A", "default"),
        (A, "a", "kube-system/../x"),
        (A, "a", "x" * 64),
        (A, "a", ""),
    ],
)
async def test_names_that_are_no_names_are_used_nowhere(root: Path, uid: str, name: str, namespace: str) -> None:
    """Nothing is fetched, and no file is made. Unprepare has nothing to undo."""
    api = ApiServer()
    async with running(root, api) as agent:
        request = v1.NodePrepareResourcesRequest(claims=[v1.Claim(uid=uid, name=name, namespace=namespace)])
        async with connected(agent.socket) as channel:
            answer = await V1Stub(channel).NodePrepareResources(request, timeout=45)
        assert {key: code(each.error) for key, each in answer.claims.items()} == {uid: "claim-malformed"}
        assert (api.asked, agent.files) == ([], [])
        assert await unprepare(agent, uid) == {uid: ""}


async def test_another_claim_of_the_same_name_is_refused(root: Path) -> None:
    """It was made anew with another UID; and a UID that is prepared belongs to one name."""
    async with running(root, ApiServer(claim(B, 0, name=A), claim(C, 1))) as agent:
        assert code((await prepare(agent, A)).claims[A].error) == "claim-not-found"
        assert (await prepare(agent, C)).claims[C].error == ""
        assert code((await prepare(agent, C, name="other")).claims[C].error) == "claim-duplicate-uid"


async def test_too_many_claims_are_refused_at_once(root: Path) -> None:
    api = ApiServer()
    async with running(root, api) as agent:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await prepare(agent, *(f"c{n}" for n in range(MOST_CLAIMS + 1)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert api.asked == []
        answers = (await prepare(agent, *(f"c{n}" for n in range(MOST_CLAIMS)))).claims
        assert {code(each.error) for each in answers.values()} == {"claim-not-found"}


async def test_an_api_server_that_hangs_delays_no_other_claim(root: Path) -> None:
    """Its claim gets an error in time; what is prepared is answered meanwhile."""
    api = ApiServer(claim(A, 0), claim(B, 1))
    async with running(root, api, deadline=1.0) as agent:
        assert not (await prepare(agent, A)).claims[A].error
        api.open.clear()
        waiting = asyncio.create_task(prepare(agent, B))
        await until(lambda: len(api.asked) == 2)
        assert not (await prepare(agent, A)).claims[A].error
        assert not waiting.done()
        assert code((await waiting).claims[B].error) == "claim-not-fetched"
        api.open.set()
        assert not (await prepare(agent, B)).claims[B].error


async def test_a_defect_is_the_answer_of_one_claim(root: Path) -> None:
    api = ApiServer(claim(A, 0))
    good = api.fetch

    async def fetch(name: ClaimName) -> AllocatedClaim:
        if name.uid == B:
            raise RuntimeError("a defect")
        return await good(name)

    async with running(root, api) as agent:
        agent.claims.fetch = fetch
        answer = (await prepare(agent, A, B)).claims
        assert not answer[A].error
        assert code(answer[B].error) == "claim-not-prepared"


async def test_nothing_is_answered_before_it_is_on_disk(root: Path) -> None:
    """Without a disk the claim gets an error in time, and its devices once the disk is there."""
    api = ApiServer(claim(A, 0))
    async with running(root, api, deadline=0.3, disk=False) as agent:
        assert code((await prepare(agent, A)).claims[A].error) == "claim-not-stored"
        keeping = asyncio.create_task(keep_ledger_stored(agent.node, root / "state"))
        assert code((await prepare(agent, A)).claims[A].error) == "cdi-not-written"
        writing = asyncio.create_task(keep_claim_files(agent.node, root / "cdi", 0.1))
        await until(lambda: len(agent.files) == 2)
        assert not (await prepare(agent, A)).claims[A].error
        for task in (keeping, writing):
            task.cancel()
        await asyncio.gather(keeping, writing, return_exceptions=True)
        assert code((await unprepare(agent, A))[A]) == "claim-cleanup-failed"


async def test_prepare_waits_for_what_is_not_known_yet(root: Path) -> None:
    """As after a start: the claim is answered when the machine has been looked at."""
    async with running(root, ApiServer(claim(A, 0))) as agent:
        agent.node.snapshot = agent.node.snapshot.but(machine=None)
        asked = asyncio.create_task(prepare(agent, A))
        await asyncio.sleep(0.2)
        assert not asked.done()
        agent.node.apply(MachineObserved(MACHINE))
        assert not (await asked).claims[A].error


async def test_a_client_that_hangs_up_leaves_nothing_half_done(root: Path) -> None:
    """Whenever it does: what waits for its claim ends, and the claim is prepared or it is not."""
    api = ApiServer(claim(A, 0))
    async with running(root, api) as agent:
        api.open.clear()
        for _ in range(5):
            asked = asyncio.create_task(prepare(agent, A))
            times = len(api.asked)
            await until(lambda times=times: len(api.asked) > times)  # type: ignore[misc]
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: not any("Claims" in repr(task) for task in asyncio.all_tasks()))
        assert not agent.node.snapshot.ledger.claims
        api.open.set()
        for wait in (0.0, 0.001, 0.002, 0.005, 0.01):
            asked = asyncio.create_task(prepare(agent, A))
            await asyncio.sleep(wait)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert (await unprepare(agent, A)) == {A: ""}
        assert not (await prepare(agent, A)).claims[A].error


@pytest.mark.parametrize("version", [0, 1])
async def test_unprepare_of_what_is_unknown_is_done(root: Path, version: int) -> None:
    """However often, and beside one that is known. Nothing is fetched for it."""
    api = ApiServer(claim(A, 0))
    async with running(root, api) as agent:
        await prepare(agent, A, version=version)
        for _ in range(2):
            assert await unprepare(agent, A, B, version=version) == {A: "", B: ""}
        assert (len(api.asked), agent.files) == (1, [])


async def test_a_prepare_and_an_unprepare_at_the_same_time_leave_one_state(root: Path) -> None:
    """Memory, disk and answers agree afterwards."""
    api = ApiServer(claim(A, 0))
    async with running(root, api, deadline=5.0) as agent:
        for _ in range(10):
            prepared, ended = await asyncio.gather(prepare(agent, A), unprepare(agent, A))
            assert code(prepared.claims[A].error) in ("", "claim-not-prepared")
            assert code(ended[A]) in ("", "claim-cleanup-failed")
            assert await unprepare(agent, A) == {A: ""}
            assert agent.files == []


async def test_a_device_is_free_for_the_next_claim_after_unprepare(root: Path) -> None:
    async with running(root, ApiServer(claim(A, 0), claim(B, 0))) as agent:
        assert not (await prepare(agent, A)).claims[A].error
        assert code((await prepare(agent, B)).claims[B].error) == "claim-device-in-use"
        assert await unprepare(agent, A) == {A: ""}
        assert not (await prepare(agent, B)).claims[B].error
        shutil.rmtree(root / "cdi")
        (root / "cdi").mkdir()
        await until(lambda: len(agent.files) == 2)  # it comes back by itself


async def test_a_claim_waits_for_a_device_that_a_container_is_leaving(root: Path) -> None:
    """What kubelet lists is some seconds old. A container that stays refuses it in the end."""
    assert MACHINE.gpus is not None
    held = Allocation("nvidia.com/gpu", (MACHINE.gpus[0].uuid,), PodRef("default", "p", "u", "c"))
    async with running(root, ApiServer(claim(A, 0), claim(B, 0))) as agent:
        agent.node.apply(AllocationsListed((held,), 1.0))
        asked = asyncio.create_task(prepare(agent, A))
        await until(lambda: bool(agent.api.asked))
        assert not (await asyncio.wait({asked}, timeout=0.3))[0]
        agent.node.apply(AllocationsListed((), 2.0))
        assert not (await asked).claims[A].error
        assert await unprepare(agent, A) == {A: ""}
        agent.node.apply(AllocationsListed((held,), 3.0))
        agent.claims.held_patience = 0.2
        assert code((await prepare(agent, B)).claims[B].error) == "claim-device-in-use"


def in_vain(agent: Agent) -> dict[str, str]:
    """UID → code of the claims that kubelet asks for in vain, as `gpuplane claims` shows them."""
    return {each.uid: each.code for each in report_claims(agent.node.snapshot) if each.state == "refused"}


async def test_a_claim_that_is_refused_is_shown_until_it_is_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself; what kubelet asks for no more is forgotten, and so are the oldest of many."""
    async with running(root, ApiServer(claim(A, 0), claim(B, 0))) as agent:
        await prepare(agent, A)
        await prepare(agent, B, C, "no/uid")
        assert in_vain(agent) == {B: "claim-device-in-use", C: "claim-not-found"}
        await unprepare(agent, A, C)
        assert in_vain(agent) == {B: "claim-device-in-use"}
        await prepare(agent, B)
        assert in_vain(agent) == {}
        assert CLAIM_REQUESTS_PART not in agent.node.snapshot.statuses

        await prepare(agent, *(f"c{n}" for n in range(MOST_REFUSED + 10)))
        assert len(in_vain(agent)) == MOST_REFUSED
        monkeypatch.setattr(server, "REFUSED_CLAIM_KEPT_SECONDS", 0.0)
        await prepare(agent, C)
        assert in_vain(agent) == {C: "claim-not-found"}
        agent.claims.forget_refused()
        assert in_vain(agent) == {}
