"""One look at a machine, for commands that soon end: the agent waits for a driver for ever, they do not."""

import asyncio
from contextlib import aclosing

from gpuplane.node.hardware import GpuSource
from gpuplane.node.model.facts import MachineObserved, StatusChanged
from gpuplane.node.model.machine import Machine


class NotObserved(Exception):
    """There was no look, and why."""


async def observe_once(source: GpuSource, seconds: float) -> Machine:
    """The first observation that a source tells. Its driver is released then, whatever became of it.

    Where the driver is missing, fails or hangs that look has no GPUs, and its faults say why. Raises NotObserved, where
    nothing is told within `seconds` too.
    """
    try:
        async with asyncio.timeout(seconds), aclosing(source.facts()) as facts:
            async for fact in facts:
                if isinstance(fact, MachineObserved):
                    return fact.machine
                if isinstance(fact, StatusChanged) and fact.status is not None and fact.status.state == "failing":
                    raise NotObserved(fact.status.text)
    except TimeoutError:
        raise NotObserved(f"the driver did not answer within {seconds:g} s") from None
    finally:
        await source.release()
    raise NotObserved("the machine was not observed")
