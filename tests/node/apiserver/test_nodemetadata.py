"""Labels and the annotation of our Node, by server-side apply, through all that an API server and others do to them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.client import connection, retry
from gpuplane.kubernetes.contracts.nodeannotation import decode_node_gpus
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import keeper
from gpuplane.node.apiserver import node as watching
from gpuplane.node.apiserver.nodemetadata import NodeMetadataWriter
from gpuplane.node.model.config import LabelTarget, NodeSettings, Settings
from gpuplane.node.model.facts import AllocateAnswered, AllocationsListed, ConfigLoaded, Fact, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import API_SERVER_PART, NODE_METADATA_PART, AnyPart
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.texts import as_shown

NODE = "/api/v1/nodes/n1"
APPLY = f"PATCH {NODE}"
COUNT, PRODUCT, ANNOTATION = "nvidia.com/gpu.count", "nvidia.com/gpu.product", "gpuplane.io/gpus"

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    monkeypatch.setattr(retry, "REFUSED_PAUSE", 0.05)
    monkeypatch.setattr(keeper, "WRITE_INTERVAL", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODE, {"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}})
        yield server


def count_labels(snapshot: Snapshot) -> Mapping[str, str] | None:
    """Labels that follow the number of GPUs; none are known before the first look."""
    if snapshot.machine is None:
        return None
    return {COUNT: str(len(snapshot.gpus))} | ({PRODUCT: "H100"} if snapshot.gpus else {})


def wanted(labels: LabelTarget = "node", *, annotation: bool = False) -> Fact:
    node = NodeSettings(labels=labels, annotation=annotation)
    return ConfigLoaded(Settings(device_list_strategy=("envvar",), node=node))


def machine(gpus: int) -> Fact:
    return MachineObserved(Machine(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}") for i in range(gpus))))


@asynccontextmanager
async def writing(
    kubeconfig: Path, *facts: Fact, labels: Any = count_labels, watched: bool = False
) -> AsyncIterator[Node]:
    node = Node(Snapshot())
    tasks = [asyncio.ensure_future(keeper.keep(node, NodeMetadataWriter("n1", labels), kubeconfig))]
    if watched:
        tasks.append(asyncio.ensure_future(watching.watch_node(node, "n1", kubeconfig)))
    for fact in facts:
        node.apply(fact)
    try:
        yield node
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def metadata(server: ApiServer) -> Json:
    found: Json = server.objects.get(parse_path(NODE))["metadata"]
    return found


def labels_of(server: ApiServer) -> Json:
    return {key: value for key, value in metadata(server).get("labels", {}).items() if key.startswith("nvidia.com/")}


async def stands(node: Node, part: AnyPart, standing: str, *reasons: str) -> str:
    def there(snapshot: Snapshot) -> bool:
        found = snapshot.statuses.get(part)
        return found is not None and found.state == standing and all(each in as_shown(found.text) for each in reasons)

    assert await node.wait_until(there, 60), node.snapshot.statuses
    return as_shown(node.snapshot.statuses[part].text)


async def settled(server: ApiServer) -> int:
    """How many writes there were, when none has come for a while."""
    count = -1
    while count != server.requests.count(APPLY):
        count = server.requests.count(APPLY)
        await asyncio.sleep(0.2)
    return count


async def test_labels_follow_the_node_and_nobody_elses_are_touched(server: ApiServer, kubeconfig: Path) -> None:
    """What we mean no more goes. Nothing is written before the labels are known, and nothing twice."""
    async with writing(kubeconfig, wanted()) as node:
        await asyncio.sleep(0.1)
        assert server.requests == []
        node.apply(machine(8))
        await server.until(lambda: labels_of(server) == {COUNT: "8", PRODUCT: "H100"})
        await stands(node, NODE_METADATA_PART, "ok", "2 labels of Node n1 are up to date")

        node.apply(machine(0))
        await server.until(lambda: labels_of(server) == {COUNT: "0"})
        assert metadata(server)["labels"]["kubernetes.io/hostname"] == "n1"
        assert await settled(server) == 2
        managers = {(each["manager"], each["operation"]) for each in metadata(server)["managedFields"]}
        assert managers == {("somebody", "Update"), ("gpuplane", "Apply")}


async def test_the_annotation(server: ApiServer, kubeconfig: Path) -> None:
    """It can be read back; a grant changes it; without change it is not written."""
    facts = (wanted("none", annotation=True), machine(2), AllocationsListed((), 0.0))
    async with writing(kubeconfig, *facts) as node:
        await server.until(lambda: ANNOTATION in metadata(server).get("annotations", {}))
        assert labels_of(server) == {}
        assert [gpu.uuid for gpu in decode_node_gpus(metadata(server)["annotations"][ANNOTATION]).gpus] == [
            "GPU-0",
            "GPU-1",
        ]

        node.apply(AllocateAnswered("nvidia.com/gpu", ("GPU-1",)))
        await server.until(lambda: "held" in metadata(server)["annotations"][ANNOTATION])
        [held] = decode_node_gpus(metadata(server)["annotations"][ANNOTATION]).holdings
        assert held.device == "1"
        node.apply(machine(2))
        assert await settled(server) == 2


async def test_while_labels_are_not_known_nothing_is_removed(server: ApiServer, kubeconfig: Path) -> None:
    """Neither is the annotation written: an apply says all that we mean."""
    async with writing(kubeconfig, wanted(), machine(8)):
        await server.until(lambda: labels_of(server) != {})
    facts = (wanted(annotation=True), machine(8), AllocationsListed((), 0.0))
    async with writing(kubeconfig, *facts, labels=lambda _: None):
        await asyncio.sleep(0.2)
        assert labels_of(server) == {COUNT: "8", PRODUCT: "H100"}
        assert server.requests.count(APPLY) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_is_switched_off_goes(server: ApiServer, kubeconfig: Path, restarted: bool) -> None:
    """Also what an agent before this one wrote; where there is nothing of ours, nothing is written."""
    facts = (wanted(annotation=True), machine(8), AllocationsListed((), 0.0))
    async with writing(kubeconfig, *facts) as node:
        await server.until(lambda: labels_of(server) != {})
        assert ANNOTATION in metadata(server)["annotations"]
        if not restarted:
            node.apply(wanted("none"))
            await server.until(lambda: labels_of(server) == {})
    async with writing(kubeconfig, wanted("none"), machine(8)) as node:
        await server.until(lambda: labels_of(server) == {} and "annotations" not in metadata(server))
        assert await settled(server) == 2
        assert NODE_METADATA_PART not in node.snapshot.statuses


async def test_a_restart_writes_nothing_that_is_there(server: ApiServer, kubeconfig: Path) -> None:
    """One look is enough."""
    for _ in range(3):
        async with writing(kubeconfig, wanted(), machine(8)) as node:
            await stands(node, NODE_METADATA_PART, "ok")
    assert server.requests.count(APPLY) == 1


async def test_somebody_else_had_the_label(server: ApiServer, kubeconfig: Path) -> None:
    """He is named, and it is taken over; the same value is shared, and stays when we go."""
    server.put(NODE, {"metadata": {"labels": {COUNT: "7", PRODUCT: "H100"}}}, "nfd-master")
    async with writing(kubeconfig, wanted(), machine(8)) as node:
        await stands(node, NODE_METADATA_PART, "ok", 'conflict with "nfd-master"', f".metadata.labels.{COUNT}")
        assert labels_of(server) == {COUNT: "8", PRODUCT: "H100"}
        node.apply(wanted("none"))
        await server.until(lambda: labels_of(server) == {PRODUCT: "H100"})


async def test_two_holders_of_one_label_do_not_go_in_circles(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's change stays until the next check, which puts ours back and says who it was."""
    monkeypatch.setattr(keeper, "CHECK_INTERVAL", 1.0)
    async with writing(kubeconfig, wanted(), machine(8)) as node:
        await stands(node, NODE_METADATA_PART, "ok")
        for _ in range(2):
            before = server.requests.count(APPLY)
            server.put(NODE, {"metadata": {"labels": {COUNT: "3"}}}, "a-script")
            await asyncio.sleep(0.3)
            assert labels_of(server) == {COUNT: "3"}
            await server.until(lambda: labels_of(server) == {COUNT: "8", PRODUCT: "H100"})
            await stands(node, NODE_METADATA_PART, "ok", '"a-script"', COUNT)
            assert server.requests.count(APPLY) == before + 2  # without and with force


async def test_a_node_that_is_made_again_is_written_again(server: ApiServer, kubeconfig: Path) -> None:
    """And one that is away is not made by us."""
    async with writing(kubeconfig, wanted(), machine(8), watched=True) as node:
        await server.until(lambda: labels_of(server) != {})
        await stands(node, API_SERVER_PART, "ok")
        server.put(NODE, None)
        await stands(node, API_SERVER_PART, "waiting")
        node.apply(machine(4))
        await stands(node, NODE_METADATA_PART, "failing", '404 nodes "n1" not found')
        assert not server.objects.has(parse_path(NODE))

        server.put(NODE, {"metadata": {"labels": {"a": "b"}}})
        await server.until(lambda: labels_of(server) == {COUNT: "4", PRODUCT: "H100"})


async def test_a_node_that_goes_between_look_and_write_is_not_made(server: ApiServer, kubeconfig: Path) -> None:
    """The apply names the UID that was seen."""
    server.failures.append(InjectedFailure(APPLY, delay=0.3))
    async with writing(kubeconfig, wanted(), machine(8)) as node:
        await server.until(lambda: APPLY in server.requests)
        server.put(NODE, None)
        await stands(node, NODE_METADATA_PART, "failing", " 409 ")
        assert not server.objects.has(parse_path(NODE))


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (InjectedFailure("GET *", code=403, message="cannot get"), "deploy/components/node-labels has the rights"),
        (InjectedFailure("PATCH *", code=403, message="denied"), "403 denied"),
        (InjectedFailure("PATCH *", code=422, message="invalid"), "422 invalid"),
        (InjectedFailure("PATCH *", code=500, message="etcd"), "500 etcd"),
        (InjectedFailure("PATCH *", drop_connection=True), "disconnected"),
        (InjectedFailure("PATCH *", lose_response=True), "disconnected"),
        (InjectedFailure("PATCH *", delay=60), "does not answer within 0.3 s"),
        (InjectedFailure("GET *", garbage=b"<html>"), "does not answer as an API server does"),
        (InjectedFailure("GET *", garbage=b'{"metadata": {"managedFields": 7}}'), "does not answer as an API server"),
    ],
)
async def test_a_refusal_is_said_and_tried_again(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, trouble: InjectedFailure, reason: str
) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.3)
    server.failures.append(trouble)
    async with writing(kubeconfig, wanted(), machine(8)) as node:
        await stands(node, NODE_METADATA_PART, "failing", reason)
        await stands(node, NODE_METADATA_PART, "ok")
        assert labels_of(server) == {COUNT: "8", PRODUCT: "H100"}


async def test_managed_fields_of_others_shapes(server: ApiServer, kubeconfig: Path) -> None:
    """What the server says of fields that we do not know is not ours, and no error."""
    fields = {"f:metadata": {".": {}, "f:labels": 7, "f:annotations": {".": {}}}}
    entry = {"manager": "gpuplane", "operation": "Apply", "fieldsV1": fields}
    odd = {"metadata": {"uid": "u", "managedFields": [entry, {"manager": "x", "operation": "Apply"}]}}
    server.failures.append(InjectedFailure("GET *", garbage=json.dumps(odd).encode()))
    async with writing(kubeconfig, wanted("none"), machine(8)) as node:
        await server.until(lambda: f"GET {NODE}" in server.requests)
        assert await settled(server) == 0
        assert NODE_METADATA_PART not in node.snapshot.statuses


async def test_a_label_that_is_not_legal_costs_itself_only(server: ApiServer, kubeconfig: Path) -> None:
    """It is named; so is one that is not ours to write."""
    odd = {COUNT: "8", PRODUCT: "x" * 64, "nvidia.com/gpu.machine": "-a", "kubernetes.io/os": "linux", "plain": "1"}
    odd |= {"nvidia.com/device-plugin.config": "a", "nvidia.com/gpu.deploy.driver": "true", "gpuplane.io/": "1"}
    async with writing(kubeconfig, wanted(), machine(8), labels=lambda _: odd) as node:
        await stands(node, NODE_METADATA_PART, "ok", "1 label of", "left out", "and 4 more")
        assert labels_of(server) == {COUNT: "8"}


async def test_without_wishes_an_api_server_that_refuses_is_nothing_to_say(server: ApiServer, kubeconfig: Path) -> None:
    server.failures.append(InjectedFailure("GET *", times=9, code=403))
    async with writing(kubeconfig, wanted("none"), machine(8)) as node:
        await server.until(lambda: f"GET {NODE}" in server.requests)
        await asyncio.sleep(0.2)
        assert NODE_METADATA_PART not in node.snapshot.statuses
        assert server.requests.count(f"GET {NODE}") == 1
