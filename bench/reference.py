"""What times are compared with: work that is not ours, measured in the same run.

A budget in seconds holds for one machine: one half as fast misses it, though nothing is wrong. So a time of computation
is a figure of the machine's too, and its budget is a ratio to one of these:

- the loop, for what Python computes: a fixed piece of interpreted work;
- the bare server, for the start of the agent: what Python and grpcio alone take to register;
- the program that does nothing, for a program that is started.

They contain nothing of the agent's: what makes it slower makes no budget larger. A time of waiting (for a period,
a disk, another process) has no reference: its budget stays in seconds.
"""

import asyncio
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.row import Row
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet import Kubelet

TURNS, LOOPS = 60_000, 25
OUR_LOOP = 10.0
"""Milliseconds that the loop takes on the machine for which the budgets were chosen."""

MILLISECONDS = {"ms": 1.0, "s": 1000.0, "% of a core": 10.0}
"""In one of each unit that `in_loops` takes; of a core's percent, in each second."""


def loop(turns: int = TURNS) -> float:
    """Seconds of CPU of a loop with so many turns: whole numbers, and a table of them."""
    seen, value, began = dict[int, int](), 1, time.thread_time()
    for turn in range(turns):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        key = value % 1024
        seen[key] = seen.get(key, 0) + turn
    return time.thread_time() - began


@functools.cache
def loop_time() -> float:
    """Milliseconds that the loop takes here. Measured once a run, so that all rows have the same reference."""
    return statistics.median(loop() for _ in range(LOOPS)) * 1e3


def in_loops(row: Row) -> Row:
    """A row with its figure, a time here, and its budget, a time on our machine, both in loops; `how` has the time."""
    one, per = MILLISECONDS[row.unit], "/s" if row.unit.startswith("%") else ""
    how = f"{row.figure:.3g} {row.unit}" + (f", {row.how}" if row.how else "")
    return Row(row.what, row.figure * one / loop_time(), row.budget * one / OUR_LOOP, f"loops{per}", how)


RESOURCE = "example.com/bare"
BARE = """
import asyncio, sys, grpc, grpc.aio

async def main(folder):
    register, devices = (open(f"{folder}/{name}", "rb").read() for name in ("register", "devices"))

    async def options(request, context):
        return b""

    async def watch(request, context):
        yield devices
        await asyncio.sleep(1e6)

    server = grpc.aio.server()
    methods = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(options),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(watch),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)])
    server.add_insecure_port(f"unix:{folder}/bare.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder}/kubelet.sock") as kubelet:
        await kubelet.unary_unary("/v1beta1.Registration/Register")(register)
    await server.wait_for_termination()

asyncio.run(main(sys.argv[1]))
"""
"""The least that a plugin of grpcio does: it serves, registers, and tells a list that it was given as bytes."""


async def bare_start(count: int) -> float:
    """Seconds from the start of a bare server until kubelet has its list of so many devices."""
    devices = [pb.Device(ID=f"GPU-00000000-0000-0000-0000-{each:012}", health="Healthy") for each in range(count)]
    request = pb.RegisterRequest(version="v1beta1", endpoint="bare.sock", resource_name=RESOURCE)
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        async with Kubelet(Path(directory)) as kubelet:
            folder = kubelet.manager.directory
            (folder / "devices").write_bytes(pb.ListAndWatchResponse(devices=devices).SerializeToString())
            (folder / "register").write_bytes(request.SerializeToString())
            began = time.perf_counter()
            server = await asyncio.create_subprocess_exec(sys.executable, "-c", BARE, folder)
            try:
                await kubelet.until_capacity(RESOURCE, count, count, deadline=30)
                return time.perf_counter() - began
            finally:
                server.kill()
                await server.wait()


NOTHING = "int main(void) { return 0; }"


def nothing(folder: Path) -> Path:
    """A static program that does nothing, made in a folder."""
    program = folder / "nothing"
    subprocess.run(["cc", "-static", "-x", "c", "-", "-o", program], input=NOTHING, text=True, check=True)
    return program
