"""Samples of a described machine while it runs: begun and ended by requests, and by the driver's release."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from gpuplane.node.hardware.described.migchanges import make_change, with_mig_details
from gpuplane.node.hardware.described.profiles import find_machine_file, profile_names
from gpuplane.node.hardware.described.source import Described
from gpuplane.node.model.facts import ChangePartition, ObserveMachine
from gpuplane.node.model.machine import Gpu, Mig
from gpuplane.node.model.partitions import CreateComputeInstance, CreateGpuInstance, PartitionChange, SetMigMode
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, Sample, SamplingRequest
from tests.node.hardware.described.load.described import sample

QUICK = SamplingRequest(fields=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_ENC_UTIL"), interval=0.05, slow_interval=60)
FILE = """
gpus: [{index: 0, uuid: GPU-0}]
load:
  - gpu: 0
    readings: {DCGM_FI_DEV_GPU_UTIL: {curve: sawtooth, period: 10}, DCGM_FI_DEV_ENC_UTIL: {curve: sawtooth}}
"""
DEADLINE = 30.0


class Edited:
    """A described machine whose file is edited."""

    def __init__(self) -> None:
        self.files = asyncio.Queue[str]()
        self.hardware = Described(self._versions(), "m.yaml")
        self.samples = self.hardware.samples()
        self.following = asyncio.create_task(self._follow())

    async def _versions(self) -> AsyncIterator[bytes]:
        while True:
            yield (await self.files.get()).encode()

    async def _follow(self) -> None:
        async with aclosing(self.hardware.facts()) as facts:
            async for _ in facts:
                pass

    async def next(self) -> Sample:
        """The next sample."""
        async with asyncio.timeout(DEADLINE):
            return await anext(self.samples)

    async def silent(self) -> bool:
        """Whether none comes for a while."""
        pending = asyncio.ensure_future(anext(self.samples))
        done, _ = await asyncio.wait([pending], timeout=0.3)
        if done:
            return False
        self.pending = pending
        return True

    async def end(self) -> None:
        """Stop following."""
        self.following.cancel()
        await asyncio.gather(self.following, return_exceptions=True)


@pytest.fixture
async def edited() -> AsyncIterator[Edited]:
    """A described machine whose file is edited."""
    machine = Edited()
    yield machine
    await machine.end()


async def test_nothing_is_sampled_before_it_is_asked_for(edited: Edited) -> None:
    """Nor of a machine that is not known yet. Then at once, and on."""
    await edited.files.put(FILE)
    assert await edited.silent()
    await edited.hardware.set_sampling(QUICK)
    async with asyncio.timeout(DEADLINE):
        first = await edited.pending
    later = await edited.next()

    assert later.taken_at - first.taken_at > 0
    assert first.gpus[0].readings.keys() == set(QUICK.fields)


async def test_slow_fields_wait_for_their_clock(edited: Edited) -> None:
    """The others do not."""
    await edited.files.put(FILE)
    await edited.hardware.set_sampling(QUICK)
    taken = [(await edited.next()).gpus[0].readings for _ in range(5)]
    taken += [(await edited.next()).gpus[0].readings for _ in range(20)]

    assert len({each["DCGM_FI_DEV_ENC_UTIL"] for each in taken}) == 1
    assert len({each["DCGM_FI_DEV_GPU_UTIL"] for each in taken}) > 1


async def test_a_mig_device_is_sampled_once_it_is_made(edited: Edited) -> None:
    """With the load that the file says of its UUID, or without any."""
    made = with_mig_details(Gpu(index=0, uuid="GPU-0", pci_id="0x233010DE", compute_capability="9.0", mig=Mig()))
    changes: list[PartitionChange] = [SetMigMode(True), CreateGpuInstance(9, 4), CreateComputeInstance(9, 4, 3)]
    for change in changes:
        made = make_change(made, change, ())
    [device] = made.mig_devices
    await edited.files.put(f"""
gpus: [{{index: 0, uuid: GPU-0, pci_id: "0x233010DE", compute_capability: "9.0", mig: {{}}}}]
load:
  - {{gpu: 0, mig: {device.uuid}, readings: {{DCGM_FI_DEV_FB_USED: 100}}}}
  - {{gpu: 0, mig: MIG-never, readings: {{DCGM_FI_DEV_FB_USED: 200}}}}
""")
    await edited.hardware.set_sampling(SamplingRequest(fields=("DCGM_FI_DEV_FB_USED",), interval=0.02))
    before = await edited.next()
    for number, change in enumerate([*changes, CreateGpuInstance(19, 0), CreateComputeInstance(19, 0, 1)]):
        await edited.hardware.do(ChangePartition("GPU-0", change, float(number)))
    after = await edited.next()

    assert (before.gpus[0].mig_devices, before.gpus[0].readings) == ((), {})
    told = {each.uuid: each.readings for each in after.gpus[0].mig_devices}
    assert told.pop(device.uuid) == {"DCGM_FI_DEV_FB_USED": 100}
    assert list(told.values()) == [{}]


async def test_an_empty_request_ends_it(edited: Edited) -> None:
    """Until the next one."""
    await edited.files.put(FILE)
    await edited.hardware.set_sampling(QUICK)
    await edited.next()
    await edited.hardware.set_sampling(SamplingRequest(processes=False))
    assert await edited.silent()
    await edited.hardware.set_sampling(QUICK)
    async with asyncio.timeout(DEADLINE):
        await edited.pending


async def test_a_released_driver_is_not_sampled(edited: Edited) -> None:
    """When it is taken up it goes on as was asked for."""
    await edited.files.put(FILE)
    await edited.hardware.set_sampling(QUICK)
    await edited.next()
    await edited.hardware.release()
    assert await edited.silent()
    await edited.hardware.do(ObserveMachine())
    async with asyncio.timeout(DEADLINE):
        assert (await edited.pending).gpus[0].readings


async def test_who_is_slow_gets_the_newest(edited: Edited) -> None:
    """What was between is skipped, not kept."""
    await edited.files.put(FILE)
    await edited.hardware.set_sampling(QUICK)
    first = await edited.next()
    await asyncio.sleep(0.5)
    second = await edited.next()
    assert second.taken_at - first.taken_at >= 0.4


@pytest.mark.parametrize("name", profile_names())
def test_profiles_tell_what_such_machines_tell(name: str) -> None:
    """Profiling fields from Hopper on, and no utilization in MIG mode."""
    taken = sample(find_machine_file(name).read_text())
    for gpu in taken.gpus:
        told = {*gpu.readings, *(field for device in gpu.mig_devices for field in device.readings)}
        if name in ("a100-mig", "t4", "hgx-h100"):
            assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"} <= told
        assert name.startswith(("hgx-", "gb200")) or not any(field.startswith("DCGM_FI_PROF") for field in told)
        assert not gpu.mig_devices or "DCGM_FI_DEV_GPU_UTIL" not in told
        assert told <= set(SAMPLED_FIELDS)
