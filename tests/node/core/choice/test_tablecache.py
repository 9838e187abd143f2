"""The table is built beside the requests, when the link scores of the GPUs change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gpuplane.node.agent.node import Node
from gpuplane.node.agent.tables import keep_tables
from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.preference import machine_link_score_matrix, preferred_ids
from gpuplane.node.core.choice.search import find_set_by_local_search
from gpuplane.node.core.choice.tablecache import MAX_TABLES, build_table, cached_table, choose_gpu_set
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Gpu, Link, Machine
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.choice.graphs import graph


def bridged(lanes: int) -> Machine:
    """Four GPUs with bridges of so many lanes between 0 and 3, and 1 and 2."""
    return Machine(
        gpus=tuple(
            Gpu(index=i, uuid=f"GPU-{i}", pci=f"0000:0{i}:00.0", links=(Link(f"0000:0{3 - i}:00.0", lanes),))
            for i in range(4)
        )
    )


@asynccontextmanager
async def keeping(node: Node) -> AsyncIterator[None]:
    """With the part of the agent that keeps the tables."""
    task = asyncio.create_task(keep_tables(node))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_table_is_made_when_links_change() -> None:
    node = Node(Snapshot(), now=lambda: 1.0)
    async with keeping(node):
        for lanes in (2, 4):
            node.apply(MachineObserved(bridged(lanes)))
            while cached_table(machine_link_score_matrix(node.snapshot)) is None:
                await asyncio.sleep(0.001)


async def test_nothing_else_makes_one() -> None:
    """No request, and no change but of the links."""
    node = Node(Snapshot(), now=lambda: 1.0)
    for fact in (ConfigLoaded(Settings()), AllocationsListed((), 1.0), MachineObserved(bridged(6))):
        node.apply(fact)
    assert preferred_ids(node.snapshot, "nvidia.com/gpu", [f"GPU-{i}" for i in range(4)], [], 2) == ("GPU-0", "GPU-3")

    matrix = machine_link_score_matrix(node.snapshot)
    assert cached_table(matrix) is None
    build_table(matrix)
    table = cached_table(matrix)
    assert table is not None
    build_table(matrix)
    assert cached_table(matrix) is table


def test_tables_of_layouts_long_gone_are_forgotten() -> None:
    layouts = [graph(3, lambda i, j, n=n: 10_000 + n) for n in range(MAX_TABLES + 1)]  # type: ignore[misc]
    for each in layouts:
        build_table(each)

    assert [cached_table(each) is None for each in layouts] == [True, *[False] * MAX_TABLES]


def test_a_machine_that_is_too_large_for_a_table_is_searched() -> None:
    rack, request = (
        graph(24, lambda i, j: 1820 if i // 8 == j // 8 else 10),
        GpuSetRequest(frozenset(range(24)), frozenset(), 8),
    )
    build_table(rack)

    assert cached_table(rack) is None
    assert choose_gpu_set(rack, request) == find_set_by_local_search(rack, request) == tuple(range(8))
