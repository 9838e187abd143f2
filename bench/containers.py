"""Containers: how soon the CDI specifications follow a change of the machine."""

import asyncio
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.hook import hook
from bench.reference import in_loops
from bench.rig import described
from bench.row import Measure, Row
from gpuplane.node.agent.node import Node
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.containers.cdi import specstatus as condition
from gpuplane.node.core.containers.cdi.desiredspecs import GPU_KIND, desired_specs
from gpuplane.node.core.containers.cdi.specbuilder import build_spec
from gpuplane.node.core.containers.cdi.specrequest import SpecOptions
from gpuplane.node.host.cdi.directory import file_names_of_kind
from gpuplane.node.host.cdi.hook import HOOK_PATH
from gpuplane.node.host.cdi.specifications import keep_specifications
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Snapshot

PARTITIONED = "a100-mig"
CHANGES, PARTS = 100, 7
MEMORY = "/dev/shm"
"""A file system without a disk: fsync waits for nothing there."""


async def refresh() -> list[Row]:
    """a MIG change of 8 GPUs, until the specification is on disk"""
    machine = described(PARTITIONED)
    on_disk, size = await _changes(machine, None)
    computed, _ = await _changes(machine, MEMORY)
    *_, last = _layouts(machine)
    taken, memory = _document(last)
    synced = f"{CHANGES} changes, median {statistics.median(on_disk):.1f} ms, with fsync; {size / 1e3:.0f} kB"
    how = (
        f"{CHANGES} changes, median {statistics.median(computed):.1f} ms; of that the document {taken * 1e3:.1f} ms "
        f"and {memory / 1e6:.1f} MB for a moment"
    )
    what = "specification after a MIG change of 8 GPUs, from the look to the"
    return [
        Row(f"{what} disk", max(on_disk), 200, "ms", synced),
        in_loops(Row(f"{what} file, without fsync", max(computed), 150, "ms", how)),
    ]


async def _changes(machine: Machine, where: str | None) -> tuple[list[float], int]:
    """Milliseconds of each change, with the files in a directory there; and the bytes of the last specification."""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-", dir=where) as directory:
        node = Node(Snapshot())
        settings = Settings(mig_strategy="mixed", device_list_strategy=("cdi-cri",))
        for fact in (ConfigLoaded(settings), AllocationsListed((), 0.0), MachineObserved(machine)):
            node.apply(fact)
        keeping = asyncio.create_task(keep_specifications(node, Path(directory), HOOK_PATH, None))
        assert await node.wait_until(lambda snapshot: bool(condition.fingerprints_on_disk(snapshot)), 10)
        times = []
        for partitioned in _layouts(machine):
            began = time.perf_counter()
            node.apply(MachineObserved(partitioned))
            assert await node.wait_until(_is_on_disk, 10)
            times.append((time.perf_counter() - began) * 1e3)
        size = (Path(directory) / file_names_of_kind(GPU_KIND)[0]).stat().st_size
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
    return times, size


def _layouts(machine: Machine) -> Iterator[Machine]:
    """All GPUs in as many MIG devices as there can be, each time others."""
    for turn in range(CHANGES):
        gpus = (
            gpu.but(
                mig=Mig(
                    enabled=True,
                    devices=tuple(
                        MigDevice(
                            uuid=f"MIG-{turn}-{gpu.index}-{slot}",
                            profile="1g.10gb",
                            gpu_instance=7 + slot,
                            mig_index=slot,
                            device_nodes=tuple(
                                f"/dev/nvidia-caps/nvidia-cap{135 * gpu.index + 9 * slot + n}" for n in (3, 4)
                            ),
                        )
                        for slot in range(PARTS)
                    ),
                )
            )
            for gpu in machine.gpus or ()
        )
        yield machine.but(gpus=tuple(gpus))


def _is_on_disk(snapshot: Snapshot) -> bool:
    """Whether all that is wanted is there, and given out."""
    spec = desired_specs(snapshot)[GPU_KIND].spec
    assert spec is not None
    marks = set(condition.spec_fingerprints([spec]))
    offered = [device for resource in offer(snapshot).resources for device in resource.devices]
    return (
        condition.fingerprints_on_disk(snapshot) == marks
        and len(offered) == 8 * PARTS
        and not any(device.unavailable_reason for device in offered)
    )


def _document(machine: Machine) -> tuple[float, int]:
    """Seconds that the document takes, and the most bytes while it is made."""
    request = SpecOptions(kind=GPU_KIND)
    began = time.perf_counter()
    build_spec(machine, request)
    taken = time.perf_counter() - began
    tracemalloc.start()
    build_spec(machine, request)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken, peak


MEASURES: tuple[Measure, ...] = (refresh, hook)
