"""What the commands of the version before say to an agent on its control socket, and what they read of its answers."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.golden import becomes, lost, within
from tests.e2e.kubelet import Kubelet
from tests.e2e.machines import GPU, MachineFile, gpu, mig, uuid
from tests.e2e.programs import Agent
from tests.e2e.waiting import boot_time

SHOW = b'{"type":"Show"}\n'
RESTORE = b'{"type":"RestoreDevice","at":AT,"device":"1"}\n'
TAKE = b'{"type":"TakeUp","at":AT}\n'


def drain(seconds: bytes, device: bytes = b"1") -> bytes:
    """As `gpuplane health drain` sends it."""
    return b'{"type":"DrainDevice","at":AT,"device":"%b","seconds":%b,"why":"its fan"}\n' % (device, seconds)


def release(seconds: bytes) -> bytes:
    """As `gpuplane driver release` sends it."""
    return b'{"type":"LetGo","at":AT,"seconds":%b,"why":"firmware"}\n' % seconds


@pytest.fixture
def kubelet(here: Path) -> Iterator[Kubelet]:
    """A pod of its holds GPU 0."""
    with Kubelet(here / "k") as kubelet:
        kubelet.pods = {("ml", "train"): {GPU: [uuid(0)]}}
        yield kubelet


@pytest.fixture
def agent(here: Path, kubelet: Kubelet) -> Iterator[Agent]:
    """On two GPUs, and one in MIG mode."""
    machine = MachineFile(here / "machine.yaml", [gpu(0), gpu(1), mig(2, 7)])
    with Agent(here, machine, "--mig-strategy=mixed") as agent:
        agent.until_ready()
        yield agent


def say(agent: Agent, line: bytes, late: float = 0.0) -> Any:
    """Send a request as it was made so many seconds ago."""
    return agent.request(line.replace(b"AT", str(boot_time() - late).encode()))


def test_the_picture_has_what_commands_read(agent: Agent) -> None:
    answer = say(agent, SHOW)

    picture = answer["picture"]
    assert picture["now"] == pytest.approx(boot_time(), abs=60)
    assert answer["agent"]["version"] and isinstance(answer["agent"]["began"], float)
    assert not answer.get("error")
    snapshot = picture["snapshot"]
    within("socket/machine", snapshot["machine"])
    within("socket/ledger", timeless(snapshot["ledger"]))
    within("socket/allocations", snapshot["allocations"])
    becomes("socket/standing", lambda: standing(agent), lost)
    within("socket/offer", [
        {"name": each["name"], "ids": [device["id"] for device in each["devices"]]}
        for each in picture["offer"]["resources"]
    ])  # fmt: skip
    assert isinstance(snapshot["generation"], int)


def standing(agent: Agent) -> Any:
    """Of each part: not all are done when the agent is ready."""
    conditions = say(agent, SHOW)["picture"]["snapshot"]["conditions"]
    return {part: each["standing"] for part, each in sorted(conditions.items())}


def timeless(ledger: Any) -> Any:
    """A ledger but for the boot's id."""
    return {name: each for name, each in ledger.items() if name != "boot_id"}


@pytest.mark.parametrize("seconds", [b"null", b"7200.0"])
def test_a_drain_and_its_end(agent: Agent, kubelet: Kubelet, seconds: bytes) -> None:
    for device in (b"1", uuid(1).encode(), b"0000:11:00.0"):
        assert not say(agent, drain(seconds, device)).get("error")
        agent.until(lambda: kubelet.health()[uuid(1)] == "Unhealthy", "drained")
        drained = say(agent, SHOW)["picture"]["snapshot"]["ledger"]["health"]["devices"][uuid(1)]["drain"]
        assert drained["why"] == "its fan" and ("until" in drained) == (seconds != b"null")
        kept = json.loads((agent.state / "health.json").read_text())["value"]["devices"][uuid(1)]
        assert kept["drain"]["why"] == "its fan"
        assert not say(agent, RESTORE).get("error")
        agent.until(lambda: kubelet.health()[uuid(1)] == "Healthy", "restored")


def test_a_release_and_its_end(agent: Agent, kubelet: Kubelet) -> None:
    assert not say(agent, release(b"600.0")).get("error")
    agent.until(lambda: kubelet.health()[uuid(0)] == "Unhealthy", "released")
    agent.until(lambda: say(agent, SHOW)["picture"]["snapshot"]["conditions"]["driver"]["standing"] == "waiting", "so")
    assert json.loads((agent.state / "release.json").read_text())["value"]["why"] == "firmware"
    assert not say(agent, TAKE).get("error")
    agent.until(lambda: kubelet.health()[uuid(0)] == "Healthy", "taken")


@pytest.mark.parametrize(
    "line",
    [
        drain(b"null", b"77"), drain(b"0.0"), drain(b"1e12"), release(b"-1.0"), release(b"1e9"),
        drain(b"null").replace(b"its fan", b" "), release(b"5.0").replace(b"firmware", b""),
        drain(b"null").replace(b'"why"', b'"unknown":1,"why"'), b'{"type":"Unknown"}\n', b"{\n", b"\n", b"\xff\n",
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_an_error_and_changes_nothing(agent: Agent, kubelet: Kubelet, line: bytes) -> None:
    answer = say(agent, line)

    assert answer["error"]
    assert not answer.get("picture")
    assert set(kubelet.health().values()) == {"Healthy"}


def test_a_request_that_is_old_is_refused(agent: Agent, kubelet: Kubelet) -> None:
    assert say(agent, drain(b"null"), late=60)["error"]
    assert set(kubelet.health().values()) == {"Healthy"}


def test_whatever_a_newer_command_adds_to_a_question_costs_nothing(agent: Agent) -> None:
    assert say(agent, b'{"type":"Show","depth":3}\n')["picture"]


def test_the_socket_is_its_owners_alone(agent: Agent) -> None:
    path = agent.state / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert agent.state.stat().st_mode & 0o777 == 0o700
    assert agent.stop() == 0
    with suppress(FileNotFoundError):
        path.unlink()
    assert agent.command("inspect").status == 1
