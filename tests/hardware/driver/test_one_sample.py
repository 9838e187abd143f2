"""A described machine and the driver's process over the stand-in tell the same sample of one machine file."""

from pathlib import Path

import pytest
from msgspec import to_builtins

from gpuplane.hardware.machinefile import read
from gpuplane.hardware.profiles import find
from gpuplane.model.machine import InjectedFailure, MachineFile
from gpuplane.model.telemetry import SAMPLED_FIELDS
from tests.hardware.driver.inside import Inside
from tests.hardware.driver.sampled import ALL, Sampled, described, frozen, rounded

FILES = {
    "loaded": Path(__file__).parent / "loaded.yaml",
    **{name: find(name) for name in ("hgx-h100", "a100-mig", "t4", "dgx-a100")},
}


def machine(name: str) -> MachineFile:
    """A file's machine, at one moment."""
    return frozen(read(FILES[name].read_bytes(), name))


def flat(value: object, path: str = "") -> dict[str, object]:
    """Every part of a value, by where it stands: so that a difference can be read."""
    if isinstance(value, dict | list | tuple):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: each for name, part in parts for key, each in flat(part, f"{path}/{name}").items()}
    return {path: value}


def both(inside: Inside, file: MachineFile) -> None:
    """Compare the two, of the second sample: the profiling counters need time between two."""
    sampled = Sampled(inside, file)
    sampled.take()
    taken, expected = sampled.take(), described(file)
    assert taken.processes_visible
    for real, shown in zip(taken.gpus, expected.gpus, strict=True):
        one, other = flat(to_builtins(rounded(real))), flat(to_builtins(rounded(shown)))
        assert one.items() ^ other.items() == set()


@pytest.mark.parametrize("name", FILES)
def test_one_file_one_sample(inside: Inside, name: str) -> None:
    """Readings, texts, links, MIG devices, processes and what is missing."""
    both(inside, machine(name))


def test_the_file_tells_nearly_all() -> None:
    """So that the comparison means something."""
    gpus = described(machine("loaded")).gpus
    told = {name for gpu in gpus for name in (*gpu.readings, *gpu.texts)}
    assert set(SAMPLED_FIELDS) - told == {"DCGM_FI_NVML_VERSION"}


@pytest.mark.parametrize("error", ["UNKNOWN", "NO_PERMISSION", "TIMEOUT", "GPU_IS_LOST", "NOT_SUPPORTED"])
@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleGet",
        "nvmlGpmMigSampleGet",
        "nvmlGpmMetricsGet",
        "nvmlDeviceGetSerial",
        "nvmlGpm*",
        "nvmlDeviceGetUUID",
        "*",
    ],
)
def test_one_failure_one_sample(inside: Inside, call: str, error: str) -> None:
    """What fails takes the same away from both."""
    file = machine("loaded")
    failures = [InjectedFailure(effect="error", nvml_function=call, gpu=gpu, error=error) for gpu in (0, 1)]
    both(inside, file.but(failures=tuple(failures)))


def test_every_field_has_a_call() -> None:
    """The table knows all fields: none is asked for in vain."""
    from gpuplane.hardware.driver.counters import DRIVER_VERSION, calls

    assert [name for name in ALL.fields if name != DRIVER_VERSION and not calls(name)] == []
