"""Which GPUs are skipped and for how long, and what crosses the channel."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.hardware.nvidia.driver.channel import (
    DriverMessage,
    DriverOptions,
    DriverStatusChanged,
    FrameDecoder,
    Order,
    SkipGpus,
    SkippedGpu,
    encode_frame,
)
from gpuplane.node.hardware.nvidia.driver.errors import gpu_hang_fault
from gpuplane.node.hardware.nvidia.gpubackoff import GpuBackoffs, back_off, skipped_gpus
from gpuplane.node.model.facts import MachineObserved, ObserveMachine
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.status import DriverStatus
from tests.node.hardware.nvidia.driver.machines import machines

FIRST, MOST = 60.0, 3600.0
BAD = SkippedGpu(index=3, pci="0000:47:00.0", fault=gpu_hang_fault("nvmlDeviceGetUUID"))
OTHER = BAD.but(index=5, pci="0000:9c:00.0")


def charged(*times: float) -> GpuBackoffs:
    """A GPU charged at these times."""
    charges: GpuBackoffs = ()
    for now in times:
        charges = back_off(charges, BAD, now, FIRST, MOST)
    return charges


def test_a_relapse_doubles_the_time() -> None:
    """Each time that it goes wrong soon after it was tried again, up to the most."""
    now, waits = 0.0, []
    charges: GpuBackoffs = ()
    for _ in range(8):
        charges = back_off(charges, BAD, now, FIRST, MOST)
        waits.append(charges[0].wait)
        now = charges[0].until + 10

    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_a_gpu_that_did_well_starts_anew() -> None:
    """It did, if it was good for as long as it was skipped."""
    assert charged(0.0, 119.9)[0].wait == 120
    assert charged(0.0, 120.0)[0].wait == 60


def test_a_charge_holds_until_its_time() -> None:
    """And others are not touched by it."""
    charges = back_off(charged(0.0), OTHER, 30.0, FIRST, MOST)

    assert skipped_gpus(charges, 59.9) == (BAD, OTHER)
    assert skipped_gpus(charges, 60.0) == (OTHER,)
    assert skipped_gpus(charges, 90.0) == ()


@pytest.mark.parametrize(
    ("again", "count"), [(BAD.but(index=2), 1), (BAD.but(pci=""), 1), (BAD.but(pci="0000:9c:00.0"), 2)]
)
def test_a_gpu_is_the_same_by_its_address(again: SkippedGpu, count: int) -> None:
    """Its index decides only where the address is not known."""
    assert len(back_off(charged(0.0), again, 1.0, FIRST, MOST)) == count


@given(
    st.lists(
        st.builds(MachineObserved, machines()) | st.just(DriverStatusChanged(DriverStatus("ok", "driver 580"))),
        max_size=4,
    ),
    st.data(),
)
def test_what_is_told_arrives_however_it_is_cut(facts: list[DriverMessage], data: st.DataObject) -> None:
    """A channel is a stream: it may break messages anywhere."""
    stream = b"".join(map(encode_frame, facts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    frames: FrameDecoder[DriverMessage] = FrameDecoder(DriverMessage)
    parts = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    arrived = [fact for part in parts for fact in frames.feed(part)]

    assert [fact.but() for fact in arrived] == [_plain(fact) for fact in facts]


def _plain(fact: DriverMessage) -> DriverMessage:
    """A described machine crosses as the machine that it is."""
    if isinstance(fact, MachineObserved):
        return MachineObserved(Machine(**{field: getattr(fact.machine, field) for field in Machine.__struct_fields__}))
    return fact


def test_orders_arrive() -> None:
    """A look, and which GPUs to skip."""
    frames: FrameDecoder[Order] = FrameDecoder(Order)

    assert list(frames.feed(encode_frame(ObserveMachine()) + encode_frame(SkipGpus((BAD,))))) == [
        ObserveMachine(),
        SkipGpus((BAD,)),
    ]


def test_nonsense_on_the_channel_is_refused() -> None:
    """Whoever speaks it is no driver's process of ours."""
    frames: FrameDecoder[DriverMessage] = FrameDecoder(DriverMessage)
    with pytest.raises(msgspec.DecodeError):
        list(frames.feed(b"\x03\0\0\0abc"))


def test_options_survive_the_command_line() -> None:
    """They are one argument, as JSON."""
    options = DriverOptions(channel=3, page=4, library="/x/libnvidia-ml.so.1", poll=0.5, skip=(BAD,))

    assert msgspec.json.decode(msgspec.json.encode(options).decode(), type=DriverOptions) == options


def test_a_message_without_an_end_is_none() -> None:
    """It is not waited for, however much of it comes."""
    frames: FrameDecoder[DriverMessage] = FrameDecoder(DriverMessage)
    with pytest.raises(msgspec.DecodeError):
        list(frames.feed(b"\xff\xff\xff\xff" + bytes(100)))
