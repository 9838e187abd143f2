"""Being registered with kubelet through everything that can be lost, on real sockets, against a kubelet by script."""

import asyncio
import re
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.kubelet import registration, sockets
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpuplane.node.kubelet.registration import Registration, register_plugins
from gpuplane.node.model.config import NamingRule, Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, Status, Turn, TurnStatus, plugin_part
from tests.removal import remove
from tests.texts import as_shown

GPU, T4 = "nvidia.com/gpu", "nvidia.com/t4"
RESTS = (0.02, 0.1)
DEADLINE = 60.0
ONE = Settings()
BOTH = Settings(gpus=(NamingRule(pattern="T4", name=T4), NamingRule(pattern="*", name=GPU)))
NONE = Settings(gpus=(NamingRule(pattern="*", name="nvidia.com/none"),))


class Kubelet(RegistrationServicer):
    """A kubelet that does as it is told. `lists` are the last lists by resource, `asked` the Registers, with times."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[tuple[float, pb.RegisterRequest]] = []
        self.lists: dict[str, list[tuple[str, str]]] = defaultdict(lambda: [("", "no list yet")])
        self.streams: dict[asyncio.Task[None], str] = {}
        self.refusal, self.second_thoughts, self.hangs, self.reads = "", "", False, True
        self.changed = asyncio.Condition()

    async def start(self, wipe: bool = True) -> "Kubelet":
        """Kubelet removes what it finds at its start."""
        self.directory.mkdir(exist_ok=True)
        for found in self.directory.iterdir() if wipe else ():
            found.unlink()
        with suppress(FileNotFoundError):
            (self.directory / "kubelet.sock").unlink()
        self.server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await self.server.start()
        return self

    async def stop(self) -> None:
        await self.drop()
        await self.server.stop(None)

    async def drop(self) -> None:
        """Lose every stream."""
        for stream in (streams := list(self.streams)):
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        self.asked.append((time.monotonic(), request))
        await self._notify()
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        if self.hangs:
            await asyncio.Event().wait()
        alone = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(f"unix:{self.directory / request.endpoint}", alone)
        options = await DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        assert options == request.options
        if self.reads:
            self.streams[asyncio.create_task(self._read(channel, request.resource_name))] = request.resource_name
        else:
            await channel.close()
        if self.second_thoughts:
            await context.abort(grpc.StatusCode.UNKNOWN, self.second_thoughts)
        return pb.Empty()

    async def _read(self, channel: grpc.aio.Channel, resource: str) -> None:
        try:
            async for response in DevicePluginStub(channel).ListAndWatch(pb.Empty()):
                self.lists[resource] = [(device.ID, device.health) for device in response.devices]
                await self._notify()
        except grpc.aio.AioRpcError:
            pass
        finally:
            await channel.close()
            task = asyncio.current_task()
            assert task is not None
            del self.streams[task]
        await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE), self.changed:
            await self.changed.wait_for(ready)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets are looked at more often than on a node."""
    monkeypatch.setattr(registration, "SOCKET_INTERVAL", 0.05)
    monkeypatch.setattr(registration, "STREAM_INTERVAL", 0.05)
    monkeypatch.setattr(registration, "RIVAL_INTERVAL", 0.1)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes."""
    root = Path(tempfile.mkdtemp(prefix="gp"))
    (root / "p").mkdir()
    yield root / "p"
    remove(root)


@pytest.fixture
def node() -> Node:
    """A node with a T4 and an L40S, both offered as nvidia.com/gpu."""
    node = Node(Snapshot())
    gpus = (Gpu(index=0, uuid="GPU-a", model="T4"), Gpu(index=1, uuid="GPU-b", model="L40S"))
    node.apply(MachineObserved(Machine(gpus=gpus)))
    node.apply(ConfigLoaded(ONE))
    node.apply(AllocationsListed((), node.now()))
    return node


@asynccontextmanager
async def serving(node: Node, directory: Path, rests: tuple[float, float] = RESTS) -> AsyncIterator[None]:
    """The plugins, until the block ends."""
    task = asyncio.create_task(register_plugins(node, directory, rests))
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Kubelet]:
    kubelet = await Kubelet(directory).start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()


def condition(node: Node, resource: str = GPU) -> Status:
    return node.snapshot.statuses.get(plugin_part(resource), Status(state="waiting", text="-"))


def ours(directory: Path) -> Path:
    """The one socket of an agent."""
    (found,) = directory.glob("gpuplane-*.sock")
    return found


async def stands(node: Node, standing: str, reason: str = "", resource: str = GPU) -> None:
    """Until the condition of a resource is so."""

    def ready(_: Snapshot) -> bool:
        now = condition(node, resource)
        return now.state == standing and reason in as_shown(now.text)

    assert await node.wait_until(ready, DEADLINE), condition(node, resource)


class Other:
    """Another process that serves a name: it accepts connections and says nothing."""

    CODE = """
import os, socket, sys
path = sys.argv[1]
if os.path.lexists(path): os.unlink(path)
s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(16); print("there", flush=True)
sys.stdin.read()
if sys.argv[2] == "tidy": os.unlink(path)
"""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, path: Path, manners: str = "tidy") -> "Other":
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-c", cls.CODE, path, manners)
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        await process.stdout.readline()
        return cls(process)

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def test_what_is_said_at_registration(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        await stands(node, "ok")
        ((_, request),) = kubelet.asked
        assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", ours(directory).name, GPU)
        assert re.fullmatch(r"gpuplane-[0-9a-f]{8}\.sock", request.endpoint)
        assert request.options == pb.DevicePluginOptions(get_preferred_allocation_available=True)
        await kubelet.until(lambda: kubelet.lists[GPU] == [("GPU-a", "Healthy"), ("GPU-b", "Healthy")])
        assert ours(directory).stat().st_mode & 0o777 == 0o600
        assert sorted(each.name for each in directory.iterdir()) == [request.endpoint, "kubelet.sock"]


async def test_kubelet_may_come_later(node: Node, directory: Path) -> None:
    """Neither its socket nor its directory need be there; what is missing is named meanwhile."""
    directory.rmdir()
    async with serving(node, directory):
        await stands(node, "waiting", str(directory / "kubelet.sock"))
        async with running(directory):
            await stands(node, "ok")
        await stands(node, "waiting")


async def test_each_kubelet_is_asked_once(node: Node, directory: Path) -> None:
    """However often and however fast kubelet restarts: each is asked, and none twice."""
    async with serving(node, directory):
        for _ in range(5):
            async with running(directory) as kubelet:
                await stands(node, "ok")
                await kubelet.until(lambda: len(kubelet.lists[GPU]) == 2)
                assert len(kubelet.asked) == 1
        first = await Kubelet(directory).start()
        await first.until(lambda: len(first.lists[GPU]) == 2)
        await first.stop()  # and the next at once, before the sockets are looked at again
        second = await Kubelet(directory).start()
        await second.until(lambda: len(second.lists[GPU]) == 2)
        await stands(node, "ok")
        assert (len(first.asked), len(second.asked)) == (1, 1)
        await second.stop()


async def test_a_stream_that_is_lost_is_seen_at_once_and_registered_again(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        for times in (1, 2, 3):
            await stands(node, "ok")
            assert len(kubelet.asked) == times
            await kubelet.drop()
            await stands(node, "waiting", "no longer reads")


async def test_a_kubelet_that_does_not_read_is_asked_ever_more_rarely(
    node: Node, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "READ_TIMEOUT", 0.01)
    async with running(directory) as kubelet, serving(node, directory):
        kubelet.reads = False
        await stands(node, "waiting", "did not read the device list")
        await kubelet.until(lambda: len(kubelet.asked) >= 5)
        assert condition(node).state != "ok"
        at = [when for when, _ in kubelet.asked]
        assert all(
            later - earlier >= rest for earlier, later, rest in zip(at, at[1:], (0.02, 0.04, 0.08, 0.1), strict=False)
        )
        kubelet.reads = True
        await stands(node, "ok")


async def test_a_refusal_is_shown_and_tried_again_with_rests(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        kubelet.refusal = f"the ResourceName {GPU!r} is invalid"
        await stands(node, "failing", kubelet.refusal)
        await kubelet.until(lambda: len(kubelet.asked) >= 4)
        at = [when for when, _ in kubelet.asked]
        assert all(
            later - earlier >= rest for earlier, later, rest in zip(at, at[1:], (0.02, 0.04, 0.08), strict=False)
        )
        kubelet.refusal = ""
        await stands(node, "ok")


async def test_a_stream_without_an_acceptance_does_not_count(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        kubelet.second_thoughts = "not after all"
        await stands(node, "failing", "not after all")
        await kubelet.until(lambda: len(kubelet.asked) >= 2)
        assert condition(node).state != "ok"


async def test_a_register_that_hangs_is_left_when_kubelet_restarts(node: Node, directory: Path) -> None:
    async with serving(node, directory), running(directory) as kubelet:
        kubelet.hangs = True
        await stands(node, "waiting", "has not answered")
        hung = kubelet
        kubelet = await Kubelet(directory).start()  # the first lives on, as a process that hangs does
        await stands(node, "ok")
        assert (len(hung.asked), len(kubelet.asked)) == (1, 1)
        await kubelet.stop()


async def test_a_register_that_hangs_has_a_deadline(
    node: Node, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "REGISTER_TIMEOUT", 0.1)
    async with running(directory) as kubelet, serving(node, directory):
        kubelet.hangs = True
        await stands(node, "failing", "Deadline")
        kubelet.hangs = False
        await stands(node, "ok")


@pytest.mark.parametrize("kind", ["file", "directory", "dead socket"])
async def test_what_is_no_kubelet_at_its_path_is_named(node: Node, directory: Path, kind: str) -> None:
    path = directory / "kubelet.sock"
    if kind == "file":
        path.write_text("not a socket")
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with serving(node, directory):
        await stands(
            node,
            *(
                ("failing", "registration: Connection refused")
                if kind == "dead socket"
                else ("waiting", f"{path} is not a socket")
            ),
        )
        path.rmdir() if kind == "directory" else path.unlink()
        async with running(directory):
            await stands(node, "ok")


async def test_a_directory_that_cannot_be_read_is_named(node: Node, directory: Path) -> None:
    """The same as a directory without permission, for a test that runs as root."""
    directory.rmdir()
    directory.write_text("a file")
    async with serving(node, directory):
        await stands(node, "failing", str(directory))
        directory.unlink()
        async with running(directory):
            await stands(node, "ok")


async def test_a_path_that_is_too_long_for_a_socket_is_named(node: Node, directory: Path) -> None:
    deep = directory / ("d" * (86 - len(str(directory))))
    deep.mkdir()
    async with running(deep), serving(node, deep):
        await stands(node, "waiting", "too long")


async def test_a_resource_with_a_long_name_is_served(node: Node, directory: Path) -> None:
    long = Settings(gpus=(NamingRule(pattern="*", name="nvidia.com/g" + "p" * 62),))
    node.apply(ConfigLoaded(long))
    deep = directory / ("d" * (75 - len(str(directory))))
    deep.mkdir()
    async with running(deep), serving(node, deep):
        await stands(node, "ok", resource=long.gpus[0].name)


async def test_a_kubelet_that_no_socket_can_reach_is_named(node: Node, directory: Path) -> None:
    deep = directory / ("d" * 100)
    deep.mkdir()
    async with serving(node, deep):
        await stands(node, "waiting", f"{deep}/kubelet.sock is too long for a unix socket (")


async def test_our_socket_that_is_removed_is_made_anew(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        await stands(node, "ok")
        ours(directory).unlink()
        await stands(node, "waiting", "removed")
        await stands(node, "ok")
        assert len({request.endpoint for _, request in kubelet.asked}) == 2  # kubelet tells plugins apart by that
        assert ours(directory).is_socket()


async def test_a_chmod_of_a_socket_is_no_loss(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        await stands(node, "ok")
        ours(directory).chmod(0o666)
        await node.wait_until(lambda s: condition(node).state != "ok", 3 * registration.SOCKET_INTERVAL)
        assert len(kubelet.asked) == 1


async def test_kubelets_socket_that_is_removed_while_it_reads_is_no_loss(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        await stands(node, "ok")
        (directory / "kubelet.sock").unlink()
        assert not await node.wait_until(lambda s: condition(node).state != "ok", 3 * registration.SOCKET_INTERVAL)
        node.apply(MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-a", model="T4"),))))
        await kubelet.until(lambda: kubelet.lists[GPU] == [("GPU-a", "Healthy")])


@pytest.mark.parametrize("manners", ["tidy", "untidy"])
async def test_nvidias_plugin_is_waited_for(node: Node, directory: Path, manners: str) -> None:
    """It is named with its process and command, its socket left alone, and taken over from when it goes, also by a
    kill."""
    path = directory / "nvidia-gpu.sock"
    async with running(directory) as kubelet:
        other = await Other.start(path)
        there = path.stat().st_ino
        async with serving(node, directory):
            await stands(node, "waiting", f"process {other.process.pid} ({sys.executable} -c")
            assert path.stat().st_ino == there
            assert not kubelet.asked
            await (other.end() if manners == "tidy" else other.kill())
            await stands(node, "ok")
            assert len(kubelet.asked) == 1


async def test_who_takes_our_resource_keeps_kubelet_until_it_goes(node: Node, directory: Path) -> None:
    """NVIDIA's plugin that is started beside us. Closing our stream then would make kubelet drop its devices."""
    path = directory / "nvidia-gpu.sock"
    async with running(directory) as kubelet, serving(node, directory):
        await stands(node, "ok")
        other = await Other.start(path, "untidy")
        await stands(node, "waiting", str(other.process.pid))
        node.apply(MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-a", model="T4"),))))
        assert not await node.wait_until(lambda s: condition(node).state != "waiting", 3 * registration.SOCKET_INTERVAL)
        assert len(kubelet.streams) == 1
        assert len(kubelet.lists[GPU]) == 2  # and says nothing
        await other.end()
        await stands(node, "ok")
        await kubelet.until(lambda: kubelet.lists[GPU] == [("GPU-a", "Healthy")])
        assert len(kubelet.asked) == 2


async def test_what_dead_agents_left_is_cleared_and_nothing_else(node: Node, directory: Path) -> None:
    async with running(directory):
        living = socket.socket(socket.AF_UNIX)
        with living:
            living.bind(str(directory / "gpuplane-11111111.sock"))
            living.listen()
            for name in ("gpuplane-0badcafe.sock", "nvidia-gpu.sock", "someone.sock"):
                with socket.socket(socket.AF_UNIX) as dead:
                    dead.bind(str(directory / name))
            (directory / "kubelet_internal_checkpoint").write_text("{}")
            async with serving(node, directory):
                await stands(node, "ok")
            left = {"gpuplane-11111111.sock", "kubelet.sock", "kubelet_internal_checkpoint"}
            assert {each.name for each in directory.iterdir()} == {*left, "nvidia-gpu.sock", "someone.sock"}


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
@pytest.mark.parametrize("name", ["gpuplane-0badcafe.sock", "nvidia-gpu.sock"])
async def test_what_has_the_name_of_a_socket_and_is_none_stops_nothing(
    node: Node, directory: Path, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left as it is, and said once where it has a name of ours."""
    path = directory / name
    async with running(directory) as kubelet:
        if kind == "directory":
            path.mkdir()
        elif kind == "file":
            path.write_text("")
        else:
            path.symlink_to("/dev/null")
        async with serving(node, directory):
            for times in (1, 2):
                await stands(node, "ok")
                assert len(kubelet.asked) == times
                await kubelet.drop()
                await stands(node, "waiting", "no longer reads")
        assert path.lstat()
    logged = [each for each in caplog.records if each.name == sockets.__name__]
    assert [each.args for each in logged] == ([(path,)] if name != "nvidia-gpu.sock" else [])


async def test_an_agent_that_was_told_to_end_keeps_its_stream_and_registers_no_more(
    node: Node, directory: Path
) -> None:
    """Not with a kubelet that restarts meanwhile either. Its streams end when it says so, without an empty list."""

    def tell(turn: Turn) -> None:
        node.apply(StatusChanged(KUBELET_LOCK_PART, TurnStatus("waiting", turn=turn)))

    async with serving(node, directory):
        async with running(directory) as first:
            await stands(node, "ok")
            tell("leaving")
            node.apply(MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-a", model="T4"),))))
            await first.until(lambda: first.lists[GPU] == [("GPU-a", "Healthy")])
            tell("left")
            await first.until(lambda: not first.streams)
            assert first.lists[GPU] == [("GPU-a", "Healthy")]
        tell("leaving")
        async with running(directory) as second:
            await asyncio.sleep(5 * RESTS[1])
            assert not second.asked
            assert len(first.asked) == 1


async def test_a_resource_that_goes_and_comes_back(node: Node, directory: Path) -> None:
    """Its streams get an empty list and end; its socket and its condition go; then it is registered as a new one."""
    async with running(directory) as kubelet, serving(node, directory):
        for times in (1, 2):
            await stands(node, "ok")
            await kubelet.until(lambda: len(kubelet.lists[GPU]) == 2)
            assert len(kubelet.asked) == times
            node.apply(ConfigLoaded(NONE))
            await kubelet.until(lambda: kubelet.lists[GPU] == [] and GPU not in kubelet.streams.values())
            assert await node.wait_until(lambda s: plugin_part(GPU) not in s.statuses, DEADLINE)
            await stands(node, "ok", resource="nvidia.com/none")
            assert ours(directory)
            node.apply(ConfigLoaded(ONE))
            kubelet.asked = [each for each in kubelet.asked if each[1].resource_name == GPU]


async def test_a_resource_that_comes_back_while_it_goes(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet, serving(node, directory):
        await stands(node, "ok")
        node.apply(ConfigLoaded(NONE))
        node.apply(ConfigLoaded(ONE))
        node.apply(ConfigLoaded(NONE))
        await kubelet.until(lambda: kubelet.lists[GPU] == [])
        node.apply(ConfigLoaded(ONE))
        await kubelet.until(lambda: len(kubelet.lists[GPU]) == 2)
        await stands(node, "ok")


async def test_at_the_end_streams_are_closed_and_only_our_sockets_go(node: Node, directory: Path) -> None:
    async with running(directory) as kubelet:
        async with serving(node, directory):
            await stands(node, "ok")
        await kubelet.until(lambda: not kubelet.streams)
        assert [each.name for each in directory.iterdir()] == ["kubelet.sock"]
        assert len(kubelet.lists[GPU]) == 2  # no empty list: after an update of the agent the capacity is as it was


async def test_a_kubelet_that_half_died_does_not_count(node: Node, directory: Path) -> None:
    """Its stream stays open, but another's socket stands in its place: while that does not read, it is not ok."""
    async with running(directory) as old, serving(node, directory):
        await stands(node, "ok")
        new = Kubelet(directory)
        new.reads = False
        await new.start(wipe=False)
        await new.until(lambda: bool(new.asked))
        assert condition(node).state == "waiting"
        new.reads = True
        await new.stop()
        new = await Kubelet(directory).start()
        await new.until(lambda: len(new.lists[GPU]) == 2)
        await stands(node, "ok")
        assert (len(old.asked), len(new.asked)) == (1, 1)
        await new.stop()


async def test_a_life_that_raises_is_contained(
    node: Node, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One resource's defect is said and tried again; the other resource is served."""
    hold = Registration._hold_registration

    async def defect(self: Registration) -> None:
        if self.resource == T4:
            raise ZeroDivisionError("a defect")
        await hold(self)

    monkeypatch.setattr(Registration, "_hold_registration", defect)
    node.apply(ConfigLoaded(BOTH))
    async with running(directory), serving(node, directory):
        await stands(node, "failing", "ZeroDivisionError: a defect", resource=T4)
        await stands(node, "ok")
        monkeypatch.undo()
        await stands(node, "ok", resource=T4)
    assert "ZeroDivisionError" in caplog.text


async def test_the_same_defect_is_logged_once(
    node: Node, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With its traceback; another one is logged again."""
    tries, enough = 0, asyncio.Event()

    async def defect(self: Registration) -> None:
        nonlocal tries
        tries += 1
        if tries > 5:
            enough.set()
        raise ZeroDivisionError("early" if tries < 4 else "late")

    monkeypatch.setattr(Registration, "_hold_registration", defect)
    async with serving(node, directory), asyncio.timeout(DEADLINE):
        await enough.wait()
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["early", "late"]


async def test_resources_are_registered_each_by_itself(node: Node, directory: Path) -> None:
    node.apply(ConfigLoaded(BOTH))
    async with running(directory) as kubelet:
        other = await Other.start(directory / "nvidia-gpu.sock")
        async with serving(node, directory):
            await stands(node, "ok", resource=T4)
            await stands(node, "waiting", "serves")
            assert [request.endpoint for _, request in kubelet.asked] == [ours(directory).name]
            await other.end()
            await stands(node, "ok")
