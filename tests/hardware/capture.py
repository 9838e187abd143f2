"""This machine as a machine file: `python -m tests.hardware.capture > machine.yaml`.

What names a card is replaced, by numbers that keep apart what is different; places and sizes are as they are.
"""

import asyncio
import sys
from collections.abc import Mapping
from contextlib import aclosing

import msgspec
import yaml

from gpuplane.node.hardware.nvidia.settings import DriverLocation
from gpuplane.node.hardware.nvidia.source import Nvidia
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Gpu, Machine


async def look() -> Machine:
    """One look at this machine, by its driver."""
    hardware = Nvidia(DriverLocation())
    try:
        async with asyncio.timeout(120), aclosing(hardware.facts()) as facts:
            async for fact in facts:
                if isinstance(fact, MachineObserved):
                    return fact.machine
    finally:
        await hardware.release()
    raise AssertionError("facts end")


def anonymous(machine: Machine) -> Machine:
    """The machine without the names of its cards, and of the NVLink domain that they are in."""
    clusters = list(dict.fromkeys(gpu.fabric.cluster for gpu in machine.gpus or () if gpu.fabric))
    names = {cluster: f"00000000-0000-4000-8000-{number:012x}" for number, cluster in enumerate(clusters)}
    return machine.but(gpus=machine.gpus and tuple(_anonymous(gpu, names) for gpu in machine.gpus))


def _anonymous(gpu: Gpu, clusters: Mapping[str, str]) -> Gpu:
    mig = gpu.mig and gpu.mig.but(
        devices=tuple(
            device.but(uuid=f"MIG-{gpu.index:08x}-0000-4000-8000-{device.mig_index:012x}") for device in gpu.mig.devices
        )
    )
    fabric = gpu.fabric and gpu.fabric.but(cluster=clusters[gpu.fabric.cluster])
    return gpu.but(uuid=f"GPU-00000000-0000-4000-8000-{gpu.index:012x}", mig=mig, fabric=fabric)


def written(machine: Machine) -> str:
    """A machine as YAML."""
    return yaml.safe_dump(msgspec.to_builtins(machine), sort_keys=False, allow_unicode=True, width=120)


if __name__ == "__main__":
    sys.stdout.write(written(anonymous(asyncio.run(look()))))
