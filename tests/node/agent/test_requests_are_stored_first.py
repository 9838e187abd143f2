"""The control socket: people see the picture and make wishes; a wish is on disk before its answer leaves."""

import asyncio
import json
import socket as socketlib
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from gpuplane import __version__
from gpuplane.node.agent import control as module
from gpuplane.node.agent.control import control
from gpuplane.node.agent.node import Node
from gpuplane.node.host.state import keep_ledger_stored
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.control import (
    ControlRequest,
    ControlResponse,
    DrainDevice,
    GetNodeState,
    ReleaseDriver,
    ResumeDriver,
)
from gpuplane.node.model.encoding import decode
from gpuplane.node.model.facts import NodeRequestsChanged, StatusChanged
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import STATE_DIRECTORY_PART, Part, Status, Statuses
from tests.golden import Golden
from tests.texts import as_shown


@asynccontextmanager
async def listening(node: Node, directory: Path) -> AsyncIterator[Path]:
    """A node that answers on its control socket and keeps its ledger stored."""
    socket = directory / "control.sock"
    tasks = [asyncio.create_task(control(node, socket)), asyncio.create_task(keep_ledger_stored(node, directory))]
    assert await node.wait_until(lambda s: STATE_DIRECTORY_PART in s.statuses, deadline=60)
    while not socket.exists():
        await asyncio.sleep(0)
    yield socket
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def say(socket: Path, line: bytes) -> ControlResponse:
    """The answer to one line."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(line + b"\n")
    async with asyncio.timeout(60):
        answer = decode(await reader.read(), ControlResponse)
    writer.close()
    return answer


async def ask(socket: Path, request: ControlRequest) -> ControlResponse:
    """The answer to one request."""
    return await say(socket, msgspec.json.encode(request))


async def test_a_release_is_on_disk_when_its_answer_comes(tmp_path: Path) -> None:
    """The wish is in the snapshot and in the state directory; taking it back removes both."""
    node = Node(Snapshot())
    async with listening(node, tmp_path) as socket:
        assert await ask(socket, ReleaseDriver(node.now(), 600, "firmware")) == ControlResponse()
        assert json.loads((tmp_path / "release.json").read_bytes())["value"]["reason"] == "firmware"
        assert node.snapshot.ledger.release is not None

        assert await ask(socket, ResumeDriver(node.now())) == ControlResponse()
        assert not (tmp_path / "release.json").exists()


async def test_show_gives_the_picture(tmp_path: Path) -> None:
    """The snapshot, the offer and the time that its times count against."""
    node = Node(Snapshot(), now=lambda: 42.0)
    node.apply(StatusChanged(Part("other", "x"), Status("failing", "y")))
    async with listening(node, tmp_path) as socket:
        picture = (await ask(socket, GetNodeState())).state

    assert picture is not None
    assert (picture.snapshot.statuses[Part("other", "x")].text, picture.now) == ("y", 42.0)
    assert picture.offer.waiting_reason


async def test_a_large_answer_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is sent in pieces: the connection ends once, and nothing is logged."""
    node = Node(Snapshot())
    node.apply(StatusChanged(Part("other", "x"), Status("failing", "y" * 4_000_000)))
    async with listening(node, tmp_path) as socket:
        for _ in range(3):
            assert (await ask(socket, GetNodeState())).state is not None
        await asyncio.sleep(0.05)

    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "line", [b"", b"x", b"{}", b'{"type":"Nope"}', b"\xff", b'{"type":"DrainDevice","seconds":"1"}']
)
async def test_what_is_no_request_is_answered_by_an_error(tmp_path: Path, line: bytes, golden: Golden) -> None:
    """Nonsense is named as such, and the socket goes on answering."""
    async with listening(Node(Snapshot()), tmp_path) as socket:
        golden(as_shown((await say(socket, line)).error).replace(__version__, "VERSION"), repr(line))
        assert (await ask(socket, GetNodeState())).state is not None


async def test_a_request_that_is_nested_deep_is_none(tmp_path: Path) -> None:
    async with listening(Node(Snapshot()), tmp_path) as socket:
        assert "does not understand" in as_shown((await say(socket, b'{"x":' * 10_000)).error)
        assert (await ask(socket, GetNodeState())).state is not None


@pytest.mark.parametrize(
    ("seconds", "why", "lacks"),
    [(0, "x", "--for"), (-1, "x", "--for"), (1e9, "x", "--for"), (60, "  ", "--why"), (60, "", "--why")],
)
async def test_a_wish_needs_a_bounded_time_and_a_reason(tmp_path: Path, seconds: float, why: str, lacks: str) -> None:
    """A release without an end or a reason would withhold a node for ever, and nobody would know why. What is wrong is
    said, and nothing else."""
    node = Node(Snapshot())
    async with listening(node, tmp_path) as socket:
        for wish in (ReleaseDriver(node.now(), seconds, why), DrainDevice(node.now(), "0", seconds, why)):
            error = (await ask(socket, wish)).error
            assert [option for option in ("--for", "--why") if option in as_shown(error)] == [lacks]

    assert node.snapshot.ledger.release is None


async def test_the_socket_is_closed_to_others(tmp_path: Path) -> None:
    """Mode 0600, also when a dead agent's socket stood there."""
    with socketlib.socket(socketlib.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
    async with listening(Node(Snapshot()), tmp_path) as socket:
        assert socket.stat().st_mode & 0o777 == 0o600


async def test_resuming_the_driver_says_who_else_wants_it_released(tmp_path: Path, golden: Golden) -> None:
    """The operator's own request is taken back, but the annotation of our Node still asks."""
    node = Node(Snapshot())
    node.apply(NodeRequestsChanged(NodeObjectRequests(driver_release_reason="annotation x")))
    async with listening(node, tmp_path) as socket:
        await ask(socket, ReleaseDriver(node.now(), 60, "y"))
        golden((await ask(socket, ResumeDriver(node.now()))).error)

    assert node.snapshot.ledger.release is None


async def test_a_request_whose_maker_has_given_up_is_not_followed(tmp_path: Path, golden: Golden) -> None:
    """An agent that was stopped for a minute does not surprise anybody with what was asked then."""
    node = Node(Snapshot())
    async with listening(node, tmp_path) as socket:
        golden((await ask(socket, ReleaseDriver(node.now() - 60, 600, "x"))).error)

    assert node.snapshot.ledger.release is None


async def test_clients_that_never_read_or_never_end_their_line_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are and whatever they ask: few are held at a time, none for long, and others are answered."""
    monkeypatch.setattr(module, "DEADLINE", 1.0)
    node = Node(Snapshot())
    for number in range(4000):
        node.apply(
            StatusChanged(
                Part("other", f"part {number}"), Status("ok", text="a state that no socket's buffer holds " * 3)
            )
        )
    before = _open()
    async with listening(node, tmp_path) as socket:
        with ExitStack() as stack:
            clients = [stack.enter_context(socketlib.socket(socketlib.AF_UNIX)) for _ in range(300)]
            for number, client in enumerate(clients):
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, str(socket))
                with suppress(OSError):
                    client.send(msgspec.json.encode(GetNodeState()) + b"\n" if number % 2 else b"x" * 100_000)
            asked = await asyncio.to_thread(_shown, socket)
            assert len(asked) == 4001  # with the state directory's own
            assert _open() - before - len(clients) < module.MOST + 20
            async with asyncio.timeout(60):
                while _open() - before - len(clients) > 10:
                    await asyncio.sleep(0.05)


def _open() -> int:
    """How many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _shown(socket: Path) -> Statuses:
    """The statuses that a patient client is shown. On a busy machine it is too late for a deadline, and asks again."""
    until = time.monotonic() + 60
    while True:
        with socketlib.socket(socketlib.AF_UNIX) as client:
            client.settimeout(10)
            try:
                client.connect(str(socket))
                client.sendall(msgspec.json.encode(GetNodeState()) + b"\n")
                with client.makefile("rb") as stream:
                    picture = decode(stream.read(), ControlResponse).state
            except (OSError, msgspec.DecodeError):
                if time.monotonic() > until:
                    raise
                continue
        assert picture is not None
        return picture.snapshot.statuses
