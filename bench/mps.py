"""MPS daemons: how soon one that was killed is back.

NVIDIA's programs are stand-ins here: the figures are of supervision, and the real daemon's start comes to them.
"""

import asyncio
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from bench.row import Measure, Row
from gpuplane.node.host.mps.control import LOG_DIRECTORY_VARIABLE
from gpuplane.node.host.mps.processes import CONTROL_PROGRAM, PIPE_DIRECTORY_VARIABLE, Process
from gpuplane.node.model.mps import MpsDaemon
from tests.node.host.mps.world import World

KILLS, CLIENTS = 100, 4
PIPED, DROPPED = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
GPU = MpsDaemon(
    name="nvidia.com/gpu",
    client_memory_mib_by_device={"GPU-a": 8192, "GPU-b": 8192},
    active_thread_percentage=25,
    exclusive_compute_mode=True,
)


async def kills() -> list[Row]:
    """a control daemon killed 100 times while clients come and go"""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        async with World(Path(folder)) as world:
            await world.supervise()
            world.want(GPU)
            running = await world.until_ok(GPU.name)
            directory, back, told = world.pipe(GPU.name).stat().st_ino, list[float](), list[float]()
            load = [asyncio.create_task(_come_and_go(world)) for _ in range(CLIENTS)]
            for _ in range(KILLS):
                began = time.perf_counter()
                os.kill(running.pid, signal.SIGKILL)
                seen = asyncio.create_task(_seen(world, running))
                await _answers(world, running)
                back.append(time.perf_counter() - began)
                await seen
                told.append(seen.result() - began)
                running = await world.until_ok(GPU.name, but=running)
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
            moved = int(world.pipe(GPU.name).stat().st_ino != directory)
    how = f"{KILLS} kills, {CLIENTS} clients coming and going, median {statistics.median(back):.2f} s; a stand-in"
    return [
        Row("MPS daemon killed under load, answers again", max(back), 2, "s", how),
        Row("a killed daemon is no longer said to be ok", max(told), 2, "s", f"median {statistics.median(told):.2f} s"),
        Row("clients' directory replaced", moved, 0, "", "it is the very same after the last kill"),
    ]


async def _answers(world: World, before: Process) -> None:
    """Until a daemon other than that answers."""
    await world.until(lambda: (running := world.daemon(GPU.name)) and running != before)
    environment = {
        PIPE_DIRECTORY_VARIABLE: str(world.pipe(GPU.name)),
        LOG_DIRECTORY_VARIABLE: str(world.pipe(GPU.name).with_name("log")),
    }
    for _ in range(100):
        process = await asyncio.create_subprocess_exec(
            world.tools / CONTROL_PROGRAM, stdin=PIPED, stdout=DROPPED, env=environment
        )
        await process.communicate(b"get_server_list\n")
        if process.returncode == 0:
            return
    raise TimeoutError("the daemon that came does not answer")


async def _seen(world: World, before: Process) -> float:
    """When the daemon that was killed is no longer said to be ok."""

    def seen() -> bool:
        stands = world.standing(GPU.name)
        return stands is not None and (stands.state, stands.pid) != ("ok", before.pid)

    await world.until(seen)
    return time.perf_counter()


async def _come_and_go(world: World) -> None:
    """One client after another; one that meets no daemon tries again."""
    while True:
        try:
            client, _ = await world.compute(GPU.name)
        except ValueError:
            await asyncio.sleep(0.05)
        else:
            await asyncio.sleep(0.3)
            await world.end(client)


MEASURES: tuple[Measure, ...] = (kills,)
