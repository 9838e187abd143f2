"""A sampler over the stand-in, within this process."""

import time

from gpuplane.node.hardware.described.failures import observed_facts
from gpuplane.node.hardware.described.load import evaluate_curve, take_sample
from gpuplane.node.hardware.nvidia.driver.counters import FRACTIONAL_FIELDS, LINK_SUM_FIELDS
from gpuplane.node.hardware.nvidia.driver.gpuprocesses import ProcessIdentities
from gpuplane.node.hardware.nvidia.driver.observation import Observer
from gpuplane.node.hardware.nvidia.driver.sampler import Sampler
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import MachineFile
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, DescribedLoad, GpuSample, Sample, SamplingRequest
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.standin import WELL
from tests.node.hardware.nvidia.driver.standinload import told_as

ALL = SamplingRequest(fields=tuple(sorted(SAMPLED_FIELDS)), slow_interval=0.0)


class Sampled:
    """A driver whose counters are read."""

    def __init__(self, inside: Inside, machine: MachineFile, request: SamplingRequest = ALL, pids: bool = True) -> None:
        self.inside = inside
        self.observer: Observer = inside.start(machine)
        self.describe(machine)
        version = machine.driver.version if machine.driver else ""
        self.sampler = Sampler(inside.nvml, self.observer, ProcessIdentities(str(inside.standin.root), pids), version)
        self.sampler.request(request)
        self.observe()

    def describe(self, machine: MachineFile, **raw: str | int) -> None:
        """Be this machine, which tells its load and nothing else of itself. `raw`: what the library says otherwise."""
        self.inside.standin.describe(machine, nothing_else(machine) | raw)

    def observe(self) -> None:
        """Look at the machine, as between samples."""
        self.observer.observe(())

    def take(self) -> Sample:
        """A sample."""
        return self.sampler.take()

    def gpu(self, index: int = 0) -> GpuSample:
        """One GPU of the next sample."""
        return self.take().gpus[index]


def nothing_else(machine: MachineFile) -> dict[str, str | int]:
    """What the stand-in tells of a GPU that does well, taken away where the file does not say it."""
    told = {f"gpu.{load.gpu}.{key}" for load in machine.load for key, _ in told_as(load, None)}
    usual = {f"gpu.{gpu.index}.{key}" for gpu in machine.gpus or () for key in WELL if key != "events"}
    return dict.fromkeys(usual - told, "")


def frozen(machine: MachineFile) -> MachineFile:
    """A machine whose load does not change any more. A GPU counts its NVLinks' bytes in KiB, and power in mW."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)

    def freeze(load: DescribedLoad) -> DescribedLoad:
        said = {name: evaluate_curve(reading, now) for name, reading in load.readings.items()}
        said = {
            name: int(value * 1000) / 1000 if name in FRACTIONAL_FIELDS else int(value) for name, value in said.items()
        }
        if load.nvlink is None:
            kibibytes = {name: value // 1024 for name, value in said.items() if name in LINK_SUM_FIELDS}
            said |= {name: value * 1024 for name, value in kibibytes.items()}
            if "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" in said:
                said["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] = sum(kibibytes.values())
        return load.but(readings=said)

    return machine.but(load=tuple(map(freeze, machine.load)))


def described(machine: MachineFile, request: SamplingRequest = ALL) -> Sample:
    """What a described machine tells of the same file."""
    [shown] = [fact.machine for fact in observed_facts(machine, "m.yaml", request) if isinstance(fact, MachineObserved)]
    return take_sample(machine, shown, request, 0.0, 0.0)


def rounded(gpu: GpuSample) -> GpuSample:
    """Without what floating-point numbers differ by on their way through the library."""
    return gpu.but(
        readings={name: round(value, 9) for name, value in gpu.readings.items()},
        links={link: dict(each) for link, each in sorted(gpu.links.items())},
        mig_devices=tuple(
            each.but(readings={name: round(value, 9) for name, value in each.readings.items()})
            for each in gpu.mig_devices
        ),
    )
