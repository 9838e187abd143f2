"""Partitions: how long a plan takes, how many changes it has, and how soon kubelet has the devices.

Cards, layouts and holders are random and seeded. Cards are those of the tests, which are NVIDIA's tables.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.reference import in_loops
from bench.rig import running
from bench.row import Measure, Row
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.partitions.plan import Fixed, WantedInstances, plan_instances
from gpuplane.node.core.partitions.plans import gpu_plans
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, LayoutRequested, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.partitions import GpuLayout, LayoutRequest
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.sandbox.apiserver.server import ApiServer
from tests.node.core.partitions.tables import SEVEN, Card, Placement, all_layouts, by_id, multisets

PLANS, PAIRS, GPUS = 300, 20_000, 16
RELABELS = 12
HALF, SMALL = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
LAYOUTS = """
version: v1
mig-configs:
  halves: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  seven: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}]
"""
CHANGES_OF_INSTANCE = 2
"""A GPU instance and its compute instance are two."""


async def planning() -> list[Row]:
    """plans of 16 GPUs, some of whose instances are held"""
    chance = random.Random(15)
    times = []
    for _ in range(PLANS):
        machine, held = _machine(chance)
        layouts = {gpu.uuid: _layout(chance) for gpu in machine.gpus or ()}
        snapshot = Snapshot()
        for fact in (
            ConfigLoaded(Settings(mig_strategy="mixed")),
            MachineObserved(machine),
            AllocationsListed(held, 0.0),
        ):
            snapshot = step(snapshot, fact, 1.0)
        before = time.thread_time()
        after = step(snapshot, LayoutRequested(LayoutRequest("random", layouts)), 2.0)
        plans = gpu_plans(after)
        times.append(time.thread_time() - before)
        assert len(plans) == GPUS
    ranked = sorted(times)
    p99 = ranked[int(len(ranked) * 0.99)] * 1e3
    how = (
        f"{PLANS} requests, median {statistics.median(times) * 1e3:.1f} ms, max {ranked[-1] * 1e3:.1f} ms; a whole step"
    )
    return [in_loops(Row(f"a plan for {GPUS} GPUs, p99", p99, 20, "ms", how))]


def _machine(chance: random.Random) -> tuple[Machine, tuple[Allocation, ...]]:
    """GPUs in random layouts, and pods that hold a third of the instances."""
    gpus, held = [], []
    for index in range(GPUS):
        card = Card(SEVEN, chance.choice(all_layouts(SEVEN)))
        names = by_id(SEVEN)
        devices = tuple(
            MigDevice(
                uuid=f"MIG-{index}-{each.id}", profile=names[each.profile].name, gpu_instance=each.id, mig_index=slot
            )
            for slot, each in enumerate(card.instances)
        )
        held += [
            Allocation(
                resource=f"nvidia.com/mig-{each.profile.replace('+', '.')}",
                devices=(each.uuid,),
                holder=PodRef(namespace="team", name=f"pod-{each.uuid.lower()}", container="main"),
            )
            for each in devices
            if chance.random() < 0.33
        ]
        mig = Mig(enabled=True, devices=devices, profiles=SEVEN, instances=card.instances)
        gpus.append(Gpu(index=index, uuid=f"GPU-{index}", model="NVIDIA A100", memory_mib=81920, mig=mig))
    return Machine(gpus=tuple(gpus)), tuple(held)


def _layout(chance: random.Random) -> GpuLayout:
    names = by_id(SEVEN)
    counts = {names[id].name: count for id, count in chance.choice(multisets(SEVEN))}
    return GpuLayout(True, counts, replaces_foreign=True)


async def against_mig_parted() -> list[Row]:
    """our plans against nvidia-mig-parted's rule, on the same layouts"""
    chance, ours, theirs, killed, waits, touched = random.Random(7), 0, 0, 0, 0, 0
    for _ in range(PAIRS):
        layout, wanted = chance.choice(all_layouts(SEVEN)), chance.choice(multisets(SEVEN))
        held = frozenset(place for place in layout if chance.random() < 0.33)
        plan = plan_instances(SEVEN, Card(SEVEN, layout).instances, _whole(wanted), Fixed(held))
        gone = {each for each in plan.changes if type(each).__name__ == "DestroyGpuInstance"}
        touched += sum((each.profile, each.start) in held for each in gone)  # type: ignore[union-attr]
        ours += len(plan.changes) + CHANGES_OF_INSTANCE * (len(plan.blocked_by) + len(plan.later))
        waits += len(plan.blocked_by)
        if not _is_theirs(layout, wanted):
            theirs += CHANGES_OF_INSTANCE * (len(layout) + sum(count for _, count in wanted))
            killed += len(held)
    how = f"{PAIRS} random pairs of layouts, a third of the instances held: {ours} changes, with those that wait, "
    how += f"over {theirs}; its way would have killed {killed} pods, where ours waits for {waits}"
    return [
        Row("changes / those of mig-parted's rule", ours / theirs, 1.0, "×", how),
        Row("pods whose instance is destroyed", touched, 0, "pods", f"of {killed} that mig-parted's rule would kill"),
    ]


def _whole(wanted: Sequence[tuple[int, int]]) -> WantedInstances:
    names = by_id(SEVEN)
    return WantedInstances({id: ((names[id].slices,),) * count for id, count in wanted})


def _is_theirs(layout: frozenset[Placement], wanted: Sequence[tuple[int, int]]) -> bool:
    """Whether mig-parted would find nothing to do: it compares counts. Else it destroys all instances of the GPU, and
    creates all (pkg/mig/config)."""
    return Counter(id for id, _ in layout) == dict(wanted)


async def label_to_devices() -> list[Row]:
    """from a label of the Node to kubelet's devices"""
    times = []
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        root = Path(directory)
        (root / "layouts.yaml").write_text(LAYOUTS)
        async with ApiServer() as server:
            (root / "kubeconfig").write_text(server.kubeconfig())
            config = (
                f"version: v1\nflags: {{migStrategy: mixed}}\nmig: {{configFile: {root}/layouts.yaml, label: true}}\n"
            )
            _label(server, "seven")
            flags = ("--node-name", "n1", "--kubeconfig", root / "kubeconfig")
            async with running("hgx-h100", 7, *flags, config=config, resource=SMALL) as (kubelet, _, _):
                for number in range(RELABELS):
                    name, resource, count = ("halves", HALF, 2) if number % 2 == 0 else ("seven", SMALL, 7)
                    await asyncio.sleep(0.5)
                    began = time.perf_counter()
                    _label(server, name)
                    await kubelet.until_capacity(resource, count, count)
                    times.append(time.perf_counter() - began)
    figure = statistics.median(times) * 1e3
    how = f"median of {RELABELS}, max {max(times) * 1e3:.0f} ms: seven MIG devices to two and back, one GPU of eight; "
    how += "described machine, whose driver takes no time"
    return [Row("label to devices at kubelet, beyond the driver's time", figure, 300, "ms", how)]


def _label(server: ApiServer, name: str) -> None:
    metadata = {"name": "n1", "labels": {"nvidia.com/mig.config": name}}
    server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})


MEASURES: tuple[Measure, ...] = (planning, against_mig_parted, label_to_devices)
