"""A described machine and the driver's process over the stand-in tell the same sample of one machine file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.hardware.nvidia.driver.counters import PERCENT_FIELDS, RATIO_FIELDS
from gpuplane.node.model.machine import InjectedFailure, MachineFile
from gpuplane.node.model.telemetry import LINK_FIELDS, SAMPLED_FIELDS, DescribedLoad
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.sampled import ALL, Sampled, described, frozen, rounded
from tests.node.hardware.nvidia.driver.standinload import FIELDS, METRICS

FILES = {
    "loaded": Path(__file__).parent / "loaded.yaml",
    **{name: find_machine_file(name) for name in ("hgx-h100", "a100-mig", "t4", "dgx-a100")},
}


def machine(name: str) -> MachineFile:
    """A file's machine, at one moment."""
    return frozen(read_machine(FILES[name].read_bytes(), name))


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


def test_a_gpu_that_is_gone_by_a_look_is_not_asked(inside: Inside) -> None:
    """What the look found is why it tells nothing, not what its counters would answer."""
    failures = [
        InjectedFailure(effect="error", nvml_function=call, gpu=1, error=error)
        for call, error in {
            "nvmlDeviceGetFieldValues": "RESET_REQUIRED",
            "nvmlDeviceGetMemoryInfo": "GPU_IS_LOST",
        }.items()
    ]
    both(inside, machine("loaded").but(failures=tuple(failures), load=()))


def test_every_field_has_a_call() -> None:
    """The table knows all fields: none is asked for in vain."""
    from gpuplane.node.hardware.nvidia.driver.counters import DRIVER_VERSION_FIELD, calls_of_field

    assert [name for name in ALL.fields if name != DRIVER_VERSION_FIELD and not calls_of_field(name)] == []


NUMBERS = st.integers(0, 1 << 40).map(float)
READINGS = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(0, 100).map(float)
        if name in PERCENT_FIELDS
        else st.integers(0, 1000).map(lambda value: value / 1000)
        if name in RATIO_FIELDS
        else st.integers(0, 30).map(float)
        if name == "DCGM_FI_DEV_PSTATE"
        else NUMBERS
        for name in (*FIELDS, *METRICS, "DCGM_FI_DEV_PSTATE", "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_MEMORY_TEMP")
    },
)
LINKS = st.fixed_dictionaries({}, optional=dict.fromkeys(sorted(LINK_FIELDS), NUMBERS))
MIG_READINGS = st.fixed_dictionaries(
    {"DCGM_FI_DEV_FB_USED": st.integers(1, 40000).map(float)},
    optional={name: st.integers(0, 1000).map(lambda value: value / 1000) for name in sorted(RATIO_FIELDS)},
)
CALLS = (
    "nvmlDeviceGetFieldValues",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDevice*",
)
FAILURES = st.builds(
    InjectedFailure,
    effect=st.just("error"),
    nvml_function=st.sampled_from(CALLS),
    gpu=st.integers(0, 3),
    error=st.sampled_from(("UNKNOWN", "GPU_IS_LOST", "NO_PERMISSION", "RESET_REQUIRED")),
)


@given(st.data())
def test_any_load_any_failure_one_sample(inside: Inside, data: st.DataObject) -> None:
    """Whatever a GPU, its NVLinks and its GPU instances tell, and whatever fails."""
    load = [DescribedLoad(gpu=gpu, readings=data.draw(READINGS)) for gpu in range(3)]
    load += [DescribedLoad(gpu=0, nvlink=link, readings=data.draw(LINKS)) for link in (0, 5, 6, 11)]
    load += [DescribedLoad(gpu=1, mig="MIG-0", readings=data.draw(MIG_READINGS))]
    failures = tuple(data.draw(st.lists(FAILURES, max_size=2)))
    both(inside, frozen(machine("loaded").but(load=tuple(load), failures=failures)))
