"""What people read where an agent does not answer, may not be asked, or is of another version than the command."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from gpuplane import __version__
from gpuplane.cli.kit.agent import NoAgent, fetch_node_state
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.control import answer
from gpuplane.node.agent.node import Node
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.step import step
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing
from gpuplane.node.model.control import AgentInfo, ControlResponse, NodeState
from gpuplane.node.model.encoding import encode
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    FaultOccurred,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import Part, Status
from tests.golden import Golden
from tests.next_version import extended
from tests.texts import as_shown

Answers = Callable[[bytes], None]


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    """Has whatever listens in the state directory answer everybody with these bytes."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "control.sock"))
    listening.listen()
    said = [b""]

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                with client, client.makefile("rb") as stream:
                    stream.readline()
                    client.sendall(said[0])

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda text: said.__setitem__(0, text)
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def full(directory: Path | None = None) -> ControlResponse:
    """An answer with a picture in which something of everything is said; as it is read by this state directory."""
    described = read_machine(find_machine_file("a100-mig").read_bytes(), "a100-mig.yaml")
    machine = Machine(**{name: getattr(described, name) for name in Machine.__struct_fields__})
    gpu = (machine.gpus or ())[0].uuid
    settings = Settings(sharing=Sharing(replicated_resources=(ReplicatedResource("nvidia.com/gpu", 4),)))
    held = Allocation("nvidia.com/gpu", (f"{gpu}::1",), holder=PodRef.parse("ml/train/main"))
    snapshot = Snapshot(state_dir=str(directory or ""))
    for fact in (
        ConfigLoaded(settings),
        AllocationsListed((held,), 0.0),
        MachineObserved(machine),
        StatusChanged(Part("other", "x"), Status("failing", "y")),
        FaultOccurred(code="xid-79", gpu=gpu, message="lost", at=9.0),
        DrainRequested(gpu, Drain(reason="fan", since=10.0)),
    ):
        snapshot = step(snapshot, fact, 10.0)
    return ControlResponse(state=NodeState(snapshot, offer(snapshot), 10.0), agent=AgentInfo("9.9", "n", 1.0))


def document(said: ControlResponse) -> dict[str, Any]:
    """An answer as plain data."""
    plain: dict[str, Any] = msgspec.json.decode(encode(said))
    return plain


def refused(directory: Path) -> str:
    """What the command says, instead of a picture."""
    with pytest.raises(click.ClickException) as raised:
        fetch_node_state(directory)
    return raised.value.message


def test_what_a_newer_agent_adds_costs_nothing(tmp_path: Path, answers: Answers) -> None:
    """Wherever in its answer."""
    answers(encode(extended(full())))

    assert fetch_node_state(tmp_path) == full(tmp_path).state


def test_a_ledger_that_an_agent_does_not_keep_is_an_empty_one(tmp_path: Path, answers: Answers) -> None:
    """As of one that has nothing to remember."""
    bare = document(full())
    del bare["state"]["snapshot"]["ledger"]
    answers(encode(bare))

    assert fetch_node_state(tmp_path).snapshot.ledger == Snapshot().ledger


def test_what_a_newer_agent_says_otherwise_is_a_sentence(tmp_path: Path, answers: Answers, golden: Golden) -> None:
    """With both versions, what was not understood, and what to do."""
    other = document(full())
    other["state"]["snapshot"]["statuses"]["x"]["state"] = "resting"
    answers(encode(other))
    said = refused(tmp_path)

    assert all(word in said for word in ("9.9", __version__, "snapshot.statuses.x"))
    golden(said.replace(__version__, "VERSION"))


@pytest.mark.parametrize("other", [[], 1, {"state": 3}, {"state": {"now": "x"}}, {"state": None}, {"agent": []}, {}])
def test_an_answer_of_another_kind_is_a_sentence(
    tmp_path: Path, answers: Answers, other: object, golden: Golden
) -> None:
    """Whatever it is."""
    answers(encode(other))

    golden(refused(tmp_path).replace(__version__, "VERSION"), json.dumps(other))


@pytest.mark.parametrize("said", [b"", b"{", b"\xff\xfe", b'{"state":', b"HTTP/1.1 400\r\n", b"[", b'{"x":' * 20_000])
def test_no_whole_answer_is_no_agent(tmp_path: Path, answers: Answers, said: bytes) -> None:
    """As when it is killed while it answers."""
    answers(said)
    with pytest.raises(NoAgent, match=str(tmp_path)):
        fetch_node_state(tmp_path)


def test_a_silent_agent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """It takes the question and says nothing."""
    monkeypatch.setattr("gpuplane.cli.kit.agent.ANSWER_TIMEOUT_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen()
        with pytest.raises(NoAgent) as raised:
            fetch_node_state(tmp_path)
    golden(raised.value.message)


def test_nobody_there_is_said_with_the_path(tmp_path: Path, golden: Golden) -> None:
    """No directory, no socket, a file instead of a directory, a dead agent's socket."""
    (tmp_path / "file").touch()
    (tmp_path / "dead").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead/control.sock"))
    for name in ("", "nowhere", "file", "dead"):
        golden(refused(tmp_path / name), name or "no socket")


async def test_a_command_of_the_next_version_is_shown_the_picture_and_its_requests_are_refused(golden: Golden) -> None:
    """What it adds to a request may mean another request."""
    node = Node(Snapshot())
    shown = await answer(node, b'{"type":"GetNodeState","since":3}', AgentInfo(version="1.0"))
    refusal = await answer(node, b'{"type":"ResumeDriver","at":1.0,"of":"GPU-0"}', AgentInfo(version="1.0"))

    assert shown.state is not None
    assert "gpuplane 1.0" in as_shown(refusal.error)
    golden(refusal.error)


@pytest.mark.parametrize("closed", ["control.sock", ""])
def test_whoever_may_not_ask_is_told_to_be_root(tmp_path: Path, answers: Answers, closed: str, golden: Golden) -> None:
    """Where the socket is closed to him, and where its directory is."""
    answers(encode(full()))
    (tmp_path / closed).chmod(0)
    try:
        if root := os.geteuid() == 0:
            os.seteuid(65534)
        said = refused(tmp_path)
    finally:
        if root:
            os.seteuid(0)
        (tmp_path / closed).chmod(0o700)

    golden(said, "closed")
