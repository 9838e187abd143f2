"""What starts in containers, and ends with their pod."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.containers import CRASH_BACKOFF, Containers, PodRun, Started
from gpuplane.sandbox.node.podstatus import PodFacts
from gpuplane.sandbox.node.programs import PlayedCommand, PlayedProgram
from tests.sandbox.node.objects import bound_pod


async def test_a_program_that_starts_while_its_pod_ends_is_ended(tmp_path: Path) -> None:
    """Nobody would end it later: the pod is gone."""
    program, starting, may_start = PlayedProgram(PlayedCommand(None)), asyncio.Event(), asyncio.Event()

    async def start(*_: Any) -> Started:
        starting.set()
        await may_start.wait()
        return Started(program, "127.2.1.7")

    async def never(*_: Any) -> None:
        raise AssertionError("it does not start again")

    containers = Containers(start, never, lambda run: None, lambda: "now", CRASH_BACKOFF)
    run = PodRun(PodFacts(bound_pod(), "10.2.1.1"), tmp_path)
    launching = asyncio.create_task(containers.start(run, "main", ContainerEdits()))
    await starting.wait()
    run.is_ending = True
    await containers.stop(run, 0.0)
    may_start.set()
    with pytest.raises(KubeletError):
        await launching
    assert await asyncio.wait_for(program.wait(), 30) == 143
    assert (run.programs, run.tasks) == ({}, set())
