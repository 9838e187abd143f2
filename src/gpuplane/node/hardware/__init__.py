"""Devices, observed and changed.

The seam is a list of sources, which feed one snapshot. Each tells of its own kinds of devices. One whose devices have
counters is a `Sampler` too, and one whose driver can be changed and released an `Actor`.
"""

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from gpuplane.node.model.facts import Action, Fact
from gpuplane.node.model.status import Part, Status
from gpuplane.node.model.telemetry import Sample, SamplingRequest

HARDWARE_PART: Part[Status] = Part("hardware")
"""The source of NVIDIA's GPUs, real or described."""


class Source(Protocol):
    """What tells which devices of some kinds there are."""

    @property
    def part(self) -> Part[Status]:
        """Its name in tasks and statuses, which no other source has."""

    def facts(self) -> AsyncGenerator[Fact, None]:
        """What it observes of its devices, and of what it observes them by, for ever; ended by `aclose`."""


@runtime_checkable
class Sampler(Protocol):
    """What reads counters."""

    def samples(self) -> AsyncGenerator[Sample, None]:
        """What is asked for, for ever; ended by `aclose`. Who is slow gets the newest, and misses others.

        While the driver is released nothing is sampled; then it goes on as it was asked for.
        """

    async def set_sampling(self, request: SamplingRequest) -> None:
        """Ask for this, from now on."""


@runtime_checkable
class Actor(Protocol):
    """What changes devices, by their driver."""

    async def do(self, action: Action) -> None:
        """Change something; what became of it comes back as a fact."""

    async def release(self) -> None:
        """Release the driver: no open device node, no client, until the next `do(ObserveMachine())`."""


class GpuSource(Source, Sampler, Actor, Protocol):
    """NVIDIA's GPUs, the kind that has all of it."""
