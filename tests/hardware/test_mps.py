"""NVIDIA's own MPS daemon: start, limits, quit. Compute modes are left alone."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.control import LOG_DIRECTORY_VARIABLE
from gpuplane.node.host.mps.daemonkeeper import VISIBLE_DEVICES_VARIABLE
from gpuplane.node.host.mps.processes import CONTROL_PROGRAM, PIPE_DIRECTORY_VARIABLE
from gpuplane.node.model.mps import MpsDaemon
from tests.hardware.capture import look
from tests.node.host.mps.world import World

NAME, MIB = "nvidia.com/gpu", 2048
CLIENT = f"""
import ctypes, sys
cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
for code in (cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
    if code:
        sys.exit(f"CUDA error {{code}}")
print(*(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20)) for mib in (16, {MIB + 64})), flush=True)
sys.stdin.read()
"""
OUT_OF_MEMORY = 2


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A supervisor of NVIDIA's programs."""
    found = shutil.which(CONTROL_PROGRAM)
    if found is None:
        pytest.skip(f"needs {CONTROL_PROGRAM}")
    if os.getuid():
        pytest.skip("needs root: a server runs as the user of its clients")
    with TemporaryDirectory(prefix="mps-") as folder:
        async with World(Path(folder), tools=Path(found).parent) as world:
            await world.supervise()
            yield world


@pytest.fixture
def gpu() -> str:
    """A GPU that is not partitioned."""
    whole = [gpu for gpu in asyncio.run(look()).gpus or () if not gpu.mig_enabled]
    if not whole:
        pytest.skip("needs a GPU that is not in MIG mode")
    return whole[0].uuid


async def ask(world: World, command: str) -> str:
    """What the daemon answers."""
    process = await asyncio.create_subprocess_exec(
        CONTROL_PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            PIPE_DIRECTORY_VARIABLE: str(world.pipe(NAME)),
            LOG_DIRECTORY_VARIABLE: str(world.pipe(NAME).with_name("log")),
        },
    )
    async with asyncio.timeout(60):
        return (await process.communicate(command.encode() + b"\n"))[0].decode().strip()


def mode(gpu: str) -> str:
    """The compute mode of a GPU."""
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=compute_mode", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout


async def test_a_daemon_is_started_limited_and_ended(gpu: str, world: World) -> None:
    """Its client meets its memory limit; it stays for that client's sake, and goes when that one ends."""
    before = await asyncio.to_thread(mode, gpu)
    world.want(MpsDaemon(name=NAME, client_memory_mib_by_device={gpu: MIB}, active_thread_percentage=25))
    running = await world.until_ok(NAME)
    assert float(await ask(world, "get_default_active_thread_percentage")) == 25

    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, PIPE_DIRECTORY_VARIABLE: str(world.pipe(NAME)), VISIBLE_DEVICES_VARIABLE: gpu},
    )  # fmt: skip
    world.clients.append(client)
    assert client.stdout is not None
    async with asyncio.timeout(60):
        assert (await client.stdout.readline()).split() == [b"0", str(OUT_OF_MEMORY).encode()]
    [server] = world.servers(NAME)
    assert str(client.pid) in (await ask(world, f"get_client_list {server.pid}")).split()

    world.want()
    await world.until_says(NAME, "stays until its clients have ended")
    assert processes.is_alive(running)
    await world.end(client)
    await world.until(lambda: not world.family())
    assert await asyncio.to_thread(mode, gpu) == before


async def test_a_daemon_that_is_killed_comes_back(gpu: str, world: World) -> None:
    """In the directory in which it was, with its limits, though it left its files there."""
    world.want(MpsDaemon(name=NAME, client_memory_mib_by_device={gpu: MIB}, active_thread_percentage=25))
    running = await world.until_ok(NAME)
    os.kill(running.pid, signal.SIGKILL)
    await world.until_ok(NAME, but=running)
    assert float(await ask(world, "get_default_active_thread_percentage")) == 25
