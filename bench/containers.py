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
from bench.rig import described
from bench.row import Measure, Row
from gpuplane.agent.node import Node
from gpuplane.core.advertising import offer
from gpuplane.core.containers.cdi import specstatus as condition
from gpuplane.core.containers.cdi.desiredspecs import GPU_KIND, desired_specs
from gpuplane.core.containers.cdi.specbuilder import build_spec
from gpuplane.core.containers.cdi.specrequest import SpecOptions
from gpuplane.host.cdi.directory import names
from gpuplane.host.cdi.hook import INSTALLED
from gpuplane.host.cdi.keeper import keep_specifications
from gpuplane.model.config import Settings
from gpuplane.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.model.machine import Machine, Mig, MigDevice
from gpuplane.model.snapshot import Snapshot

PARTITIONED = "a100-mig"
CHANGES, PARTS = 100, 7


async def refresh() -> list[Row]:
    """a MIG change of 8 GPUs, until the specification is on disk"""
    machine = described(PARTITIONED)
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        node = Node(Snapshot())
        settings = Settings(mig_strategy="mixed", device_list_strategy=("cdi-cri",))
        for fact in (ConfigLoaded(settings), AllocationsListed((), 0.0), MachineObserved(machine)):
            node.apply(fact)
        keeping = asyncio.create_task(keep_specifications(node, Path(directory), INSTALLED, None))
        assert await node.wait_until(lambda snapshot: bool(condition.fingerprints_on_disk(snapshot)), 10)
        times = []
        for partitioned in _layouts(machine):
            began = time.perf_counter()
            node.apply(MachineObserved(partitioned))
            assert await node.wait_until(_is_on_disk, 10)
            times.append(time.perf_counter() - began)
        size = (Path(directory) / names(GPU_KIND)[0]).stat().st_size
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
    taken, memory = _document(partitioned)
    how = (
        f"{len(times)} changes, median {statistics.median(times) * 1e3:.1f} ms, with fsync; of that the document "
        f"{taken * 1e3:.1f} ms and {memory / 1e6:.1f} MB for a moment; {size / 1e3:.0f} kB"
    )
    return [
        Row("specification after a MIG change of 8 GPUs, from the look to the disk", max(times) * 1e3, 200, "ms", how)
    ]


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
