"""Devices, looked at and changed.

`Hardware` is the seam: a described machine in this process, or the real driver in a process of its own.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from gpuplane.node.model.facts import Action, Fact
from gpuplane.node.model.telemetry import Sample


class Hardware(Protocol):
    """What every machine answers."""

    def facts(self) -> AsyncGenerator[Fact, None]:
        """Looks at the machine and how its driver stands, for ever; ended by `aclose`."""

    def samples(self) -> AsyncGenerator[Sample, None]:
        """What `SetSampling` asked for, for ever; ended by `aclose`. Who is slow gets the newest, and misses others.

        While the driver is released nothing is sampled; then it goes on as it was asked for.
        """

    async def do(self, action: Action) -> None:
        """Change something; what became of it comes back as a fact."""

    async def release(self) -> None:
        """Let go of the driver: no open device node, no client, until the next `do(Look())`."""
