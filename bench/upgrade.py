"""One agent after another: how long kubelet has none, and what one that stands by costs."""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.idle import footprint, used
from bench.reference import in_loops
from bench.rig import EIGHT, GPU
from bench.row import Measure, Row
from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.sandbox.agent import AGENT_PROGRAM, Agent
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.succession import is_during_gap, replace_agent, run_pods_in_turn
from tests import next_version

TIMES = 50


class Node:
    """Agents and a kubelet in a directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.kubelet = root, Kubelet(root / "k")
        (root / "config.yaml").write_text("version: v1\n")

    def agent(self, program: Sequence[str] = AGENT_PROGRAM) -> Agent:
        """Another agent, with the state directory of all."""
        return Agent(
            "--machine", EIGHT, "--config", self.root / "config.yaml", "--kubelet-root", self.root / "k",
            "--state-dir", self.root / "s", program=program,
        )  # fmt: skip


async def replaced() -> list[Row]:
    """one agent after another, of this version and of one that writes other state files, while pods come and go"""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        node, gaps, ends = Node(Path(directory)), list[float](), list[float]()
        async with node.kubelet as kubelet:
            old = node.agent()
            await old.start()
            await kubelet.until_capacity(GPU, 8, 8, deadline=30)
            async with run_pods_in_turn(kubelet, GPU) as refusals:
                for _, program in zip(
                    range(TIMES), itertools.cycle((next_version.PROGRAM, AGENT_PROGRAM)), strict=False
                ):
                    new = node.agent(program)
                    gaps += [gap.ended_at - gap.started_at for gap in await replace_agent(kubelet, old, new)]
                    old = new
            began = time.perf_counter()
            await old.stop()
            ends.append(time.perf_counter() - began)
        outside = [each for each in refusals if not is_during_gap(each, kubelet.manager.gaps)]
    ordered = sorted(gaps)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    how = f"p99 of {len(gaps)}, median {statistics.median(gaps) * 1e3:.0f} ms, max {ordered[-1] * 1e3:.0f} ms"
    return [
        Row("agent replaced by one that stands by: gap at kubelet", p99 * 1e3, 50, "ms", how),
        Row("pods rejected outside of these gaps", len(outside), 0, "pods", f"{len(refusals)} in them"),
        Row("SIGTERM to the end of the process", ends[-1] * 1e3, 500, "ms", "once, with nobody to follow"),
    ]


STANDS_BY = 60.0
"""Seconds for which the agent that stands by is observed."""


async def standing_by() -> list[Row]:
    """an agent that stands by, idle"""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        node = Node(Path(directory))
        async with node.kubelet as kubelet, node.agent():
            await kubelet.until_capacity(GPU, 8, 8, deadline=30)
            async with node.agent() as second:
                await second.until_says(READY_TO_TAKE_OVER_TEXT)
                await asyncio.sleep(3)
                memory, parts = footprint(second.process.pid)
                [rate] = await used(second.process.pid, seconds=STANDS_BY)
    return [
        Row("memory, standing by, 8 GPUs", memory, 60, "MB", parts),
        in_loops(Row("CPU, standing by, 8 GPUs", rate.cpu * 100, 0.3, "% of a core", f"over {STANDS_BY:g} s")),
    ]


MEASURES: tuple[Measure, ...] = (replaced, standing_by)
