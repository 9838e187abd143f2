"""Counters that a driver does not tell, spoils or takes away, and processes that are not who they were."""

import time
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.nvidia.driver import counterqueries
from gpuplane.node.hardware.nvidia.driver.counterqueries import INVALID_VALUE_ERROR, CounterQueries, NoAnswer
from gpuplane.node.hardware.nvidia.driver.counters import COMPUTE_PROCESSES_CALL
from gpuplane.node.hardware.nvidia.driver.gpuprocesses import ANY_INSTANCE, GpuProcesses, ProcessIdentities
from gpuplane.node.model.machine import GpuProcess, InjectedFailure, MachineFile, Mig
from gpuplane.node.model.telemetry import ProcessSample, SamplingRequest
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.machines import changed
from tests.node.hardware.nvidia.driver.sampled import ALL, Sampled

LOADED = Path(__file__).parent / "loaded.yaml"
POWER, ACTIVE = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE"
NOW = 4_000_000_000  # a start, in clock ticks, that is still to come


@pytest.fixture
def loaded() -> MachineFile:
    """A machine with a load of every kind."""
    return read_machine(LOADED.read_bytes(), LOADED.name)


def refusing(machine: MachineFile, call: str, error: str, gpu: int = 0) -> MachineFile:
    """The machine, with a call that fails."""
    return machine.but(failures=(InjectedFailure(effect="error", nvml_function=call, gpu=gpu, error=error),))


def calls(sampled: Sampled) -> int:
    """How many calls a sample takes."""
    before = sampled.take().calls
    return sampled.take().calls - before


@pytest.mark.parametrize("error", ["NO_PERMISSION", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND"])
def test_what_is_refused_for_good_is_not_asked_again(
    inside: Inside, loaded: MachineFile, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPM in a container, say. After ten minutes it is, and then it may be there."""
    sampled = Sampled(inside, loaded)
    whole = calls(sampled)
    sampled = Sampled(inside, refusing(loaded, "nvmlGpmSampleGet", error))
    sampled.take()
    assert sampled.gpu().missing[ACTIVE] == error
    assert calls(sampled) == whole - 2

    sampled.describe(loaded)
    assert sampled.gpu().missing[ACTIVE] == error
    later = time.monotonic() + counterqueries.LASTING_ERROR_RETRY_INTERVAL + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    sampled.take()
    assert sampled.gpu().readings[ACTIVE] == 0.81


@pytest.mark.parametrize("error", ["UNKNOWN", "TIMEOUT", "INVALID_STATE"])
def test_what_may_pass_is_asked_again_at_once(inside: Inside, loaded: MachineFile, error: str) -> None:
    """It is missing for as long as it fails."""
    sampled = Sampled(inside, refusing(loaded, "nvmlDeviceGetPowerUsage", error))
    assert sampled.gpu().missing[POWER] == error
    sampled.describe(loaded)
    assert sampled.gpu().readings[POWER] == 612.345


def test_other_partitions_are_asked_anew(inside: Inside, loaded: MachineFile) -> None:
    """What the GPU did not tell before it may tell now."""
    refused = refusing(loaded, "nvmlDeviceGetPowerUsage", "NOT_SUPPORTED", gpu=1)
    sampled = Sampled(inside, refused)
    assert sampled.gpu(1).missing[POWER] == "NOT_SUPPORTED"
    parts = (loaded.gpus or ())[1].mig_devices
    fewer = changed(loaded, 1, mig=Mig(enabled=True, devices=parts[:1]))
    sampled.describe(fewer)
    assert sampled.gpu(1).missing[POWER] == "NOT_SUPPORTED"  # it was not looked at yet
    sampled.observe()
    sampled.take()
    gpu = sampled.gpu(1)

    assert gpu.readings[POWER] == 200.5
    assert [each.uuid for each in gpu.mig_devices] == ["MIG-0"]
    assert gpu.mig_devices[0].readings[ACTIVE] == 0.25


def test_a_gpu_that_is_lost_between_two_looks_tells_nothing(inside: Inside, loaded: MachineFile) -> None:
    """The first call shows it, and no other is made. When it is back, all of it is."""
    sampled = Sampled(inside, loaded)
    sampled.take()
    whole = sampled.gpu()
    sampled.describe(refusing(loaded, "*", "GPU_IS_LOST"))
    lost = sampled.gpu()
    assert (lost.uuid, lost.readings, lost.processes) == ("GPU-0", {}, ())
    assert lost.missing == dict.fromkeys(ALL.fields, "GPU_IS_LOST")

    sampled.describe(loaded)
    sampled.take()
    assert sampled.gpu() == whole


def test_a_skipped_gpu_is_not_asked(inside: Inside, loaded: MachineFile) -> None:
    """It has its name, as the kernel's files tell it."""
    sampled = Sampled(inside, refusing(loaded, "nvmlDeviceGetHandleByIndex", "UNKNOWN"))
    others = calls(sampled)
    assert sampled.gpu().missing == dict.fromkeys(ALL.fields, "UNKNOWN")
    sampled.describe(loaded)
    sampled.observe()
    sampled.take()
    assert calls(sampled) > others


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("utilization", "4294967295 42", "DCGM_FI_DEV_GPU_UTIL"),
        ("encoder", 101, "DCGM_FI_DEV_ENC_UTIL"),
        ("pstate", 32, "DCGM_FI_DEV_PSTATE"),
        ("gpm.2", "nan", ACTIVE),
        ("gpm.2", "inf", ACTIVE),
        ("gpm.2", "-3", ACTIVE),
        ("gpm.2", "200", ACTIVE),
        ("gpm.20", "nan", "DCGM_FI_PROF_PCIE_TX_BYTES"),
        ("serial", "\udcff\udcfe", "DCGM_FI_DEV_SERIAL"),
    ],
)
def test_nonsense_is_no_reading(inside: Inside, loaded: MachineFile, key: str, value: str | int, field: str) -> None:
    """Of that field alone."""
    sampled = Sampled(inside, loaded)
    sampled.take()
    whole = sampled.gpu()
    other = Sampled(inside, loaded)
    other.describe(loaded, **{f"gpu.0.{key}": value})
    other.take()
    spoilt = other.gpu()

    assert spoilt.missing == {**whole.missing, field: INVALID_VALUE_ERROR}
    assert spoilt.readings == {name: each for name, each in whole.readings.items() if name != field}


def test_a_little_more_than_all_is_all(inside: Inside, loaded: MachineFile) -> None:
    """GPM's shares are of two moments."""
    sampled = Sampled(inside, loaded)
    sampled.describe(loaded, **{"gpu.0.gpm.2": "100.4"})
    sampled.take()
    assert sampled.gpu().readings[ACTIVE] == 1.0


def test_errors_of_single_values(inside: Inside, loaded: MachineFile) -> None:
    """In one answer each field and each metric has its own; that the GPU is lost is of all of it."""
    sampled = Sampled(inside, loaded)
    sampled.describe(loaded, **{"gpu.0.field.82.0": "!10", "gpu.0.gpm.2": "!999"})
    sampled.take()
    missing = sampled.gpu().missing
    assert (missing["DCGM_FI_DEV_MEMORY_TEMP"], missing[ACTIVE]) == ("TIMEOUT", "UNKNOWN")
    for key in ("gpu.0.field.82.0", "gpu.0.gpm.2"):
        sampled.describe(loaded, **{key: "!15"})
        sampled.take()
        assert set(sampled.gpu().missing.values()) == {"GPU_IS_LOST"}


def test_profiling_needs_time_between_two_samples(inside: Inside, loaded: MachineFile) -> None:
    """The first tells none, and says why."""
    sampled = Sampled(inside, loaded)
    assert sampled.gpu().missing[ACTIVE] == "NO_DATA"
    assert sampled.gpu().readings[ACTIVE] == 0.81


def test_slow_fields_are_read_seldom(inside: Inside, loaded: MachineFile) -> None:
    """Fast ones each time."""
    request = SamplingRequest(fields=("DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_MEMORY_TEMP", POWER), slow_interval=3600.0)
    sampled = Sampled(inside, loaded, request)
    before = sampled.gpu().readings
    sampled.describe(loaded, **{"gpu.0.encoder": 50, "gpu.0.field.82.0": 99, "gpu.0.power": 1000})
    assert sampled.gpu().readings == {**before, POWER: 1.0}


def processes(sampled: Sampled, gpu: int = 0) -> dict[int, ProcessSample]:
    """Number → the process."""
    return {each.pid: each for each in sampled.gpu(gpu).processes}


def test_a_number_that_is_given_out_again(inside: Inside, loaded: MachineFile) -> None:
    """Is another process, in other cgroups."""
    sampled = Sampled(inside, loaded)
    assert processes(sampled)[7].started == 11
    other = loaded.processes[0].but(started=99, cgroups=("/kubepods/pod9/c9",))
    sampled.describe(loaded.but(processes=(other,)))
    found = processes(sampled)
    assert found.keys() == {7}
    assert (found[7].started, found[7].cgroups) == (99, ("/kubepods/pod9/c9",))


def test_a_number_that_was_given_out_after_the_driver_listed_it(inside: Inside, loaded: MachineFile) -> None:
    """Is nobody known: the one that used the GPU has ended."""
    later = loaded.processes[0].but(started=NOW)
    found = processes(Sampled(inside, loaded.but(processes=(later,))))
    assert (found[7].started, found[7].cgroups, found[7].memory_mib) == (0, (), 512)


def test_a_process_that_has_ended(inside: Inside, loaded: MachineFile) -> None:
    """The driver lists it still, the kernel does not."""
    sampled = Sampled(inside, loaded)
    assert processes(sampled)[7].cgroups
    rmtree(inside.standin.root / "proc/7")
    assert processes(sampled)[7] == ProcessSample(pid=7, memory_mib=512, sm_percent=60)


@pytest.mark.parametrize("stat", ["", "7", "7 (x) S 1 2", "7 (x) S " + "a " * 30, "7 (x) S " + "-1 " * 30])
def test_a_stat_file_that_says_nothing(inside: Inside, loaded: MachineFile, stat: str) -> None:
    """Identifies nobody."""
    sampled = Sampled(inside, loaded)
    (inside.standin.root / "proc/7/stat").write_text(stat)
    assert processes(sampled)[7].cgroups == ()


def test_processes_of_another_namespace(inside: Inside, loaded: MachineFile) -> None:
    """Their numbers mean nothing here: nobody is looked up by them."""
    sampled = Sampled(inside, loaded, pids=False)
    assert not sampled.take().processes_visible
    assert {(each.started, each.cgroups) for each in processes(sampled).values()} == {(0, ())}


def test_use_that_cannot_be(inside: Inside, loaded: MachineFile) -> None:
    """More than the whole, or of before the last time, is left out; who is not listed used none."""
    sampled = Sampled(inside, loaded)
    sampled.describe(loaded, **{"gpu.0.use.0": "7 60 1000", "gpu.0.use.1": "5 30 1001"})
    assert {pid: each.sm_percent for pid, each in processes(sampled).items()} == {5: 30, 7: 60}
    sampled.describe(loaded, **{"gpu.0.use.0": "7 101 2000", "gpu.0.use.1": "5 30 1001"})
    assert {pid: each.sm_percent for pid, each in processes(sampled).items()} == {5: 0, 7: 0}


class Unprivileged(CounterQueries):
    """May ask for the processes of MIG devices alone, of which each has one."""

    def ask(self, now: float, key: object, function: str, *arguments: Any) -> Any:
        """One process of a MIG device."""
        if function != COMPUTE_PROCESSES_CALL:
            raise NoAnswer("NOT_SUPPORTED")
        [handle] = arguments
        if handle == "GPU":
            raise NoAnswer("NO_PERMISSION")
        return [SimpleNamespace(pid=handle, usedGpuMemory=None, gpuInstanceId=handle, computeInstanceId=0)]


def test_who_may_not_ask_the_gpu_asks_its_mig_devices(inside: Inside) -> None:
    """The processes in MIG devices are told of the whole GPU to the privileged alone."""
    users = GpuProcesses(Unprivileged(inside.nvml, 0), ProcessIdentities("/nowhere", visible=True))
    assert users.read(0.0, "GPU", [3, 4]) == tuple(
        ProcessSample(pid=each, gpu_instance=each, compute_instance=0) for each in (3, 4)
    )


def test_clients_of_mps_are_in_two_lists_or_in_one(inside: Inside, loaded: MachineFile) -> None:
    """Each is one process, and keeps the larger figure."""
    sampled = Sampled(inside, loaded)
    any_instance = f"{ANY_INSTANCE} {ANY_INSTANCE}"
    clients = {"gpu.0.mps.0": f"7 {any_instance} {600 << 20}", "gpu.0.mps.1": f"70 {any_instance} {3 << 20}"}
    sampled.describe(loaded, **clients)
    assert {pid: each.memory_mib for pid, each in processes(sampled).items()} == {5: 12.5, 7: 600, 70: 3}


def test_a_day_of_processes_leaves_nothing_behind(inside: Inside, loaded: MachineFile) -> None:
    """Who has gone is forgotten."""
    sampled = Sampled(inside, loaded)
    for number in range(50):
        mine = GpuProcess(gpu=0, pid=1000 + number, started=5, cgroups=(f"/kubepods/pod{number}",))
        sampled.describe(loaded.but(processes=(mine,)))
        assert processes(sampled)[1000 + number].cgroups == mine.cgroups
    known: Any = sampled.sampler._processes
    assert known._known.keys() == {1049}
