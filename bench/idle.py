"""An agent of which nothing is asked: its memory, the CPU time that it takes, and how often it wakes.

Memory is counted twice. PSS, by the kernel: what is shared is divided by those who share it, so it is the less the more
other programs of the same interpreter run, as the bench itself. And as if nobody else ran: what is private to the agent
and to its children, and once what they share with anybody. CPU time is the kernel's count of nanoseconds
(/proc/PID/task/*/schedstat), because ticks of 10 ms miss short runs; a wakeup is a voluntary context switch.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.reference import in_loops
from bench.rig import EIGHT, driven, running
from bench.row import Measure, Row
from gpuplane.sandbox.apiserver.server import ApiServer

STATUS = ("--metrics-address", "127.0.0.1:0")
SETTLES, LASTS = 5.0, 600.0  # seconds

SERVER = """
import asyncio, sys, grpc.aio
async def main():
    server = grpc.aio.server()
    server.add_insecure_port("unix:" + sys.argv[1])
    await server.start()
    await asyncio.sleep(1e6)
asyncio.run(main())
"""
"""A server of grpcio that serves nothing: what of an agent's wakeups is not ours."""


class Spent(NamedTuple):
    """What the threads of some processes have spent since they began: CPU seconds and wakeups."""

    cpu: float
    wakeups: int


def footprint(pid: int) -> tuple[float, str]:
    """MB: of a process with its children, as if nobody else ran; and what is private to each."""
    process, private, shared = psutil.Process(pid), list[float](), dict[str, float]()
    for each in (process, *process.children(recursive=True)):
        private.append(each.memory_full_info().uss / 1e6)
        for file in each.memory_maps(grouped=True):
            part = (file.rss - file.private_clean - file.private_dirty) / 1e6
            shared[file.path] = max(part, shared.get(file.path, 0.0))
    own, *children = (f"{each:.1f}" for each in private)
    how = f"private: agent {own}" + "".join(f", child {each}" for each in children)
    return sum(private) + sum(shared.values()), f"{how}; files that others map too: {sum(shared.values()):.1f}"


def pss(pid: int) -> float:
    """MB: the proportional set size of a process and its children."""
    process = psutil.Process(pid)
    return sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True))) / 1e6


def spent(pid: int) -> Mapping[Path, Spent]:
    """By thread, of a process and its children."""
    process, found = psutil.Process(pid), dict[Path, Spent]()
    for each in (process, *process.children(recursive=True)):
        for thread in Path(f"/proc/{each.pid}/task").iterdir():
            switches = (thread / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0]
            found[thread] = Spent(int((thread / "schedstat").read_text().split()[0]) / 1e9, int(switches))
    return found


async def used(*pids: int, seconds: float) -> list[Spent]:
    """What each process and its children spend in this time, for one second."""
    before, began = [spent(pid) for pid in pids], time.monotonic()
    await asyncio.sleep(seconds)
    rates, took = [], time.monotonic() - began
    for old, pid in zip(before, pids, strict=True):
        more = [(now, old.get(thread, Spent(0.0, 0))) for thread, now in spent(pid).items()]
        rates.append(Spent(sum(a.cpu - b.cpu for a, b in more) / took, sum(a.wakeups - b.wakeups for a, b in more)))
    return [Spent(each.cpu, round(each.wakeups / took)) for each in rates]


async def idle() -> list[Row]:
    """memory, CPU and wakeups while nothing happens"""
    async with AsyncExitStack() as stack:
        _, plain, _ = await stack.enter_async_context(running(EIGHT, 8, *STATUS))
        rig = stack.enter_context(driven())
        server = await stack.enter_async_context(ApiServer())
        server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        kubeconfig = rig.folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        more = (*rig.flags, "--node-name", "n1", "--kubeconfig", kubeconfig, *STATUS)
        _, full, _ = await stack.enter_async_context(running("nvml", 8, *more))
        bare = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, rig.folder / "bare.sock")
        try:
            await asyncio.sleep(SETTLES)
            pids = plain.process.pid, full.process.pid
            (least, parts), (most, more_parts) = map(footprint, pids)
            shared = pss(full.process.pid)
            one, all_of_it, grpcio = await used(*pids, bare.pid, seconds=LASTS)
        finally:
            bare.kill()
            await bare.wait()
    over = f"over {LASTS:g} s"
    beyond = f"{all_of_it.wakeups} of it and the driver's process, {grpcio.wakeups} of grpcio alone; {over}"
    what = "driver library (stand-in) and API client too"
    return [
        Row("memory, 8 GPUs, metrics and file watch", least, 60, "MB", parts),
        in_loops(Row("CPU, 8 GPUs, metrics and file watch", one.cpu * 100, 0.4, "% of a core", over)),
        Row(f"memory (PSS), 8 GPUs, {what}", shared, 70, "MB", "agent and driver's process"),
        Row("memory of the same two processes as if nobody else ran", most, 75, "MB", more_parts),
        Row(f"CPU, 8 GPUs, {what}, polled each second", all_of_it.cpu * 100, 0.4, "%", f"of a core, {over}"),
        Row(
            "wakeups of the same agent, without those of a gRPC server that serves nothing",
            all_of_it.wakeups - grpcio.wakeups,
            8,
            "/s",
            beyond,
        ),
    ]


MEASURES: tuple[Measure, ...] = (idle,)
