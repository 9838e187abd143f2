"""Leader election by a Lease of a real API server: a leader that is killed, and one that loses its connection."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuplane.kubernetes.client import connect
from gpuplane.service.leaderelection import Candidate, ElectionTimes, boot_time
from tests.cluster.controlplane import DEADLINE, Client, ControlPlane

TIMES = ElectionTimes(lease_duration=6, renew_deadline=3.0, retry_period=0.4)
"""A busy machine may delay a leader's last act by the difference of the first two."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]

PROGRAM = """
import asyncio, sys
from pathlib import Path
from gpuplane.kubernetes.client import connect
from gpuplane.service.leaderelection import Candidate, ElectionTimes, boot_time

async def main():
    async with connect(Path(sys.argv[1])) as client:
        candidate = Candidate(client, "default", sys.argv[2], "first", ElectionTimes(6, 3.0, 0.4))
        async def work():
            while True:
                if candidate.is_leader():
                    print(boot_time(), flush=True)
                await asyncio.sleep(0.05)
        await candidate.lead(work)

asyncio.run(main())
"""


class Way:
    """A connection to the API server that can be cut: what is sent then waits, and a new connection is reset."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self._control_plane = control_plane
        self.kubeconfig = folder / "kubeconfig"
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Way":
        where = urlsplit(self._control_plane.server["server"])
        self._to = where.hostname, where.port
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        text = json.loads(self._control_plane.kubeconfig.read_text())
        text["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self.kubeconfig.write_text(json.dumps(text))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what is closed is let go of

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open.is_set():
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._to)
        self._tasks |= {asyncio.create_task(self._pump(*each)) for each in ((reader, back), (there, writer))}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self.is_open.wait()
                sink.write(data)
        except ConnectionError:
            pass
        finally:
            sink.transport.abort()


@asynccontextmanager
async def leading(kubeconfig: Path, lease: str, name: str) -> AsyncIterator[list[float]]:
    """A candidate that leads again and again; when it did the leader's work."""
    acts: list[float] = []
    async with connect(kubeconfig) as client:
        candidate = Candidate(client, "default", lease, name, TIMES)

        async def work() -> None:
            while True:
                if candidate.is_leader():
                    acts.append(boot_time())
                await asyncio.sleep(0.02)

        async def lead() -> None:
            while True:
                await candidate.lead(work)

        task = asyncio.create_task(lead())
        try:
            yield acts
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until_more(acts: list[float], since: int = 0) -> None:
    """Wait until a candidate has worked."""
    async with asyncio.timeout(DEADLINE):
        while len(acts) <= since:
            await asyncio.sleep(0.02)


async def test_a_leader_that_is_killed_is_followed(control_plane: ControlPlane) -> None:
    """After its time, and never before: by the times of their acts, of one clock."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, control_plane.kubeconfig, "killed", stdout=PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    async with leading(control_plane.kubeconfig, "killed", "second") as acts:
        await asyncio.sleep(8)
        assert acts == []
        process.kill()
        said = await process.stdout.read()
        await process.wait()
        await until_more(acts)
    assert float(said.split()[-1]) < acts[0]


async def test_a_leader_without_a_connection_is_followed(control_plane: ControlPlane, tmp_path: Path) -> None:
    """It stops by its own clock, before the other begins; the Lease counts one transition. At the end it is free."""
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(Way(control_plane, tmp_path))
        first = await stack.enter_async_context(leading(way.kubeconfig, "cut", "first"))
        await until_more(first)
        second = await stack.enter_async_context(leading(control_plane.kubeconfig, "cut", "second"))
        way.is_open.clear()
        await until_more(second)
        acts = len(first)
        assert first[-1] < second[0]
        way.is_open.set()
        await asyncio.sleep(8)
        assert len(first) == acts
        async with Client(control_plane) as admin:
            spec = (await admin.ask("GET", f"{LEASES}/cut"))["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("second", 1, 6)
    async with Client(control_plane) as admin:
        assert (await admin.ask("GET", f"{LEASES}/cut"))["spec"].get("holderIdentity", "") == ""
