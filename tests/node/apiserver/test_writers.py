"""The condition and the Events of our Node, through everything that an API server does to its clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as models

from gpuplane.kubernetes.client import connection, retry
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import events as telling
from gpuplane.node.apiserver import node as watching
from gpuplane.node.apiserver import report
from gpuplane.node.core.reports import readycondition
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, LedgerStored, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot, StoredLedger
from gpuplane.node.model.status import (
    API_SERVER_PART,
    EVENTS_PART,
    NODE_CONDITION_PART,
    STATE_DIRECTORY_PART,
    AnyPart,
    Status,
    TurnStatus,
    plugin_part,
)
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.texts import as_shown

NODE = "/api/v1/nodes/n1"
EVENTS_PATH = "/api/v1/namespaces/default/events"
GPU, READY = "nvidia.com/gpu", "gpuplane.io/GPUReady"
PATCHES = "PATCH /api/v1/nodes/n1/status"

Json = dict[str, Any]
Writer = Callable[[Any, str, Path | None], Awaitable[None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    monkeypatch.setattr(report, "WRITE_INTERVAL", 0.01)
    monkeypatch.setattr(telling, "WRITE_INTERVAL", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODE, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        yield server


@asynccontextmanager
async def writing(kubeconfig: Path, *writers: Writer) -> AsyncIterator[Node]:
    """A node with two GPUs that these write for."""
    async with AsyncExitStack() as stack:
        node = Node(Snapshot())
        for writer in writers:
            task = asyncio.ensure_future(writer(node, "n1", kubeconfig))
            stack.push_async_callback(_ended, task)
        await asyncio.sleep(0)  # they begin before anything is known, as in the agent
        node.apply(ConfigLoaded(Settings()))
        node.apply(AllocationsListed((), 0.0))
        look(node)
        yield node


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def look(node: Node, *ill: int) -> None:
    """A look at two GPUs, of which some wait for a reset."""
    faults = (Fault("remap-pending", "2 rows"),)
    gpus = (Gpu(index=i, uuid=f"GPU-{i}", faults=faults if i in ill else ()) for i in range(2))
    # What degrades a GPU is remembered until it had a reset; here each look is the first one.
    node.snapshot = node.snapshot.but(ledger=node.snapshot.ledger.but(health=None))
    node.apply(MachineObserved(Machine(gpus=tuple(gpus))))


def problem(server: ApiServer) -> Json:
    """Our condition as the server has it."""
    found = server.objects.get(parse_path(NODE)).get("status") if server.objects.has(parse_path(NODE)) else None
    conditions = (found or {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "GPUProblem"), {})


def ready(server: ApiServer) -> Json:
    """The condition gpuplane.io/GPUReady as the server has it."""
    found = server.objects.get(parse_path(NODE)).get("status") or {}
    return next((each for each in found.get("conditions", ()) if each["type"] == READY), {})


def told(server: ApiServer) -> list[tuple[str, str, int]]:
    """(reason, GPU, count) of each Event."""
    found = sorted(server.objects.list(parse_path(EVENTS_PATH)), key=lambda each: str(each["metadata"]["name"]))
    return [(each["reason"], each["message"][:5], each["count"]) for each in found]


async def stands(node: Node, part: AnyPart, standing: str, reason: str = "") -> None:
    def there(snapshot: Snapshot) -> bool:
        found = snapshot.statuses.get(part)
        return found is not None and found.state == standing and reason in as_shown(found.text)

    assert await node.wait_until(there, 60), node.snapshot.statuses


async def test_the_heart_beats(server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing changes the condition is written again; the time of its transition stays."""
    monkeypatch.setattr(report, "HEARTBEAT", 0.05)
    times = iter(f"2026-01-01T00:00:{second:02}Z" for second in range(60))
    monkeypatch.setattr(report, "timestamp", lambda: next(times))
    async with writing(kubeconfig, report.report_conditions):
        await server.until(lambda: server.requests.count(PATCHES) >= 4)

        assert problem(server)["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        assert problem(server)["lastHeartbeatTime"] >= "2026-01-01T00:00:02Z"
        assert server.requests.count(f"GET {NODE}") == 1


def register(node: Node, status: Status | None) -> None:
    """The plugin of the only resource has this status."""
    node.apply(StatusChanged(plugin_part(GPU), status))


async def test_it_is_ready_while_kubelet_reads_the_list(server: ApiServer, kubeconfig: Path) -> None:
    """Beside the other condition, and by itself."""
    async with writing(kubeconfig, report.report_conditions) as node:
        await server.until(lambda: problem(server) != {})
        assert ready(server) == {}  # a plugin that registers for the first time is ready in a moment
        register(node, Status("ok"))
        await server.until(lambda: ready(server).get("status") == "True")
        assert ready(server)["reason"] == "Serving"

        look(node, 0)
        await server.until(lambda: problem(server)["status"] == "True")
        assert ready(server)["status"] == "True"

        register(node, Status("failing", "kubelet refuses it"))
        await server.until(lambda: ready(server)["status"] == "False")
        assert ready(server)["reason"] == "PluginNotRegistered"
        node.apply(MachineObserved(Machine(faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),))))
        await server.until(lambda: problem(server)["reason"] == "DriverFailing")


async def test_a_restart_does_not_change_it(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent before this one wrote stays until a plugin was not registered for a while."""
    monkeypatch.setattr(readycondition, "GRACE", 1.0)
    old = {"type": READY, "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z", "reason": "Serving"}
    server.put(NODE, {"status": {"conditions": [old]}})
    statuses = []
    async with writing(kubeconfig, report.report_conditions) as node:
        await server.until(lambda: problem(server) != {})
        for status in (Status("waiting", "it registers"), None, Status("ok"), Status("waiting", "kubelet restarts")):
            before = node.now()
            register(node, status)
            await asyncio.sleep(0.15)
            statuses.append(ready(server)["status"])
        register(node, Status("ok"))
        await server.until(lambda: ready(server).get("message", "") != "")
        assert statuses == ["True"] * 4
        assert ready(server)["lastTransitionTime"] == "2020-01-01T00:00:00Z"

        await asyncio.sleep(0.1)
        register(node, Status("waiting", "kubelet's socket was removed"))
        await server.until(lambda: ready(server)["status"] == "False")
        assert node.now() >= before + 1.0  # the writer may not have seen that it was registered meanwhile
        assert ready(server)["lastTransitionTime"] > "2020-01-01T00:00:00Z"


async def test_every_field_is_kubernetes(server: ApiServer, kubeconfig: Path) -> None:
    """What is written, decoded into Kubernetes' types and encoded again, is the same: nothing is misspelt."""
    async with writing(kubeconfig, report.report_conditions, telling.send_events) as node:
        look(node, 0)
        await server.until(lambda: problem(server).get("status") == "True" and len(told(server)) == 1)
        [event] = server.objects.list(parse_path(EVENTS_PATH))

        assert models.Event.from_dict(event).to_dict() == event
        assert models.NodeCondition.from_dict(problem(server)).to_dict() == problem(server)


async def test_a_transition_of_before_our_start_keeps_its_time(server: ApiServer, kubeconfig: Path) -> None:
    """And one to another status has a new one."""
    old = {"type": "GPUProblem", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z", "reason": "x"}
    server.put(NODE, {"status": {"conditions": [old]}})
    async with writing(kubeconfig, report.report_conditions) as node:
        await server.until(lambda: problem(server)["reason"] == "NoProblem")
        assert problem(server)["lastTransitionTime"] == "2020-01-01T00:00:00Z"

        look(node, 1)
        await server.until(lambda: problem(server)["status"] == "True")
        assert problem(server)["lastTransitionTime"] > "2020-01-01T00:00:00Z"


async def test_a_node_object_that_is_made_anew_is_written_anew(server: ApiServer, kubeconfig: Path) -> None:
    """As kubelet makes it when somebody has deleted it, though we have nothing new to say."""
    async with writing(kubeconfig, watching.watch_node) as node:
        await stands(node, API_SERVER_PART, "ok")
        task = asyncio.ensure_future(report.report_conditions(node, "n1", kubeconfig))
        await server.until(lambda: problem(server) != {})
        server.put(NODE, None)
        await stands(node, API_SERVER_PART, "waiting")
        server.put(NODE, {"status": {}})
        await server.until(lambda: problem(server) != {})
        await _ended(task)


async def test_a_node_object_that_is_missing(server: ApiServer, kubeconfig: Path) -> None:
    """Its absence is said; when it comes, it is written."""
    server.put(NODE, None)
    async with writing(kubeconfig, report.report_conditions) as node:
        await stands(node, NODE_CONDITION_PART, "failing", '404 nodes "n1" not found')
        server.put(NODE, {})
        await server.until(lambda: problem(server).get("reason") == "NoProblem")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (
            InjectedFailure("GET *", code=403, message="cannot get nodes"),
            "403 cannot get nodes; give the agent the permissions",
        ),
        (InjectedFailure("GET *", garbage=b"<html>a login page</html>"), "does not answer as an API server does"),
        (InjectedFailure("GET *", garbage=b'{"status": {"conditions": 7}}'), "does not answer as an API server does"),
        (
            InjectedFailure("PATCH *", code=403, message="cannot patch"),
            "403 cannot patch; give the agent the permissions",
        ),
        (InjectedFailure("PATCH *", code=500, message="etcd"), "500 etcd"),
        (InjectedFailure("PATCH *", drop_connection=True), "disconnected"),
        (InjectedFailure("PATCH *", delay=60), "does not answer within 0.3 s"),
    ],
    ids=["get refused", "no API server", "no Node", "patch refused", "server error", "dropped", "silent"],
)
async def test_a_condition_that_cannot_be_written(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, trouble: InjectedFailure, reason: str
) -> None:
    """Why is said; nothing waits for ever, and it is written when the trouble ends."""
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.3)
    monkeypatch.setattr(retry, "REFUSED_PAUSE", 0.05)
    server.failures.append(trouble)
    async with writing(kubeconfig, report.report_conditions) as node:
        await stands(node, NODE_CONDITION_PART, "failing", reason)
        await stands(node, NODE_CONDITION_PART, "ok")
        assert problem(server)["status"] == "False"


async def test_a_refusal_is_asked_about_seldom(server: ApiServer, kubeconfig: Path) -> None:
    """Other failures soon again; this one waits for minutes, or until our Node is followed anew."""
    server.failures += [InjectedFailure("PATCH *", times=3, code=500), InjectedFailure("PATCH *", times=9, code=403)]
    async with writing(kubeconfig, report.report_conditions, telling.send_events) as node:
        await stands(node, NODE_CONDITION_PART, "failing", " 403 ")
        look(node, 0)
        await server.until(lambda: told(server) == [("GPUDegraded", "GPU 0", 1)])
        look(node)
        await server.until(lambda: told(server)[1:] == [("GPURecovered", "GPU 0", 1)])
        assert server.requests.count(PATCHES) == 4


async def test_a_device_that_comes_and_goes_is_counted(server: ApiServer, kubeconfig: Path) -> None:
    """The same thing of the same device is one Event, told again by its count; another device has its own."""
    async with writing(kubeconfig, telling.send_events) as node:
        for times in range(1, 5):
            look(node, 0)
            await server.until(lambda times=times: ("GPUDegraded", "GPU 0", times) in told(server))  # type: ignore[misc]
            look(node)
            await server.until(lambda times=times: ("GPURecovered", "GPU 0", times) in told(server))  # type: ignore[misc]
        look(node, 1)
        await server.until(lambda: ("GPUDegraded", "GPU 1", 1) in told(server))
        assert len(told(server)) == 3


async def test_an_event_that_the_server_has_forgotten_is_made_anew(server: ApiServer, kubeconfig: Path) -> None:
    """They live for an hour; and after AGAIN what happens is news."""
    async with writing(kubeconfig, telling.send_events) as node:
        look(node, 0)
        await server.until(lambda: len(told(server)) == 1)
        [event] = server.objects.list(parse_path(EVENTS_PATH))
        look(node)
        await server.until(lambda: len(told(server)) == 2)
        server.put(f"{EVENTS_PATH}/{event['metadata']['name']}", None)
        look(node, 0)
        await server.until(lambda: told(server) == [("GPURecovered", "GPU 0", 1), ("GPUDegraded", "GPU 0", 1)])


async def test_after_a_while_it_is_another_event(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "REPEAT_PERIOD", 0.0)
    async with writing(kubeconfig, telling.send_events) as node:
        for ill in ((0,), (), (0,)):
            count = len(told(server))
            look(node, *ill)
            await server.until(lambda count=count: len(told(server)) == count + 1)  # type: ignore[misc]
        assert [reason for reason, *_ in told(server)] == ["GPUDegraded", "GPURecovered", "GPUDegraded"]


async def test_an_answer_that_is_lost_makes_no_second_event(server: ApiServer, kubeconfig: Path) -> None:
    """Whether the server has heard it nobody knows: it is told again under the same name."""
    server.failures.append(InjectedFailure(f"POST {EVENTS_PATH}", lose_response=True))
    async with writing(kubeconfig, telling.send_events) as node:
        look(node, 0)
        await server.until(lambda: server.requests.count(f"POST {EVENTS_PATH}") == 2)
        await stands(node, EVENTS_PART, "ok")
        assert told(server) == [("GPUDegraded", "GPU 0", 1)]


async def test_an_event_that_the_server_will_never_take_costs_itself_only(
    server: ApiServer, kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.failures.append(InjectedFailure("POST *", code=422, message="message: too long"))
    async with writing(kubeconfig, telling.send_events) as node:
        look(node, 0)
        await server.until(lambda: f"POST {EVENTS_PATH}" in server.requests)
        look(node, 0, 1)
        await server.until(lambda: told(server) == [("GPUDegraded", "GPU 1", 1)])
        await stands(node, EVENTS_PART, "ok")
    assert [each.levelname for each in caplog.records if each.module == "events"] == ["WARNING"]


async def test_an_event_that_cannot_be_counted_again_is_made_anew(server: ApiServer, kubeconfig: Path) -> None:
    """A refusal that no repetition makes better holds up nothing that comes after."""
    async with writing(kubeconfig, telling.send_events) as node:
        for ill in ((0,), ()):
            look(node, *ill)
            await server.until(lambda: server.requests.count(f"POST {EVENTS_PATH}") == len(told(server)) > 0)
            await stands(node, EVENTS_PART, "ok")
        await server.until(lambda: len(told(server)) == 2)
        server.failures.append(InjectedFailure("PATCH *", code=422, message="message: not so"))
        look(node, 0)
        await server.until(lambda: [reason for reason, *_ in told(server)].count("GPUDegraded") == 2)
        look(node, 0, 1)
        await server.until(lambda: ("GPUDegraded", "GPU 1", 1) in told(server))


async def test_nothing_is_told_that_a_crash_would_make_us_tell_again(server: ApiServer, kubeconfig: Path) -> None:
    """The ledger is on disk first, where the disk takes it."""
    async with writing(kubeconfig, telling.send_events, report.report_conditions) as node:
        node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus(state="ok", text="an older ledger")))
        look(node, 0)
        await server.until(lambda: problem(server).get("status") == "True")
        look(node, 0, 1)
        await server.until(lambda: "2 GPUs (0, 1)" in problem(server)["message"])
        assert told(server) == []
        node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus(state="ok")))
        node.apply(LedgerStored(StoredLedger(ledger=node.snapshot.ledger)))
        await server.until(lambda: len(told(server)) == 1)

        node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus(state="failing", text="the disk is full")))
        look(node)
        await server.until(lambda: len(told(server)) == 2)


async def test_what_came_and_went_while_the_server_was_away_is_not_told(server: ApiServer, kubeconfig: Path) -> None:
    """The newest difference is."""
    async with writing(kubeconfig, telling.send_events) as node:
        await server.stop()
        look(node, 0, 1)
        await stands(node, EVENTS_PART, "failing")
        look(node, 1)
        await server.start()
        await stands(node, EVENTS_PART, "ok")
        assert told(server) == [("GPUDegraded", "GPU 1", 1)]
