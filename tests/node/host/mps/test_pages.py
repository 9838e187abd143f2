"""The supervisor has the pages of every daemon, and ends as every daemon does."""

import asyncio
import signal
import urllib.error
import urllib.request

from tests.node.host.mps.world import World
from tests.service.test_pages_over_tls import free_port


def page(port: int, path: str) -> tuple[int, str]:
    """(status, body); 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def becomes(port: int, path: str, status: int) -> str:
    """Wait until a page has a status; its body."""
    async with asyncio.timeout(60):
        while (found := await asyncio.to_thread(page, port, path))[0] != status:
            await asyncio.sleep(0.05)
    return found[1]


async def test_a_supervisor_is_ready_once_it_supervises(world: World) -> None:
    """One that waits for another is alive and not ready, and says for whom it waits."""
    first, second = free_port(), free_port()
    await world.supervise("--metrics-address", f"127.0.0.1:{first}")
    assert await becomes(first, "/readyz", 200) == "ok\n"
    assert "process_start_time_seconds" in await becomes(first, "/metrics", 200)
    assert world.supervisor is not None
    serving = str(world.supervisor.pid)

    async with World(world.root.parent, tools=world.tools) as other:
        await other.supervise("--metrics-address", f"127.0.0.1:{second}")
        await becomes(second, "/healthz", 200)
        assert serving in await becomes(second, "/readyz", 503)
        await world.kill(signal.SIGTERM)
        assert await becomes(second, "/readyz", 200) == "ok\n"


async def test_a_port_that_is_taken_costs_no_daemon(world: World) -> None:
    """It is said, and the supervisor supervises all the same."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        pid = await world.supervise("--metrics-address", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await world.until(lambda: (status := world.status()) and status.pid == pid)
        await world.until(lambda: any("status pages" in line for line in world.log))


async def test_a_signal_ends_it_with_0(world: World) -> None:
    """As a daemon that did what it was told."""
    await world.supervise()
    await world.until(lambda: bool(world.status()))
    supervisor = world.supervisor
    assert supervisor is not None
    await world.kill(signal.SIGTERM)
    assert supervisor.returncode == 0
