"""What the agent and the driver's process say to each other: messages of msgpack, each after its length.

Facts and samples come from the driver's process; orders go to it.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from gpuplane.base.value import Value
from gpuplane.node.model.facts import (
    ChangePartition,
    FaultOccurred,
    MachineObserved,
    ObserveMachine,
    PartitionChangeFinished,
    ProbeFinished,
    ProbeGpu,
)
from gpuplane.node.model.machine import Fault
from gpuplane.node.model.status import DriverStatus
from gpuplane.node.model.telemetry import Sample, SamplingRequest

T = TypeVar("T")


class SkippedGpu(Value):
    """A GPU that the driver must not be asked about, and the fault that it carries meanwhile."""

    index: int
    pci: str  # "" where it was never known; otherwise it decides, since indices move
    fault: Fault

    def matches(self, index: int, pci: str) -> bool:
        """Whether it is the GPU of this index and address."""
        return self.pci == pci if self.pci and pci else self.index == index


class SkipGpus(Value, tag=True):
    """Order: ask about every GPU but these from now on."""

    gpus: tuple[SkippedGpu, ...]


class SetSampling(Value, tag=True):
    """Order: sample this from now on. Before the first one nothing is sampled, and none after an empty request."""

    request: SamplingRequest


Order = ObserveMachine | SkipGpus | SetSampling | ChangePartition


class DriverStatusChanged(Value, tag=True):
    """The status of the driver has changed: the one part of which the driver's process tells."""

    status: DriverStatus


DriverMessage = MachineObserved | DriverStatusChanged | FaultOccurred | ProbeFinished | PartitionChangeFinished | Sample


class DriverOptions(Value):
    """How one driver's process is set up; its only argument, as JSON."""

    channel: int  # an inherited descriptor, as the next
    page: int
    library: str = ""  # "": searched for under `driver_root`
    driver_root: str = "/"
    library_folders: tuple[str, ...] = ()  # where libraries are looked for first, below `driver_root`
    root_chosen: str = ""  # what decided that, for people who miss something there
    root: str = "/"  # what holds /sys, /proc and /dev
    dev_root: str = ""  # what holds /dev, if the driver's nodes are there and not under `root`
    poll: float = 1.0  # seconds between looks
    event_wait: float = 1.0  # the most seconds that one wait for events lasts; then orders are read
    rest: float = 1.0  # seconds after which a driver that cannot be used is tried again
    skip: tuple[SkippedGpu, ...] = ()
    sampling: SamplingRequest = SamplingRequest(processes=False)  # until an order says otherwise
    host_pids: bool = True  # numbers of processes mean here what they mean on the host
    probe: ProbeGpu | None = None  # look at this one GPU, once, and end


MAX_MESSAGE_SIZE = 16 << 20
"""Bytes of a message; a look at 16 GPUs has some 100 KB. What the library has spoilt may say any number."""


def encode_frame(message: Value) -> bytes:
    """A message as it crosses the channel."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4, "little") + data


class FrameDecoder(Generic[T]):
    """Bytes as they arrive → messages. Raises msgspec.DecodeError for what is none of them."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Every message that is whole now."""
        self._data += data
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "little")
            if end > MAX_MESSAGE_SIZE:
                raise msgspec.DecodeError(f"a message of {end} bytes; the limit is {MAX_MESSAGE_SIZE}")
            if len(self._data) < end:
                return
            message = bytes(self._data[4:end])
            del self._data[:end]
            yield self._decoder.decode(message)
