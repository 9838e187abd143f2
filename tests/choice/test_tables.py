"""The table is made beside the requests, when what the GPUs are worth to each other changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gpuplane.agent.node import Node
from gpuplane.agent.tables import keep_tables
from gpuplane.core.choice.prefer import pairs_of, prefer
from gpuplane.core.choice.question import Question
from gpuplane.core.choice.search import search
from gpuplane.core.choice.tables import KEPT, best, prepare, prepared
from gpuplane.model.config import Settings
from gpuplane.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.model.machine import Gpu, Link, Machine
from gpuplane.model.snapshot import Snapshot
from tests.choice.graphs import graph


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
            while prepared(pairs_of(node.snapshot)) is None:
                await asyncio.sleep(0.001)


async def test_nothing_else_makes_one() -> None:
    """No request, and no change but of the links."""
    node = Node(Snapshot(), now=lambda: 1.0)
    for fact in (ConfigLoaded(Settings()), AllocationsListed((), 1.0), MachineObserved(bridged(6))):
        node.apply(fact)
    assert prefer(node.snapshot, "nvidia.com/gpu", [f"GPU-{i}" for i in range(4)], [], 2) == ("GPU-0", "GPU-3")

    pairs = pairs_of(node.snapshot)
    assert prepared(pairs) is None
    prepare(pairs)
    table = prepared(pairs)
    assert table is not None
    prepare(pairs)
    assert prepared(pairs) is table


def test_tables_of_layouts_long_gone_are_forgotten() -> None:
    layouts = [graph(3, lambda i, j, n=n: 10_000 + n) for n in range(KEPT + 1)]  # type: ignore[misc]
    for each in layouts:
        prepare(each)

    assert [prepared(each) is None for each in layouts] == [True, *[False] * KEPT]


def test_a_machine_that_is_too_large_for_a_table_is_searched() -> None:
    rack, question = (
        graph(24, lambda i, j: 1820 if i // 8 == j // 8 else 10),
        Question(frozenset(range(24)), frozenset(), 8),
    )
    prepare(rack)

    assert prepared(rack) is None
    assert best(rack, question) == search(rack, question) == tuple(range(8))
