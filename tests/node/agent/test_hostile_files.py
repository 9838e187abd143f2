"""Whatever stands in the place of a file: the agent says what is wrong and where, serves, recovers, and ends."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from gpuplane.node.core.containers.cdi.names import VENDOR
from gpuplane.node.core.ledger import encode_part
from gpuplane.node.host.state import boot_id
from gpuplane.node.model.health import DeviceRecord, Drain, HealthRecords
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet
from tests import hostile
from tests.node.host.cdi.world import CDI, Place, machine

GPU = "nvidia.com/gpu"
CONFIG = "nvidia.com/device-plugin.config"
PATIENCE = 60.0  # seconds, on a busy machine
LONGEST = 10.0  # seconds to end
MOST = 32e6  # bytes more than before; half of it is promised (`make bench`), and a busy day may take some more


class World(Place):
    """A node with everything that an agent reads, its kubelet and its API server."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.kubeconfig, self.kernel_log = root / "kubeconfig", root / "kmsg"
        self.kernel_log.write_bytes(b"")
        self.server = ApiServer()
        self.more: tuple[object, ...] = ()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Kubelet, Agent]]:
        """All of it, and an agent that may not come to serve yet."""
        async with self.server, self.kubelet() as kubelet:
            self.server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1", "labels": {CONFIG: "whole"}}})
            if not self.kubeconfig.exists():
                self.kubeconfig.write_text(self.server.kubeconfig())
            more = ("--node-name", "n1", "--kubeconfig", self.kubeconfig, "--kernel-log", self.kernel_log, *self.more)
            async with self.agent(*more) as agent:
                yield kubelet, agent


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def says(agent: Agent, after: int, *texts: str) -> None:
    """Wait for a line of the log, after so many, with all these texts."""

    def said() -> bool:
        return any(all(text in line for text in texts) for line in agent.log[after:])

    try:
        async with asyncio.timeout(PATIENCE):
            while not said():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(f"it never said {texts}:\n" + "\n".join(agent.log[after:])) from None


async def serves(kubelet: Kubelet) -> None:
    """An Allocate is answered."""
    answer = await kubelet.manager.endpoints[GPU].allocate(["GPU-0"])
    assert [each.name for each in answer.cdi_devices] == [f"{VENDOR}/gpu=GPU-0"]


async def ends(agent: Agent) -> None:
    """When it is asked to."""
    assert await agent.stop(deadline=LONGEST) == 0


def memory(agent: Agent) -> int:
    """Bytes."""
    return int(psutil.Process(agent.process.pid).memory_info().rss)


async def test_a_configuration(world: World) -> None:
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2)
        before = memory(agent)
        for kind in hostile.KINDS:
            said = len(agent.log)
            hostile.put(world.config, kind)
            what = "configuration" if kind == "a directory" else str(world.config)  # it has none of them
            await says(agent, said, "config: failing", what, "keeps using the last good configuration")
            await serves(kubelet)
            said = len(agent.log)
            hostile.write(world.config, CDI.encode(), owner=65534 if os.geteuid() == 0 else -1)
            await says(agent, said, "config: ok")
            await serves(kubelet)
        hostile.put(world.config, "a FIFO")
        assert memory(agent) < before + MOST
        await ends(agent)


async def test_one_of_the_named_configurations(world: World) -> None:
    world.config.unlink()
    world.config.mkdir()
    (world.config / "whole").write_text(CDI)
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        before = memory(agent)
        for kind in hostile.KINDS:
            hostile.put(world.config / "other", kind)
            await serves(kubelet)
            said = len(agent.log)
            hostile.put(world.config / "whole", kind)
            await says(
                agent,
                said,
                "config: failing",
                str(world.config / "whole") if kind == "a file without an end" else "'whole'",
            )
            await serves(kubelet)
            said = len(agent.log)
            hostile.write(world.config / "whole", CDI.encode())
            await says(agent, said, "config: ok")
        assert memory(agent) < before + MOST
        await ends(agent)


LAYOUT = "  a: [{devices: [0], mig-enabled: true, mig-devices: {%s}}]\n"
MIG_DOCUMENTS = {
    "a bomb of aliases": "a: &a [1, 1]\n"
    + "".join(f"a{n}: &a{n} [*a{n - 1 or ''}, *a{n - 1 or ''}]\n" for n in range(1, 30)),
    "60,000 devices": f"  a: [{{devices: {[*range(60_000)]}, mig-enabled: false}}]\n",
    "5,000 entries": "  a:\n" + "  - {devices: all, mig-enabled: false}\n" * 5000,
    "a profile without an end": LAYOUT % f'"1g10{" " * 500_000}?": 1',
    "a number of 5,000 digits": LAYOUT % f"1g.10gb: {'9' * 5000}",
    "a negative count": LAYOUT % "1g.10gb: -1",
    "control characters": LAYOUT % r'"1g\e[2J\0": 1',
    "5,000 keys that nobody knows": "".join(f"  k{n}: 1\n" for n in range(5000)),
}
"""What the author of a ConfigMap may write as MIG configurations."""


async def test_documents_of_mig_configurations(world: World) -> None:
    """Each is an error, and kubelet is served."""
    layouts = world.root / "layouts.yaml"
    good = ("version: v1\nmig-configs:\n" + LAYOUT % "1g.10gb: 7").encode()
    layouts.write_bytes(good)
    world.configure(f"{CDI}mig: {{configFile: {layouts}}}\n")
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        before = memory(agent)
        for text in MIG_DOCUMENTS.values():
            said = len(agent.log)
            hostile.write(layouts, f"version: v1\nmig-configs:\n{text}".encode())
            await says(agent, said, "mig configs file: failing", str(layouts), "keeps using the last good version")
            await serves(kubelet)
            hostile.write(layouts, good)
            await says(agent, said, "mig configs file: ok")
        assert all(line.isprintable() for line in agent.log)
        assert memory(agent) < before + MOST
        await ends(agent)


async def test_a_machine_file(world: World) -> None:
    good = world.machine.read_bytes()
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2)
        before = memory(agent)
        for kind in hostile.KINDS:
            said = len(agent.log)
            hostile.put(world.machine, kind)
            await says(agent, said, "machine file: failing", world.machine.name)
            await serves(kubelet)
            hostile.write(world.machine, msgspec.json.encode(machine(range(3))))
            await kubelet.until_capacity(GPU, 3, 3, PATIENCE)
            hostile.write(world.machine, good)
            await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        hostile.put(world.machine, "a FIFO")
        assert memory(agent) < before + MOST
        await ends(agent)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "another's"])
async def test_a_cdi_file(world: World, ours: bool) -> None:
    """In our place it is replaced; a file of others is theirs."""
    path = world.file() if ours else world.cdi / "other.json"
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2)
        before = memory(agent)
        for kind in hostile.KINDS:
            if kind == "a directory" and ours:  # cannot be replaced: it is said, and nothing new is given out
                continue
            hostile.put(path, kind)
            if ours:
                async with asyncio.timeout(PATIENCE):
                    while not (path.is_file() and not path.is_symlink() and path.stat().st_size < hostile.SPARSE):
                        await asyncio.sleep(0.02)
            await asyncio.sleep(1.1)  # it has looked
            await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
            await serves(kubelet)
        assert memory(agent) < before + MOST
        await ends(agent)


async def test_a_kubeconfig(world: World) -> None:
    """Read again each time that a stream ends."""
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2)
        await says(agent, 0, "apiserver: ok")
        before = memory(agent)
        good = world.kubeconfig.read_bytes()
        for kind in ("a FIFO", "a file without an end"):  # the rests become longer
            said = len(agent.log)
            hostile.put(world.kubeconfig, kind)
            await world.server.drop_connections()
            await says(agent, said, "apiserver: failing", str(world.kubeconfig), "cannot be used")
            await serves(kubelet)
            said = len(agent.log)
            hostile.write(world.kubeconfig, good)
            await says(agent, said, "apiserver: ok")
        hostile.put(world.kubeconfig, "a FIFO")
        assert memory(agent) < before + MOST
        await ends(agent)


@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
async def test_each_of_them_at_the_start(world: World, kind: str) -> None:
    """Nothing waits for a file: what is wrong with each is said, and when all is well the agent serves."""
    good = {path: path.read_bytes() for path in (world.machine, world.config)}
    for path in (*good, world.kernel_log, world.kubeconfig):
        hostile.put(path, kind)
    async with world.running() as (kubelet, agent):
        await says(agent, 0, "driver: failing", world.machine.name, "regular file")
        await says(agent, 0, "config: failing", str(world.config), "regular file")
        await says(agent, 0, "apiserver: failing", str(world.kubeconfig), "regular file")
        before = memory(agent)
        for path, content in (*good.items(), (world.kubeconfig, world.server.kubeconfig().encode())):
            hostile.write(path, content)
        await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        await says(agent, 0, "apiserver: ok")
        await serves(kubelet)
        if kind == "a device":  # a FIFO is a log without a record
            await says(agent, 0, "kernel log: waiting", str(world.kernel_log), "/dev/kmsg, a file or a pipe")
        assert memory(agent) < before + 2 * MOST  # it has come to serve meanwhile
        await ends(agent)


async def test_an_agent_that_has_not_come_to_serve_ends_too(world: World) -> None:
    """Though no file of all is good."""
    for path in (world.machine, world.config, world.kernel_log, world.kubeconfig):
        hostile.put(path, "a FIFO")
    async with world.running() as (_, agent):
        await says(agent, 0, "apiserver: failing")
        began = time.monotonic()
        await ends(agent)
        print(f"ended {time.monotonic() - began:.2f} s after SIGTERM")


@pytest.mark.parametrize("name", ["health.json.new", "health.json"])
async def test_where_a_state_file_is_written(world: World, name: str) -> None:
    """What stands there while the agent serves is neither written to nor waited for: what befell a GPU is stored."""
    state = world.root / "s"
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2)
        await says(agent, 0, "state: ok")
        before = memory(agent)
        for number, kind in enumerate(hostile.KINDS):
            if kind == "a directory":  # which cannot be replaced: that is said, and it is tried again
                continue
            hostile.put(state / name, kind)
            drain = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpuplane", "health", "drain", "1", "--why", f"reason {number}",
                "--state-dir", str(state),
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE):
                assert await drain.wait() == 0
            assert f"reason {number}" in (state / "health.json").read_text()
            await serves(kubelet)
        hostile.put(state / name, "a FIFO")
        assert memory(agent) < before + MOST
        await ends(agent)


PARTS = ("health", "mig-parents", "share-layouts", "node-requests", "config-name", "release", "time-slices")


@pytest.mark.parametrize("kind", hostile.KINDS)
async def test_state_files_at_the_start(world: World, kind: str) -> None:
    """None of them is waited for: each is named with its path, and what can be replaced is written again."""
    state = world.root / "s"
    state.mkdir(mode=0o700)
    for part in PARTS:
        hostile.put(state / f"{part}.json", kind)
        hostile.put(state / f"{part}.json.new", kind)
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        for part in PARTS:
            await says(agent, 0, "ERROR", str(state / f"{part}.json"), "does not change the file")
        await serves(kubelet)
        await ends(agent)


@pytest.mark.parametrize("kind", hostile.KINDS)
@pytest.mark.parametrize("name", ["lock", "control.sock"])
async def test_the_lock_and_the_control_socket_at_the_start(world: World, name: str, kind: str) -> None:
    """Nothing is written to what stands there; what cannot be replaced is said."""
    state = world.root / "s"
    state.mkdir(mode=0o700)
    hostile.put(state / name, kind)
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        if name == "lock" and kind != "a file without an end":
            await says(agent, 0, "state: failing", str(state / "lock"))
        elif kind == "a directory":
            await says(agent, 0, "control: failing", str(state / name))
        await serves(kubelet)
        await ends(agent)


def _foreign(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "health.json").write_text("{}")
    os.chown(state, 65534, 65534)


def _shared(state: Path) -> None:
    state.mkdir()
    state.chmod(0o777)


def _inside_a_foreign_one(state: Path) -> None:
    """Its owner could put another one there."""
    state.with_name("theirs").mkdir()
    (state.with_name("theirs") / "s").mkdir(mode=0o700)
    os.lchown(state.with_name("theirs"), 65534, 65534)
    state.symlink_to("theirs/s")


UNFIT: dict[str, Callable[[Path], None]] = {
    **{kind: partial(hostile.put, kind=kind) for kind in hostile.KINDS if kind != "a directory"},
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a directory of another owner": _foreign,
    "a directory that others may write to": _shared,
    "a directory inside one of another owner": _inside_a_foreign_one,
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", UNFIT)
async def test_a_state_directory_that_cannot_be_used_at_the_start(world: World, what: str) -> None:
    """It is said with its path, nothing is put into it, and GPUs are given out all the same."""
    state = world.root / "s"
    UNFIT[what](state)
    before = sorted(state.iterdir()) if state.is_dir() else []
    async with world.running() as (kubelet, agent):
        await kubelet.until_capacity(GPU, 2, 2, PATIENCE)
        await says(agent, 0, "state: failing", str(state))
        await serves(kubelet)
        await ends(agent)
    assert (sorted(state.iterdir()) if state.is_dir() else []) == before


@contextmanager
def mounted(state: Path, how: str) -> Iterator[None]:
    """A file system of its own, on which GPU-1 is drained and nothing more can be written."""
    state.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", state], check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        drained = HealthRecords(devices={"GPU-1": DeviceRecord(drain=Drain(reason="fan"))})
        (state / "health.json").write_bytes(encode_part(drained, boot_id()))
        if how == "full":
            with suppress(OSError), (state / "fill").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))
        else:
            subprocess.run(["mount", "-o", "remount,ro", state], check=True)
        yield
    finally:
        subprocess.run(["umount", state], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("how", ["full", "read-only"])
async def test_a_file_system_that_takes_nothing_at_the_start(world: World, how: str) -> None:
    """GPUs are given out, and what the state files there say holds."""
    state = world.root / "s"
    with mounted(state, how):
        async with world.running() as (kubelet, agent):
            await kubelet.until_capacity(GPU, 2, 1, PATIENCE)
            await says(agent, 0, "state: failing", str(state))
            await serves(kubelet)
            await ends(agent)
