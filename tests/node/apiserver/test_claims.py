"""Claims: fetched by name, checked where kubelet and the ledger differ, and told what became of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.client import retry
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import claimstatus
from gpuplane.node.apiserver.claimchecks import check_claims
from gpuplane.node.apiserver.claims import ClaimReader
from gpuplane.node.apiserver.claimstatus import keep_claim_status
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprint
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, ClaimUnavailable, OpaqueConfig
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    FaultOccurred,
    LedgerStored,
    StatusChanged,
)
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.snapshot import Allocation, StoredLedger
from gpuplane.node.model.status import CLAIM_FILES_PART, CLAIM_STATUS_PART, CLAIMS_PART, ClaimFilesStatus
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.node.core.dra.nodes import claim, node
from tests.texts import as_shown

DRIVER = "gpu.nvidia.com"
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/train"
UID = "uid-1-of-train"  # as the sandbox makes them
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    monkeypatch.setattr(retry, "REFUSED_PAUSE", 0.05)
    monkeypatch.setattr(claimstatus, "WRITE_INTERVAL", 0.01)
    monkeypatch.setattr(claimstatus, "FIRST_WRITE_PAUSE", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


RESULT = {"request": "acc/big", "driver": DRIVER, "pool": "n1/gpu-0", "device": "gpu-0"}


def told(*results: Json, config: list[Json] | None = None) -> Json:
    """A claim as the scheduler of Kubernetes 1.36.2 was recorded to leave it (case first/first-fits)."""
    devices: Json = {"results": list(results), **({"config": config} if config else {})}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    return {
        "metadata": {
            "name": "train",
            "namespace": "default",
            "generation": 2,
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
            "finalizers": ["resource.kubernetes.io/delete-protection"],
        },
        "spec": {
            "devices": {"requests": [{"name": "acc", "firstAvailable": [{"name": "big", "deviceClassName": "gpu"}]}]}
        },
        "status": {
            "allocation": {
                "devices": devices,
                "nodeSelector": {"nodeSelectorTerms": terms},
                "allocationTimestamp": "2026-11-22T04:57:41Z",
            },
            "reservedFor": [{"resource": "pods", "name": "p0", "uid": "f1ed1584"}],
        },
    }


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "a" * 200_000, "A", "a\n"])
async def test_an_annotation_that_is_no_name_is_not_believed(server: ApiServer, kubeconfig: Path, name: str) -> None:
    """A user writes it, and it becomes a path in containers."""
    told_name = told(RESULT)
    told_name["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"] = name
    server.put(PATH, told_name)

    assert (await ClaimReader(kubeconfig).fetch(ClaimName("default", "train", UID), DRIVER)).pod_claim_name == ""


async def test_a_claim_is_read_as_the_scheduler_leaves_it(server: ApiServer, kubeconfig: Path) -> None:
    """Of another driver's devices and configuration nothing is read."""
    opaque = {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}
    config = [
        {"source": "FromClass", "requests": ["acc"], "opaque": {"driver": "other", "parameters": {"a": 1}}},
        {"source": "FromClaim", "requests": ["acc"], "opaque": opaque},
    ]
    others = {"request": "nic", "driver": "other", "pool": "p", "device": "d"}
    server.put(PATH, told(others, {**RESULT, "adminAccess": True}, config=config))
    reader = ClaimReader(kubeconfig)
    found = await reader.fetch(ClaimName("default", "train", UID), DRIVER)

    assert found == AllocatedClaim(
        ClaimName("default", "train", UID),
        (AllocatedDevice("acc/big", "n1/gpu-0", "gpu-0", is_admin=True),),
        (OpaqueConfig('{"kind":"GpuConfig"}', ("acc",)),),
        pods={"p0": "f1ed1584"},
        pod_claim_name="gpu",
        generation=2,
    )
    assert found.devices[0].main_request == "acc"
    await reader.close()


async def test_what_cannot_be_fetched_is_said(server: ApiServer, kubeconfig: Path) -> None:
    """No claim, another one of the same name, a refusal, a server that is away and comes back."""
    reader = ClaimReader(kubeconfig)

    async def why(uid: str = UID, name: str = "train") -> str:
        with pytest.raises(ClaimUnavailable) as caught:
            await reader.fetch(ClaimName("default", name, uid), DRIVER)
        return caught.value.reason.code

    assert await why() == "claim-not-found"
    assert await why(name="../../../../api/v1/secrets/x") == "claim-not-found"
    assert not any("secrets/" in each for each in server.requests)
    server.put(PATH, told(RESULT))
    assert await why("another") == "claim-not-found"
    server.failures.append(InjectedFailure(f"GET {PATH}", code=403, message="no"))
    assert await why() == "claim-not-fetched"
    await server.stop()
    assert await why() == "claim-not-fetched"
    await server.start()
    assert (await reader.fetch(ClaimName("default", "train", UID), DRIVER)).devices
    await reader.close()


@asynccontextmanager
async def running(part: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """A part that runs."""
    task = asyncio.ensure_future(part())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Claims:
    """The claims that an API server has; `asked` counts the questions."""

    def __init__(self, *claims: AllocatedClaim) -> None:
        self.found = {each.claim.name: each for each in claims}
        self.asked, self.is_away = 0, False

    async def fetch(self, name: ClaimName) -> AllocatedClaim:
        self.asked += 1
        if self.is_away:
            raise ClaimUnavailable(Reason(kind="problem", text="the server is away", code="claim-not-fetched"))
        if name.name not in self.found:
            raise ClaimUnavailable(Reason(kind="problem", text="there is none", code="claim-not-found"))
        return self.found[name.name]


def listed(name: str, gpu: int) -> Allocation:
    """As kubelet lists the container of a claim."""
    pod = PodRef(namespace="default", name="p", container="main")
    return Allocation(resource=DRIVER, devices=(f"GPU-{gpu}",), holder=pod, claim=f"default/{name}")


async def test_a_claim_that_nobody_unprepares_ends_once_it_is_gone() -> None:
    """Not before the API server says so, and not while kubelet lists it."""
    kept = Node(node(), now=lambda: 100.0)
    api = Claims(claim("a", 0), claim("b", 1), claim("c", 2), claim("d", 3))
    for each in api.found.values():
        kept.apply(ClaimPrepareRequested(each))
    api.is_away = True
    async with running(lambda: check_claims(kept, api.fetch, first=0.0)):
        assert await kept.wait_until(lambda snapshot: CLAIMS_PART in snapshot.statuses, 10)
        assert len(kept.snapshot.ledger.claims or {}) == 4
        api.is_away = False
        del api.found["a"]  # its object is gone
        api.found["b"] = claim("b2", 1, name="b")  # it came again
        del api.found["c"]
        kept.apply(AllocationsListed((listed("c", 2),), 200.0))
        assert await kept.wait_until(lambda snapshot: set(snapshot.ledger.claims or {}) == {"c", "d"}, 10)
        kept.apply(AllocationsListed((), 300.0))
        assert await kept.wait_until(lambda snapshot: set(snapshot.ledger.claims or {}) == {"d"}, 10)
        assert await kept.wait_until(lambda snapshot: CLAIMS_PART not in snapshot.statuses, 10)


async def test_a_lost_promise_is_made_again_for_a_pod_that_runs() -> None:
    """The same, so that its containers can start again; what is not ours, or not found, is said."""
    kept = Node(node(held=(listed("a", 0), listed("b", 1))), now=lambda: 100.0)
    api = Claims(claim("uid-a", 0, name="a"))
    async with running(lambda: check_claims(kept, api.fetch, soon=0.0)):
        assert await kept.wait_until(lambda snapshot: set(snapshot.ledger.claims or {}) == {"uid-a"}, 10)
        assert await kept.wait_until(lambda snapshot: CLAIMS_PART in snapshot.statuses, 10)
    [made] = (kept.snapshot.ledger.claims or {}).values()
    assert [(each.unit, each.cdi_id) for each in made.devices] == [("GPU-0", "k8s.gpu.nvidia.com/claim=uid-a-gpu-0")]


async def test_nobody_is_asked_about_claims_that_kubelet_lists() -> None:
    """An idle node sends nothing."""
    kept = Node(node(), now=lambda: 100.0)
    kept.apply(ClaimPrepareRequested(claim("uid-a", 0, name="a")))
    kept.apply(AllocationsListed((listed("a", 0),), 200.0))
    api = Claims()
    async with running(lambda: check_claims(kept, api.fetch, first=0.0, soon=0.0)):
        await asyncio.sleep(0.05)
    assert api.asked == 0


def prepared(kept: Node, asked: AllocatedClaim) -> None:
    """Have a claim prepared, all of it."""
    kept.apply(ClaimPrepareRequested(asked))
    kept.apply(LedgerStored(StoredLedger(ledger=kept.snapshot.ledger)))
    found = {uid: spec_fingerprint(spec) for uid, spec in claim_specs(kept.snapshot).items()}
    kept.apply(StatusChanged(CLAIM_FILES_PART, ClaimFilesStatus("ok", fingerprints=found)))


def conditions(server: ApiServer) -> dict[str, tuple[str, str]]:
    """Type of a condition → its status and reason, of the claim's only device."""
    devices = server.objects.get(parse_path(PATH))["status"].get("devices", ())
    return {each["type"]: (each["status"], each["reason"]) for device in devices for each in device["conditions"]}


async def test_the_status_says_ready_and_how_the_device_is(server: ApiServer, kubeconfig: Path) -> None:
    """It is written once for each change, by us and by the agent after us."""
    server.put(PATH, told({**RESULT, "request": "gpu"}))
    first = Node(node(), now=lambda: 100.0)
    async with running(lambda: keep_claim_status(first, ClaimReader(kubeconfig))):
        prepared(first, claim(UID, 0, name="train"))
        await server.until(lambda: conditions(server).get("Ready") == ("True", "Prepared"))
        assert conditions(server)["Healthy"] == ("True", "Healthy")
        first.apply(FaultOccurred(code="xid-79", gpu="GPU-0", message="it fell off the bus", at=100.0))
        await server.until(lambda: conditions(server)["Healthy"] == ("False", "Unhealthy"))
    writes = server.requests.count(f"PATCH {PATH}/status")
    assert writes == 2

    second = Node(first.snapshot, now=lambda: 100.0)
    async with running(lambda: keep_claim_status(second, ClaimReader(kubeconfig))):
        await asyncio.sleep(0.3)
        assert server.requests.count(f"PATCH {PATH}/status") == writes
        second.apply(ClaimUnprepareRequested(ClaimName("default", "train", UID)))
        await asyncio.sleep(0.05)
    assert conditions(server)["Ready"] == ("True", "Prepared")


async def test_a_missing_right_to_write_the_status_is_said(server: ApiServer, kubeconfig: Path) -> None:
    """And it is tried again."""
    server.put(PATH, told({**RESULT, "request": "gpu"}))
    refusals = InjectedFailure(f"PATCH {PATH}/status", code=422, message="no rights", times=2)
    server.failures.append(refusals)
    kept = Node(node(), now=lambda: 100.0)
    prepared(kept, claim(UID, 0, name="train"))
    async with running(lambda: keep_claim_status(kept, ClaimReader(kubeconfig))):
        assert await kept.wait_until(lambda snapshot: CLAIM_STATUS_PART in snapshot.statuses, 10)
        assert "dra" in as_shown(kept.snapshot.statuses[CLAIM_STATUS_PART].text)
        await server.until(lambda: "Ready" in conditions(server))
        assert await kept.wait_until(lambda snapshot: CLAIM_STATUS_PART not in snapshot.statuses, 10)
