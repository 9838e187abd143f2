"""What a machine file's load is told as, and what is refused in it."""

import pytest

from gpuplane.base import strict
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, ProcessSample, SamplingRequest
from tests.node.hardware.described.load.described import ALL, only, sample

GPU = "gpus: [{index: 0, uuid: GPU-0, memory_mib: 1000, links: [{peer: nvswitch, nvlink_count: 2}]}]\n"
SPLIT = (
    "gpus: [{index: 0, uuid: GPU-0, memory_mib: 1000, mig: {enabled: true, devices: "
    "[{uuid: MIG-0, profile: 1g.10gb, gpu_instance: 3, memory_mib: 100}]}}]\n"
)
UTILIZATION = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL")


def load(readings: str, more: str = "") -> str:
    """One GPU with this load."""
    return GPU + f"load: [{{gpu: 0, readings: {{{readings}}}{more}}}]\n"


def test_every_requested_field_is_told_or_missing() -> None:
    """What the file does not say is not supported; nothing is 0 because it is unknown."""
    gpu = only(sample(load("DCGM_FI_DEV_GPU_UTIL: 7", ", texts: {DCGM_FI_DEV_SERIAL: '1'}")))

    assert (gpu.readings, gpu.texts) == ({"DCGM_FI_DEV_GPU_UTIL": 7}, {"DCGM_FI_DEV_SERIAL": "1"})
    assert set(gpu.missing) == set(SAMPLED_FIELDS) - {*gpu.readings, *gpu.texts}
    assert set(gpu.missing.values()) == {"NOT_SUPPORTED"}


def test_only_what_is_requested_is_told() -> None:
    """Neither other fields nor, unless they are wanted, processes."""
    text = load("DCGM_FI_DEV_GPU_UTIL: 7, DCGM_FI_DEV_SM_CLOCK: 5") + "processes: [{gpu: 0, pid: 1}]\n"
    request = SamplingRequest(fields=("DCGM_FI_DEV_SM_CLOCK",), processes=False)
    gpu = only(sample(text, request))

    assert (gpu.readings, gpu.missing, gpu.processes) == ({"DCGM_FI_DEV_SM_CLOCK": 5}, {}, ())
    assert [each.pid for each in only(sample(text, request.but(processes=True))).processes] == [1]


def test_slow_fields_are_those_of_the_slow_clock() -> None:
    """Between two of its readings they stay as they are."""
    text = load(
        "DCGM_FI_DEV_GPU_UTIL: {curve: sawtooth, period: 100}, DCGM_FI_DEV_ENC_UTIL: {curve: sawtooth, period: 100}"
    )
    gpu = only(sample(text, at=33, slow_at=30))
    assert gpu.readings == {"DCGM_FI_DEV_GPU_UTIL": 33, "DCGM_FI_DEV_ENC_UTIL": 30}


def test_the_other_sizes_of_memory_follow() -> None:
    """From what is used or free, where the size of the memory is known; from nothing follows nothing."""
    used = only(sample(load("DCGM_FI_DEV_FB_USED: 300, DCGM_FI_DEV_FB_RESERVED: 200"))).readings
    free = only(sample(load("DCGM_FI_DEV_FB_FREE: 500, DCGM_FI_DEV_FB_RESERVED: 200"))).readings

    assert used == free
    assert used == {
        "DCGM_FI_DEV_FB_TOTAL": 1000,
        "DCGM_FI_DEV_FB_USED": 300,
        "DCGM_FI_DEV_FB_FREE": 500,
        "DCGM_FI_DEV_FB_RESERVED": 200,
        "DCGM_FI_DEV_FB_USED_PERCENT": 0.375,
    }
    assert only(sample(load(""))).readings == {}
    unknown = only(sample("gpus: [{index: 0, uuid: GPU-0}]\nload: [{gpu: 0, readings: {DCGM_FI_DEV_FB_USED: 3}}]"))
    assert unknown.readings == {"DCGM_FI_DEV_FB_USED": 3}


def test_mig_devices_and_nvlinks_have_their_own() -> None:
    """A link's bytes are the GPU's in sum, where nothing else says those."""
    mig = only(sample(SPLIT + "load: [{gpu: 0, mig: MIG-0, readings: {DCGM_FI_DEV_FB_USED: 40}}]"))
    assert mig.mig_devices[0].uuid == "MIG-0"
    assert mig.mig_devices[0].readings["DCGM_FI_DEV_FB_FREE"] == 60
    assert mig.readings == {}

    lanes = "".join(
        f"  - {{gpu: 0, nvlink: {link}, readings: {{DCGM_FI_DEV_NVLINK_TX_BYTES: 5}}}}\n" for link in (0, 1)
    )
    gpu = only(sample(GPU + "load:\n" + lanes))
    assert gpu.links == {link: {"DCGM_FI_DEV_NVLINK_TX_BYTES": 5} for link in (0, 1)}
    assert gpu.readings == {"DCGM_FI_DEV_NVLINK_TX_BYTES": 10}


def test_load_of_what_is_not_there_is_left_out() -> None:
    """Who takes a GPU or a MIG device out of a file need not look for it in the load."""
    text = GPU + "load: [{gpu: 3, readings: {DCGM_FI_DEV_GPU_UTIL: 1}}, {gpu: 0, mig: MIG-7}, {gpu: 0, nvlink: 2}]"
    gpu = only(sample(text))
    assert not (gpu.readings or gpu.mig_devices or gpu.links)


def test_processes() -> None:
    """As the file has them. Who is not said to use the multiprocessors uses none, where others are."""
    text = GPU + (
        "processes:\n"
        "  - {gpu: 0, pid: 9, memory_mib: 10, sm_percent: 30, started: 77, cgroups: [/kubepods/a]}\n"
        "  - {gpu: 0, pid: 4, gpu_instance: 3, compute_instance: 0}\n"
    )
    first, second = only(sample(text)).processes
    assert first == ProcessSample(pid=4, sm_percent=0, gpu_instance=3, compute_instance=0)
    assert second == ProcessSample(pid=9, memory_mib=10, sm_percent=30, started=77, cgroups=("/kubepods/a",))


@pytest.mark.parametrize(
    ("failure", "lost"),
    [
        ("nvml_function: nvmlDeviceGetPowerUsage, error: TIMEOUT", {"DCGM_FI_DEV_POWER_USAGE": "TIMEOUT"}),
        ("nvml_function: nvmlGpmSampleGet, error: NO_PERMISSION", {"DCGM_FI_PROF_SM_ACTIVE": "NO_PERMISSION"}),
        (
            "nvml_function: nvmlDeviceGetUtilizationRates",
            dict.fromkeys(UTILIZATION, "UNKNOWN"),
        ),
    ],
)
def test_a_counter_that_fails_is_missing_alone(failure: str, lost: dict[str, str]) -> None:
    """With NVML's reason; the GPU has no fault by it."""
    said = ", ".join(f"{name}: 1" for name in ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE", *UTILIZATION))
    whole = only(sample(load(said)))
    gpu = only(sample(load(said) + f"failures: [{{effect: error, gpu: 0, {failure}}}]"))

    assert gpu.readings == {name: value for name, value in whole.readings.items() if name not in lost}
    assert {name: gpu.missing[name] for name in whole.readings if name in gpu.missing} == lost


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "failures: [{effect: error, nvml_function: nvmlDeviceGetPowerUsage, gpu: 0, error: GPU_IS_LOST}]",
            "GPU_IS_LOST",
        ),
        ("failures: [{effect: error, gpu: 0, error: GPU_IS_LOST}]", "GPU_IS_LOST"),
        ("failures: [{effect: error, nvml_function: nvmlDeviceGetUUID, gpu: 0}]", "UNKNOWN"),
        ("failures: [{effect: hang, nvml_function: nvmlDeviceGetPowerUsage, gpu: 0}]", "TIMEOUT"),
        ("failures: [{effect: crash, nvml_function: nvmlDeviceGetMigMode, gpu: 0}]", "UNKNOWN"),
    ],
)
def test_a_gpu_that_does_not_answer_keeps_its_entry(more: str, reason: str) -> None:
    """It has its name and nothing else: no reading, no process."""
    text = load("DCGM_FI_DEV_POWER_USAGE: 1") + "processes: [{gpu: 0, pid: 1}]\n" + more
    gpu = only(sample(text))
    assert gpu.uuid == "GPU-0"
    assert not (gpu.readings or gpu.texts or gpu.links or gpu.processes)
    assert gpu.missing == dict.fromkeys(ALL.fields, reason)


def test_a_gpu_with_a_fault_that_means_lost_is_one() -> None:
    """One with another fault goes on telling."""
    text = load("DCGM_FI_DEV_POWER_USAGE: 1")
    lost = text.replace("index: 0", "index: 0, faults: [{code: gpu-lost, message: gone}]")
    ill = text.replace("index: 0", "index: 0, faults: [{code: remap-pending, message: soon}]")
    assert (only(sample(lost)).readings, only(sample(ill)).readings) == ({}, {"DCGM_FI_DEV_POWER_USAGE": 1})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (load("DCGM_FI_DEV_GPU_UTILS: 1"), "did you mean 'DCGM_FI_DEV_GPU_UTIL'"),
        (load("DCGM_FI_DEV_SERIAL: 1"), "write it under texts"),
        (load("", ", texts: {DCGM_FI_DEV_GPU_UTIL: '1'}"), "write it under readings"),
        (load("", ", texts: {DCGM_FI_DEV_SERIALS: '1'}"), "did you mean 'DCGM_FI_DEV_SERIAL'"),
        (load("DCGM_FI_DEV_GPU_UTIL: 101"), "write 0 to 100"),
        (load("DCGM_FI_PROF_SM_ACTIVE: {curve: sine, low: 0, high: 2}"), "write 0 to 1"),
        (load("DCGM_FI_DEV_GPU_UTIL: {curve: counter, high: 1}"), "use another curve"),
        (load("DCGM_FI_DEV_SM_CLOCK: {curve: sine, period: 0}"), "write more than 0"),
        (load("DCGM_FI_DEV_SM_CLOCK: -1"), "write 0 or more"),
        (load("DCGM_FI_DEV_SM_CLOCK: .nan"), "write 0 or more"),
        (load("DCGM_FI_DEV_SM_CLOCK: {curve: zigzag}"), "zigzag"),
        (load("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: 1", ", nvlink: 12"), "remove it"),
        (load("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL: 1"), "write it there"),
        (load("", ", mig: GPU-7"), "they begin with MIG-"),
        (load("", ", nvlink: -1"), "from 0"),
        (load("DCGM_FI_DEV_GPU_UTIL: 1", ", nvlink: 1"), "an NVLink does not tell"),
        (load("").replace("gpu: 0", "gpu: -3"), "from 0"),
        (SPLIT + "load: [{gpu: 0, mig: MIG-0, readings: {DCGM_FI_DEV_GPU_UTIL: 1}}]", "a MIG device does not tell"),
        (SPLIT + "load: [{gpu: 0, mig: MIG-0, nvlink: 0}]", "remove mig or nvlink"),
        (GPU + "processes: [{gpu: 0, pid: 1, sm_percent: 200}]", "write 0 to 100"),
    ],
)
def test_what_is_wrong_is_refused(text: str, line: str) -> None:
    """With its place, and what to write instead."""
    with pytest.raises(strict.InvalidInput) as refused:
        read_machine(text.encode(), "m.yaml")
    [error] = refused.value.errors
    assert error.startswith("m.yaml:")
    assert line in error
