"""What our Node object asks for reaches the snapshot, through everything that an API server does to its clients."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.client import api, connection, retry
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import node as watching
from gpuplane.node.apiserver.node import (
    CONFIG_LABEL,
    DEPLOY_LABEL,
    DRAIN_ANNOTATION,
    MOST_DRAINS,
    RELEASE_ANNOTATION,
    parse_drains,
    parse_requests,
)
from gpuplane.node.core.requests import read_node_requests
from gpuplane.node.model.config import Config, NodeObjectRequests
from gpuplane.node.model.facts import Fact, LedgerLoaded, NodeRequestsChanged, StatusChanged
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import API_SERVER_PART, Status
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests import hostile
from tests.texts import as_shown

TESTDATA = Path(__file__).parent / "testdata"
NAME = "gpu-1"
PATH = f"/api/v1/nodes/{NAME}"


class Told(Node):
    """A node and every fact that it was told."""

    def __init__(self) -> None:
        super().__init__(Snapshot())
        self.facts: list[Fact] = []

    def apply(self, fact: Fact) -> None:
        self.facts.append(fact)
        super().apply(fact)

    @property
    def apiserver(self) -> Status | None:
        return self.snapshot.statuses.of(API_SERVER_PART)

    @property
    def standings(self) -> list[str]:
        """How the API server was said to stand, one after the other, without repetition."""
        told = [f.status.state for f in self.facts if isinstance(f, StatusChanged) and f.status is not None]
        return [each for i, each in enumerate(told) if i == 0 or told[i - 1] != each]

    async def comes_to(self, ready: Callable[[Snapshot], Any]) -> None:
        assert await self.wait_until(lambda snapshot: bool(ready(snapshot)), 60), (self.snapshot.config, self.apiserver)

    async def stands(self, standing: str, reason: str = "") -> None:
        def there(snapshot: Snapshot) -> bool:
            found = snapshot.statuses.of(API_SERVER_PART)
            return found is not None and found.state == standing and reason in as_shown(found.text)

        await self.comes_to(there)


@asynccontextmanager
async def following(kubeconfig: Path | None, name: str = NAME) -> AsyncIterator[Told]:
    """A node whose Node object is watched."""
    node = Told()
    task = asyncio.create_task(watching.watch_node(node, name, kubeconfig))
    try:
        yield node
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def node_object(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    runtime: str | None = None,
    kubelet: str = "",
) -> dict[str, Any]:
    """A Node object as others would write it."""
    info = {} if runtime is None else {"nodeInfo": {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": {}, "status": {"images": [], **info}}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))


@pytest.fixture
async def server(impatient: None) -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(PATH, node_object())
        yield server


@pytest.mark.parametrize(
    ("labels", "annotations", "config", "release"),
    [
        ({}, {}, "", ""),
        ({CONFIG_LABEL: "shared"}, {}, "shared", ""),
        ({CONFIG_LABEL: ""}, {}, "", ""),
        ({}, {RELEASE_ANNOTATION: "driver upgrade"}, "", f"annotation {RELEASE_ANNOTATION}: driver upgrade"),
        ({}, {RELEASE_ANNOTATION: ""}, "", f"annotation {RELEASE_ANNOTATION}: no reason given"),
        ({DEPLOY_LABEL: "true"}, {}, "", ""),
        ({DEPLOY_LABEL: "false"}, {}, "", f"label {DEPLOY_LABEL}=false"),
        ({DEPLOY_LABEL: "paused-for-driver-upgrade"}, {}, "", f"label {DEPLOY_LABEL}=paused-for-driver-upgrade"),
        ({DEPLOY_LABEL: "mine_paused-for-mig-change"}, {}, "", f"label {DEPLOY_LABEL}=mine_paused-for-mig-change"),
        ({"nvidia.com/gpu.deploy.operands": "false"}, {}, "", ""),
        (
            {CONFIG_LABEL: "a", DEPLOY_LABEL: "false"},
            {RELEASE_ANNOTATION: "why"},
            "a",
            f"annotation {RELEASE_ANNOTATION}: why; label {DEPLOY_LABEL}=false",
        ),
    ],
)
def test_labels_and_annotations_ask(
    labels: dict[str, str], annotations: dict[str, str], config: str, release: str
) -> None:
    """The label names a configuration; the annotation and the operator's label let go of the driver, and say so."""
    assert parse_requests(labels, annotations) == NodeObjectRequests(config_name=config, driver_release_reason=release)


@pytest.mark.parametrize(
    ("labels", "config", "has_manager"),
    [
        ({"nvidia.com/mig.config": "all-1g.10gb"}, "all-1g.10gb", False),
        ({"nvidia.com/mig.config": ""}, "", False),
        ({"nvidia.com/mig.config": "a b"}, "", False),
        ({"nvidia.com/mig.config": f"{'a' * 64}"}, "", False),
        ({"nvidia.com/mig.config.state": "success"}, "", False),
        ({"nvidia.com/gpu.deploy.mig-manager": "true"}, "", True),
        ({"nvidia.com/gpu.deploy.mig-manager": "paused-for-driver-upgrade"}, "", True),
        ({"nvidia.com/gpu.deploy.mig-manager": ""}, "", False),
        ({"nvidia.com/gpu.deploy.mig-manager": "false", "nvidia.com/mig.config": "x"}, "x", False),
    ],
)
def test_the_labels_that_request_mig_layouts(labels: dict[str, str], config: str, has_manager: bool) -> None:
    """A configuration by a legal name, and whether NVIDIA's MIG manager acts here."""
    assert parse_requests(labels, {}) == NodeObjectRequests(mig_config=config, has_mig_manager=has_manager)


@pytest.mark.parametrize(
    ("text", "wanted", "wrong"),
    [
        ("", {}, ()),
        (" ; ;", {}, ()),
        ("3", {"3": "no reason given"}, ()),
        ("3=fan noise; GPU-12=RMA;", {"3": "fan noise", "GPU-12": "RMA"}, ()),
        ("0:1=a=b ; 0000:07:00.0=; all = x", {"0:1": "a=b", "0000:07:00.0": "no reason given", "all": "x"}, ()),
        ("MIG-GPU-1/1/0=old", {"MIG-GPU-1/1/0": "old"}, ()),
        ("=x;3=y", {"3": "y"}, ("'=x' is not a device name",)),
        ("GPU 3=x", {}, ("'GPU 3=x' is not a device name",)),
        ("3 is bad, 4 too", {}, ("'3 is bad, 4 too' is not a device name",)),
        ("3=\x1b[2J\n\ud800!", {"3": "\ufffd[2J \ufffd!"}, ()),
        ("\x07=x", {}, ("'\ufffd=x' is not a device name",)),
        (f"{'9' * 101}=x", {}, (f"'{'9' * 59}…' is not a device name",)),
    ],
)
def test_the_annotation_that_drains(text: str, wanted: dict[str, str], wrong: tuple[str, ...]) -> None:
    """Devices and reasons; what names none is told, shortened and printable, and the others count."""
    assert parse_drains(text) == (wanted, wrong)
    assert parse_requests({}, {DRAIN_ANNOTATION: text}).drain_reasons == wanted


def test_an_annotation_as_long_as_it_can_be() -> None:
    """256 KiB of entries: the first ones count, and that is said. A reason is clipped."""
    wanted, wrong = parse_drains(";".join(f"{i}=x" for i in range(40_000)))

    assert list(wanted) == [str(i) for i in range(MOST_DRAINS)]
    assert wrong == (f"there are too many devices: the agent uses only the first {MOST_DRAINS}",)
    assert len(parse_drains(f"1={'x' * 250_000}")[0]["1"]) == 300


async def test_what_is_wrong_with_the_annotation_is_said(server: ApiServer, kubeconfig: Path) -> None:
    """With how the API server stands, once, until it is mended."""
    server.put(PATH, node_object({}, {DRAIN_ANNOTATION: "3=x;?=y"}))
    async with following(kubeconfig) as node:
        await node.stands("ok", DRAIN_ANNOTATION)
        assert node.apiserver and "'?=y'" in as_shown(node.apiserver.text)

        assert read_node_requests(node.snapshot) == NodeObjectRequests(drain_reasons={"3": "x"})

        server.put(PATH, node_object({}, {DRAIN_ANNOTATION: "3=x"}))
        await node.comes_to(lambda _: node.apiserver and as_shown(node.apiserver.text).endswith(server.url))
    assert node.standings == ["ok"]


async def test_the_first_word_and_each_change(server: ApiServer, kubeconfig: Path) -> None:
    """Nothing is assumed before the first word; each change of label or annotation is heard."""
    server.put(PATH, node_object({CONFIG_LABEL: "shared"}))
    async with following(kubeconfig) as node:
        assert read_node_requests(node.snapshot) is None

        await node.stands("ok", f"watches Node {NAME} of {server.url}")

        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="shared")

        server.put(PATH, node_object({CONFIG_LABEL: "whole"}, {RELEASE_ANNOTATION: "new driver"}))
        await node.comes_to(
            lambda s: (
                read_node_requests(s) == parse_requests({CONFIG_LABEL: "whole"}, {RELEASE_ANNOTATION: "new driver"})
            )
        )
        server.put(PATH, node_object())
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests())
    assert node.standings == ["ok"]


async def test_requests_are_no_news(server: ApiServer, kubeconfig: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is well is said once, not at each request."""
    caplog.set_level(logging.INFO)
    async with following(kubeconfig) as node:
        await node.stands("ok")
        server.end_streams()
        await server.until(lambda: server.requests.count("WATCH /api/v1/nodes") >= 2)
    assert [each.getMessage() for each in caplog.records if each.name != "asyncio"] == [
        f"apiserver: ok: watches Node {NAME} of {server.url}"
    ]


async def test_only_our_node_is_listened_to(server: ApiServer, kubeconfig: Path) -> None:
    """Other nodes' labels are theirs."""
    server.put("/api/v1/nodes/gpu-2", node_object({CONFIG_LABEL: "theirs"}))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        server.put("/api/v1/nodes/gpu-2", node_object({DEPLOY_LABEL: "false"}))
        server.put(PATH, node_object({CONFIG_LABEL: "ours"}))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(config_name="ours"))
    heard = [fact.requests for fact in node.facts if isinstance(fact, NodeRequestsChanged)]
    assert all(each in (NodeObjectRequests(), NodeObjectRequests(config_name="ours")) for each in heard)
    assert NodeObjectRequests(config_name="ours") in heard


async def test_heartbeats_and_bookmarks_change_nothing(server: ApiServer, kubeconfig: Path) -> None:
    """What kubelet writes into the status makes no generation."""
    async with following(kubeconfig) as node:
        await node.stands("ok")
        generation = node.snapshot.generation
        server.put(PATH, {**node_object(), "status": {"beat": 1}})
        server.bookmark()
        server.put(PATH, node_object({CONFIG_LABEL: "x"}))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(config_name="x"))

        assert node.snapshot.generation == generation + 1


NEW, OLD = "containerd://2.1.4", "containerd://1.7.27"


async def listed_again(server: ApiServer) -> None:
    """The stream has ended, and there is another."""
    await server.until(lambda: bool(server.watchers))
    streams = server.requests.count("WATCH /api/v1/nodes")
    server.end_streams()
    await server.until(lambda: server.requests.count("WATCH /api/v1/nodes") > streams and bool(server.watchers))


async def test_the_container_runtime_is_read_at_each_list(server: ApiServer, kubeconfig: Path) -> None:
    """It comes with the first word; heartbeats are not read for it, and the next list has what it is then."""
    server.put(PATH, node_object({CONFIG_LABEL: "a"}, runtime=OLD))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        assert (
            read_node_requests(node.snapshot)
            == node.snapshot.ledger.node_requests
            == NodeObjectRequests(config_name="a", container_runtime=OLD)
        )

        server.put(PATH, node_object({CONFIG_LABEL: "b"}, runtime=NEW))
        await node.comes_to(
            lambda s: read_node_requests(s) == NodeObjectRequests(config_name="b", container_runtime=OLD)
        )
        assert server.requests.count(f"GET {PATH}") == 1

        await listed_again(server)
        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="b", container_runtime=NEW)
    assert node.standings == ["ok"]


async def test_the_runtime_of_a_node_that_is_made_anew(server: ApiServer, kubeconfig: Path) -> None:
    """It is read again, in the same stream."""
    server.put(PATH, None)
    async with following(kubeconfig) as node:
        await node.stands("waiting")
        server.put(PATH, node_object(runtime=NEW))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(container_runtime=NEW))
        server.put(PATH, None)
        await node.stands("waiting")
        assert read_node_requests(node.snapshot) == NodeObjectRequests(container_runtime=NEW)

        server.put(PATH, node_object(runtime=OLD))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(container_runtime=OLD))
    assert server.requests.count("WATCH /api/v1/nodes") == 1


@pytest.mark.parametrize("told", [None, ""])
async def test_a_runtime_that_is_not_told_is_unknown_or_the_last(
    server: ApiServer, kubeconfig: Path, told: str | None
) -> None:
    """A Node that kubelet has not filled in says nothing of it, and what was known before stands."""
    server.put(PATH, node_object(runtime=told))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        assert read_node_requests(node.snapshot) == NodeObjectRequests()

        server.put(PATH, node_object(runtime=NEW))
        await listed_again(server)
        assert read_node_requests(node.snapshot) == NodeObjectRequests(container_runtime=NEW)

        server.put(PATH, node_object({CONFIG_LABEL: "x"}, runtime=told))
        await listed_again(server)
        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="x", container_runtime=NEW)


async def test_kubelets_version_is_read_with_the_runtime(server: ApiServer, kubeconfig: Path) -> None:
    """At each list; where it is not told, the last one stands."""
    server.put(PATH, node_object(runtime=NEW, kubelet="v1.28.9"))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        assert read_node_requests(node.snapshot) == NodeObjectRequests(container_runtime=NEW, kubelet_version="v1.28.9")

        server.put(PATH, node_object(runtime=NEW, kubelet="v1.36.2"))
        await listed_again(server)
        assert (
            read_node_requests(node.snapshot)
            == node.snapshot.ledger.node_requests
            == NodeObjectRequests(container_runtime=NEW, kubelet_version="v1.36.2")
        )

        server.put(PATH, node_object(runtime=OLD))
        await listed_again(server)
        assert read_node_requests(node.snapshot) == NodeObjectRequests(container_runtime=OLD, kubelet_version="v1.36.2")


async def test_a_runtime_that_may_not_be_asked_for(server: ApiServer, kubeconfig: Path) -> None:
    """Labels and annotations count all the same, the reason is said, and what an agent before us was told stands."""
    server.put(PATH, node_object({CONFIG_LABEL: "a"}, runtime=NEW))
    server.failures.append(InjectedFailure(f"GET {PATH}", times=2, code=403, message="nodes is forbidden"))
    async with following(kubeconfig) as node:
        await node.stands("ok", "403 nodes is forbidden")
        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="a")

        node.apply(LedgerLoaded(Ledger(node_requests=NodeObjectRequests(container_runtime=OLD))))
        node.snapshot = node.snapshot.but(config=Config())
        await listed_again(server)
        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="a", container_runtime=OLD)

        await listed_again(server)
        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="a", container_runtime=NEW)
        await node.comes_to(lambda _: node.apiserver and as_shown(node.apiserver.text).endswith(server.url))


@pytest.mark.parametrize(
    "trouble",
    [
        {"code": 500, "message": "etcd"},
        {"garbage": b"<html>"},
        {"garbage": b'{"status": 7}'},
        {"drop_connection": True},
    ],
    ids=str,
)
async def test_a_runtime_that_is_not_answered_is_asked_for_again(
    server: ApiServer, kubeconfig: Path, trouble: dict[str, Any]
) -> None:
    """Before its first answer nothing is told: half a word would be acted upon."""
    server.put(PATH, node_object({CONFIG_LABEL: "a"}, runtime=NEW))
    server.failures.append(InjectedFailure(f"GET {PATH}", **trouble))
    async with following(kubeconfig) as node:
        await node.stands("failing")
        assert read_node_requests(node.snapshot) is None

        await node.comes_to(
            lambda s: read_node_requests(s) == NodeObjectRequests(config_name="a", container_runtime=NEW)
        )


async def test_a_runtime_of_strange_characters_is_told_as_one_short_line(server: ApiServer, kubeconfig: Path) -> None:
    """It goes into logs."""
    server.put(PATH, node_object(runtime=f"x\n\x1b{'y' * 999}"))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        assert read_node_requests(node.snapshot) == NodeObjectRequests(container_runtime=f"x \ufffd{'y' * 56}…")


@pytest.mark.parametrize("end", ["drop", "finish", "expire"])
async def test_the_end_of_a_stream_loses_nothing(server: ApiServer, kubeconfig: Path, end: str) -> None:
    """Dropped, finished or expired (410): what changed meanwhile is heard, and nobody is alarmed."""
    async with following(kubeconfig) as node:
        await node.stands("ok")
        match end:
            case "drop":
                await server.drop_connections()
            case "finish":
                server.end_streams()
            case "expire":
                server.expire_history()
        server.put(PATH, node_object({CONFIG_LABEL: "after"}))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(config_name="after"))
    assert node.standings == ["ok"]


async def test_a_version_that_is_too_old_is_listed_anew(server: ApiServer, kubeconfig: Path) -> None:
    """410 at the opening of a stream, as a server that was restarted says it."""
    async with following(kubeconfig) as node:
        server.objects.version += 7
        await node.stands("ok")
        server.objects.compact()
        server.objects.version += 7
        await server.drop_connections()
        await server.until(lambda: server.requests.count("WATCH /api/v1/nodes") >= 2)
        server.put(PATH, node_object({CONFIG_LABEL: "after"}))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(config_name="after"))


async def test_away_and_back(server: ApiServer, kubeconfig: Path) -> None:
    """While the server is away the last word stays in force, and the reason and its beginning are said."""
    server.put(PATH, node_object({CONFIG_LABEL: "shared"}))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        await server.stop()
        await node.stands("failing", "Connect call failed")
        since = node.apiserver and node.apiserver.since

        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="shared")
        assert since

        server.put(PATH, node_object({CONFIG_LABEL: "whole"}))
        await server.start()
        await node.stands("ok")

        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="whole")


async def test_a_node_object_that_is_missing(server: ApiServer, kubeconfig: Path) -> None:
    """It is said that there is none, by name; it is heard when it comes, and its loss takes nothing back."""
    server.put(PATH, None)
    async with following(kubeconfig) as node:
        await node.stands("waiting", f"has no Node {NAME}")

        assert read_node_requests(node.snapshot) is None

        server.put(PATH, node_object({CONFIG_LABEL: "shared"}))
        await node.stands("ok")
        server.put(PATH, None)
        await node.stands("waiting", "--node-name")

        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="shared")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (InjectedFailure("GET *", code=403, message="nodes is forbidden"), "403 nodes is forbidden"),
        (InjectedFailure("GET *", code=401, message="Unauthorized", times=2), "401 Unauthorized"),
        (InjectedFailure("GET *", code=429, message="too many"), "429 too many"),
        (InjectedFailure("GET *", code=500, message="etcd"), "500 etcd"),
        (InjectedFailure("GET *", garbage=b"<html>a login page</html>"), "does not answer as an API server does"),
        (InjectedFailure("GET *", garbage=b'{"kind": "NodeList"}'), "does not answer as an API server does"),
        (InjectedFailure("GET *", garbage=b'{"x": ' + b"[" * 100_000), "does not answer as an API server does"),
        (InjectedFailure("GET *", garbage=b'{"items": [{"metadata": {"name": "\xff"}}]}'), "does not answer as an API"),
        (InjectedFailure("GET *", drop_connection=True), "disconnected"),
        (InjectedFailure("WATCH *", code=403, message="watch is forbidden"), "403 watch is forbidden"),
        (InjectedFailure("WATCH *", code=500, message="etcd"), "500 etcd"),
        (InjectedFailure("WATCH *", drop_connection=True), "disconnected"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
async def test_refusals_are_said_and_recovered_from(
    server: ApiServer, kubeconfig: Path, trouble: InjectedFailure, reason: str
) -> None:
    """Each trouble names the server and what went wrong; when it ends, all is well again."""
    server.failures.append(trouble)
    async with following(kubeconfig) as node:
        await node.stands("failing", reason)

        assert server.url in as_shown(node.apiserver.text if node.apiserver else "")

        await node.stands("ok")
    assert node.standings == ["failing", "ok"]


async def test_a_watch_that_is_never_allowed(server: ApiServer, kubeconfig: Path) -> None:
    """Where only the list is granted its word counts, and the standing does not swing to and fro."""
    server.put(PATH, node_object({CONFIG_LABEL: "a"}))
    server.failures.append(InjectedFailure("WATCH *", times=5, code=403, message="watch is forbidden"))
    async with following(kubeconfig) as node:
        await server.until(lambda: server.requests.count("WATCH /api/v1/nodes") == 4)

        assert read_node_requests(node.snapshot) == NodeObjectRequests(config_name="a")
        assert node.standings == ["failing"]


@pytest.mark.parametrize("slow", ["GET *", "WATCH *"])
async def test_an_answer_that_does_not_come(
    server: ApiServer, kubeconfig: Path, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for ever: a slow answer is given up, said, and asked for again."""
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.3)
    server.failures.append(InjectedFailure(slow, delay=60))
    async with following(kubeconfig) as node:
        await node.stands("failing", "does not answer within 0.3 s")
        await node.stands("ok")


@pytest.mark.parametrize(
    "limits", [{"STREAM_TIMEOUT": 0.3}, {"STREAM_LIFETIME": (0.1, 0.1), "STREAM_OVERTIME": 0.2}], ids=str
)
async def test_a_stream_that_died_silently(
    server: ApiServer, kubeconfig: Path, limits: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without bookmarks, or one that the server does not end in time, is given up without alarm."""
    for name, value in limits.items():
        monkeypatch.setattr(api, name, value)
    async with following(kubeconfig) as node:
        await server.until(lambda: server.requests.count("WATCH /api/v1/nodes") >= 3)
        await node.stands("ok")
    assert node.standings == ["ok"]


async def test_the_end_leaves_nothing_open(server: ApiServer, kubeconfig: Path) -> None:
    """A watch that is cancelled closes its connection."""
    async with following(kubeconfig) as node:
        await node.stands("ok")
        await server.until(lambda: len(server.watchers) == 1)
    await server.until(lambda: not server.watchers)


async def test_a_kubeconfig_that_cannot_be_used(server: ApiServer, tmp_path: Path) -> None:
    """Missing, malformed, for another server: the file is named; a good one that comes is taken up."""
    path = tmp_path / "kubeconfig"
    async with following(path) as node:
        await node.stands("failing", f"{path} cannot be used")
        good, token = server.kubeconfig(), f'"token":"{server.token}"'
        lost = '"client-certificate":"lost.pem","client-key":"lost.pem"'
        for text, reason in (
            ("just words", "cannot be used: it is not as a kubeconfig has to be: Expected `object`, got `str`"),
            ("{clusters: [], contexts: []}", "it has no current-context"),
            (good.replace(token, '"token":7'), "Expected `str | null`, got `int` - at `$.users[0].user.token`"),
            (good.replace(token, lost), "No such file"),
        ):
            path.write_text(text)
            await node.stands("failing", reason)

            assert str(path) in as_shown(node.apiserver.text if node.apiserver else "")

        path.write_text(good)
        await node.stands("ok")


async def test_neither_cluster_nor_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a cluster and without a kubeconfig nobody is asked, not even whom ~/.kube/config names."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with following(None) as node:
        await node.stands("failing", "no kubeconfig is set")


@pytest.fixture
async def cluster(impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """An API server behind TLS, found and signed to as a pod does it."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(TESTDATA / "server.pem")
    (tmp_path / "ca.crt").write_bytes((TESTDATA / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text("gpuplane")
    async with ApiServer(tls) as server:
        (tmp_path / "token").write_text(server.token)
        server.put(PATH, node_object())
        monkeypatch.setattr(connection, "SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        yield server


async def test_in_a_cluster(cluster: ApiServer) -> None:
    """The service account's token and certificate are used, over TLS."""
    async with following(None) as node:
        await node.stands("ok", "https://127.0.0.1")
        cluster.put(PATH, node_object({CONFIG_LABEL: "x"}))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(config_name="x"))


async def test_a_token_that_is_renewed(cluster: ApiServer, tmp_path: Path) -> None:
    """Kubelet writes a new token, the old one runs out: nobody notices."""
    async with following(None) as node:
        await node.stands("ok")
        (tmp_path / "token").write_text("second")
        cluster.token = "second"
        await cluster.drop_connections()
        cluster.put(PATH, node_object({CONFIG_LABEL: "x"}))
        await node.comes_to(lambda s: read_node_requests(s) == NodeObjectRequests(config_name="x"))
    assert node.standings == ["ok"]


async def test_a_token_that_is_renewed_between_list_and_watch(cluster: ApiServer, tmp_path: Path) -> None:
    """A token that is refused is read again at once."""
    cluster.failures.append(InjectedFailure("WATCH *", code=401, message="Unauthorized"))
    async with following(None) as node:
        await node.stands("ok")
    assert node.standings == ["ok"]


@pytest.mark.parametrize(
    ("authority", "reason"),
    [((TESTDATA / "other-ca.crt").read_text(), "CERTIFICATE_VERIFY_FAILED"), ("no certificate", "cannot be used")],
)
async def test_a_server_that_is_not_the_clusters(
    cluster: ApiServer, tmp_path: Path, authority: str, reason: str
) -> None:
    """A server that the cluster's authority does not vouch for is told nothing, no token least of all."""
    (tmp_path / "ca.crt").write_text(authority)
    async with following(None) as node:
        await node.stands("failing", reason)
    assert cluster.requests == []


async def test_a_pod_without_its_token(cluster: ApiServer, tmp_path: Path) -> None:
    """automountServiceAccountToken: false, for one."""
    (tmp_path / "token").unlink()
    async with following(None) as node:
        await node.stands("failing", f"{tmp_path}/token")
        (tmp_path / "token").write_text(cluster.token)
        await node.stands("ok")


@pytest.mark.parametrize("kind", hostile.KINDS)
@pytest.mark.parametrize("name", ["token", "namespace", "ca.crt"])
async def test_what_a_pod_has_of_the_cluster_may_be_no_file(
    cluster: ApiServer, tmp_path: Path, name: str, kind: str
) -> None:
    """Nobody waits for it or reads it without an end: it is named, and believed again when it is good."""
    good = (tmp_path / name).read_bytes()
    hostile.put(tmp_path / name, kind)
    async with following(None) as node:
        await node.stands("failing", f"{tmp_path / name}")
        hostile.write(tmp_path / name, good)
        await node.stands("ok")


@pytest.mark.parametrize("kind", hostile.KINDS)
@pytest.mark.parametrize("key", ["kubeconfig", "certificate-authority", "tokenFile", "client-certificate"])
async def test_what_a_kubeconfig_names_may_be_no_file(
    server: ApiServer, kubeconfig: Path, tmp_path: Path, key: str, kind: str
) -> None:
    """The kubeconfig itself, or a file in its directory."""
    good, path = kubeconfig.read_bytes(), tmp_path / key
    part = f'"token":"{server.token}"' if key in ("tokenFile", "client-certificate") else f'"server":"{server.url}"'
    kubeconfig.write_text(good.decode().replace(part, f'{part},"{key}":"{key}"'))
    hostile.put(path, kind)
    async with following(kubeconfig) as node:
        await node.stands("failing", str(path))
        hostile.write(kubeconfig, good)
        await node.stands("ok")
