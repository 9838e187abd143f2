"""`gpuplane sandbox kubelet` as a person uses it: a process in one terminal, an agent on it in another."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet import Kubelet, console
from gpuplane.sandbox.kubelet.console import CommandError, Console, parse_pod
from gpuplane.sandbox.kubelet.messages import Message
from tests.golden import Golden

from .plugin import DEADLINE, DEV, SIX, device, node, wants

GPU = "nvidia.com/gpu"
MACHINE = """
driver: {version: 550.90.07, cuda: "12.4"}
gpus:
  - {index: 0, uuid: GPU-a, minor: 0, model: NVIDIA H100, numa: 0}
  - {index: 1, uuid: GPU-b, minor: 1, model: NVIDIA H100, numa: 0}
"""


class Terminal:
    """The process. `lines` is what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.lines, self._changes = process, list[str](), Changes()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, root: Path, *options: str, stdin: int = asyncio.subprocess.PIPE) -> "Terminal":
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "gpuplane", "sandbox", "kubelet", "--root", str(root), *options)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=stdin, stdout=pipe, stderr=pipe))

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self._changes.notify()

    def type(self, *lines: str) -> None:
        """Type lines."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())

    async def says(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next JSON line of this event with these fields. What came before it is dropped."""

        def found() -> dict[str, Any] | None:
            while self.lines:
                said: dict[str, Any] = json.loads(self.lines.pop(0))
                if said["event"] == event and fields.items() <= said.items():
                    return said
            return None

        return await self._changes.until(found, DEADLINE) or {}

    async def prints(self, word: str) -> None:
        """Until a line with that in it is printed."""
        await self._changes.until(lambda: any(word in line for line in self.lines), DEADLINE)

    async def ended(self) -> tuple[int, str]:
        """(exit status, standard error), once it has ended."""
        assert self.process.stderr is not None
        async with asyncio.timeout(DEADLINE):
            error = (await self.process.stderr.read()).decode()
            await self._reader
            return await self.process.wait(), error


@asynccontextmanager
async def terminal(root: Path, *options: str, stdin: int = asyncio.subprocess.PIPE) -> AsyncIterator[Terminal]:
    opened = await Terminal.open(root, *options, stdin=stdin)
    try:
        yield opened
    finally:
        if opened.process.returncode is None:
            opened.process.kill()
        await opened.ended()


async def test_a_kubelet_in_one_terminal_and_an_agent_in_another(root: Path) -> None:
    """The agent registers; pods run, are rejected and end; kubelet restarts; all of it is said as JSON."""
    (root / "machine.yaml").write_text(MACHINE)
    async with terminal(root / "k", "--json") as person:
        assert (await person.says("serving"))["socket"] == str(root / "k/device-plugins/kubelet.sock")
        agent = Agent("--machine", root / "machine.yaml", "--kubelet-root", root / "k", "--state-dir", root / "s")
        async with agent:
            await person.says("call", call="Register", resource=GPU)
            assert (await person.says("devices"))["devices"] == {"GPU-a": "Healthy", "GPU-b": "Healthy"}
            await person.says("node", resource=GPU, capacity=2, allocatable=2)

            person.type("run train", "run late gpu=2", "pods", "status")
            running = await person.says("running", pod="default/train")
            assert running["devices"] == {GPU: ["GPU-a"]}
            assert running["gets"] == {"envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}}
            rejected = await person.says("rejected", pod="default/late", reason="UnexpectedAdmissionError")
            assert "Requested: 2, Available: 1" in rejected["message"]
            held = await person.says("pod", pod="default/train", waiting={})
            assert held["containers"] == {"main": {GPU: [["GPU-a", "Healthy"]]}}
            await person.says("node", resource=GPU, capacity=2, allocatable=2, held=1)

            person.type("restart")
            await person.says("node", resource=GPU, capacity=0, allocatable=0)
            await person.says("node", resource=GPU, capacity=2, allocatable=2)
            person.type("end train", "run late gpu=2")
            await person.says("ended", pod="default/train")
            assert (await person.says("running", pod="default/late"))["devices"] == {GPU: ["GPU-a", "GPU-b"]}
        await person.says("node", resource=GPU, capacity=2, allocatable=0)
        person.type("quit")
        assert await person.ended() == (0, "")
        await person.says("stopped")


async def test_containers_are_made_by_the_specifications_of_an_agent(root: Path) -> None:
    """Also anew, when the agent has gone: the specifications stay, and kubelet knows the names."""
    (root / "config.yaml").write_text("version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n")
    options = ("--json", "--cdi-dir", str(root / "none"), "--cdi-dir", str(root / "cdi"))
    async with terminal(root / "k", *options) as person:
        agent = Agent(
            "--machine", "t4", "--config", root / "config.yaml", "--kubelet-root", root / "k",
            "--state-dir", root / "s", "--cdi-dir", root / "cdi",
        )  # fmt: skip
        async with agent:
            await person.says("node", resource=GPU, capacity=1, allocatable=1)
            person.type("run train")
            before = (await person.says("created", pod="default/train", container="main"))["with"]
        person.type("crash train")
        after = (await person.says("created", pod="default/train"))["with"]
        person.type("quit")
        assert await person.ended() == (0, "")

    assert before == after
    assert "/dev/nvidia0" in [each["path"] for each in before["deviceNodes"]]
    assert all(each["type"] == "c" and each["major"] for each in before["deviceNodes"])
    assert len(before["mounts"]) > 10


async def test_what_a_person_reads(root: Path, golden: Golden) -> None:
    """Plain lines; it ends when its input does, with status 0, and takes its sockets along."""
    async with terminal(root) as person:
        await person.prints("kubelet.sock")
        person.type("help", "status", "pods", "run a", "rnu a", "")
        assert person.process.stdin is not None
        person.process.stdin.close()
        assert await person.ended() == (0, "")
        golden(line.replace(str(root), "ROOT") for line in person.lines)
    assert not (root / "device-plugins/kubelet.sock").exists()
    assert not (root / "pod-resources/kubelet.sock").exists()


async def test_what_it_says_steers_no_terminal(root: Path) -> None:
    """Whatever was typed, or stands in the files of others."""
    async with terminal(root) as person:
        person.type("\x1b[31mrun", "quit")
        assert await person.ended() == (0, "")
        assert any("\\x1b[31mrun" in line for line in person.lines)
        assert not any("\x1b" in line for line in person.lines)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_without_input_it_runs_until_a_signal(root: Path, stop: signal.Signals) -> None:
    """Though its input is at its end from the start."""
    async with terminal(root, "--no-input", "--json", stdin=asyncio.subprocess.DEVNULL) as person:
        await person.says("serving")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(root / "device-plugins/kubelet.sock"))
        person.process.send_signal(stop)
        assert await person.ended() == (0, "")
        await person.says("stopped")


async def test_a_signal_ends_it_while_it_waits_for_words(root: Path) -> None:
    async with terminal(root, "--json") as person:
        await person.says("serving")
        person.process.send_signal(signal.SIGINT)
        assert await person.ended() == (0, "")


async def test_a_root_where_a_kubelet_runs_is_refused(root: Path) -> None:
    """With its process in the message; and that one is left alone."""
    async with Kubelet(root) as kubelet, terminal(root) as person:
        status, error = await person.ended()
        assert status == 1
        assert error.startswith(f"Error: {root}/device-plugins/kubelet.sock: ")
        assert str(os.getpid()) in error
        assert kubelet.capacity(GPU) == (0, 0)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(root / "device-plugins/kubelet.sock"))


@pytest.mark.parametrize("below", ["x" * 90, "file"], ids=["too long", "a file"])
async def test_a_root_that_cannot_be_used_is_refused(root: Path, below: str, golden: Golden) -> None:
    (root / "file").write_text("")
    async with terminal(root / below) as person:
        status, error = await person.ended()
        assert (status, person.lines) == (1, [])
        assert error.startswith(f"Error: {root / below}")
        golden(error.replace(str(root), "ROOT"))


# what is typed


@pytest.mark.parametrize(
    ("line", "key", "requests"),
    [
        ("a", "default/a", {GPU: 1}),
        ("ns/a", "ns/a", {GPU: 1}),
        ("a gpu=2", "default/a", {GPU: 2}),
        ("a lab.io/dev=1 mig-1g.10gb=3", "default/a", {"lab.io/dev": 1, "nvidia.com/mig-1g.10gb": 3}),
    ],
)
def test_what_run_means(line: str, key: str, requests: dict[str, int]) -> None:
    """A resource without a domain is NVIDIA's."""
    pod = parse_pod(line.split())
    assert (pod.key, pod.containers[0].requests) == (key, requests)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "gpu=2",
        "a/b/c",
        "ns/",
        "a gpu",
        "a gpu=",
        "a gpu=0",
        "a gpu=-1",
        "a gpu=two",
        "a gpu=²",
        pytest.param("a gpu=" + "9" * 5000, id="5000 digits"),
        "a gpu=1 nvidia.com/gpu=1",
    ],
)
def test_what_run_cannot_mean(line: str, golden: Golden) -> None:
    with pytest.raises(CommandError) as wrong:
        parse_pod(line.split())
    golden(re.sub("9{9,}", "9…", str(wrong.value)))


async def typed(kubelet: Kubelet, *lines: str) -> list[Message]:
    """What is said to these lines."""
    said: list[Message] = []
    here = Console(kubelet, said.append)
    for line in lines:
        assert await here.execute(line)
    return said


async def test_bad_words_are_answered_and_change_nothing(root: Path, golden: Golden) -> None:
    async with node(root, *SIX) as (kubelet, _):
        await kubelet.run(wants("a"))
        said = await typed(
            kubelet, "end", "end a b", "end b", "pods x", "restart now", "run a lab.io/dev=1", "nonsense"
        )
        assert len(said) == 7
        golden(str(each.data["message"]) for each in said)
        assert list(kubelet.pods) == ["default/a"]
        assert kubelet.capacity(DEV) == (6, 6)


async def test_a_plugin_that_does_not_answer_does_not_silence_the_console(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet waits for an Allocate for ever; the next words are read meanwhile, and the outcome is said when it is
    there."""
    monkeypatch.setattr(console, "RUN_TIMEOUT", 0.05)
    async with node(root, *SIX) as (kubelet, plugin):
        plugin.gates["Allocate"] = asyncio.Event()
        said: list[str] = []
        changes = Changes()

        def say(each: Message) -> None:
            said.append(each.event)
            changes.notify()

        here = Console(kubelet, say)
        await here.execute("run a lab.io/dev=1")
        await here.execute("status")
        assert said == ["waiting", "node"]
        plugin.gates["Allocate"].set()
        await changes.until(lambda: said == ["waiting", "node", "running"], DEADLINE)

        plugin.gates["Allocate"].clear()
        await here.execute("run b lab.io/dev=1")
        await here.cancel_admissions()
        assert list(kubelet.pods) == ["default/a"]


async def test_what_happens_is_said_as_it_happens(root: Path) -> None:
    """Changes of devices, the node's figures, and containers that wait, with the reason."""
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        said: list[str] = []
        changes = Changes()

        def say(each: Message) -> None:
            said.extend(each.lines)
            changes.notify()

        following = asyncio.create_task(Console(kubelet, say).follow())
        await changes.until(lambda: f"node {DEV}: capacity 6, allocatable 6" in said, DEADLINE)
        plugin.send(device("d1", "Unhealthy"), *map(device, (*SIX[1:5], "d7")))
        changed = f"devices {DEV}: 6, healthy 5 (d1 is unhealthy, d7 is new, d6 is gone)"
        await changes.until(lambda: changed in said, DEADLINE)
        assert f"node {DEV}: capacity 6, allocatable 5" in said

        plugin.errors["PreStartContainer"] = "not yet"
        await kubelet.run(wants("a"))
        why = "CreateContainerConfigError: device plugin PreStartContainer rpc failed with err: "
        line = f"pod default/a: main waits: {why}rpc error: code = Internal desc = not yet"
        await changes.until(lambda: line in said, DEADLINE)

        await kubelet.drop_streams()
        await changes.until(lambda: f"devices {DEV}: 6, healthy 0" in said, DEADLINE)
        assert f"ListAndWatch ended {DEV}" in said
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
