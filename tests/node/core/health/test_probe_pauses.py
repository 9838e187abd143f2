"""The pause after a probe that failed: short, but where probing itself does harm."""

import itertools

import pytest

from gpuplane.node.core.health.probes import requested_probe_times
from gpuplane.node.core.step import next_due_time, step
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    Fact,
    FaultOccurred,
    MachineObserved,
    ProbeFinished,
    Tick,
)
from gpuplane.node.model.health import HealthRecords
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot

GPU = Gpu(index=0, uuid="GPU-a", pci="0000:01:00.0")
PERIOD = Settings().probe_period


def after(snapshot: Snapshot, *facts: Fact, now: float) -> Snapshot:
    """The snapshot after these facts at one time."""
    for fact in facts:
        snapshot = step(snapshot, fact, now)
    return snapshot


def fallen() -> Snapshot:
    """A GPU whose program took a memory error."""
    known = after(
        Snapshot(), ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(Machine(gpus=(GPU,))), now=0.0
    )
    return after(known, FaultOccurred("xid-94", "GPU-a", "", 1.0, pids=(7,)), now=1.0)


def pauses(snapshot: Snapshot, probed: Gpu, pids: tuple[int, ...], count: int) -> list[float]:
    """Seconds from each probe, which finds this, to the next."""
    times = []
    for _ in range(count):
        at = next_due_time(snapshot)
        assert at is not None
        snapshot = after(snapshot, Tick(), now=at)
        times.append(at)
        snapshot = after(snapshot, ProbeFinished(requested_probe_times(snapshot)["GPU-a"], probed, pids), now=at)
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_while_a_process_runs_on_it_is_asked_again_within_two_periods() -> None:
    """However long that was: what ends then is back as soon as anything else."""
    assert max(pauses(fallen(), GPU, (7,), 20)) == 2 * PERIOD


@pytest.mark.parametrize("code", ["gpu-hang", "gpu-crash"])
def test_a_probe_that_hangs_or_crashes_is_done_less_and_less(code: str) -> None:
    """A driver that cannot bear the question is spared it, up to a minute."""
    assert pauses(fallen(), GPU.but(faults=(Fault(code, "in nvmlInit"),)), (), 6) == [5.0, 10.0, 20.0, 40.0, 60.0]


def test_what_a_look_shows_to_be_pending_is_not_asked_about_again_and_again() -> None:
    """One probe says that rows wait to be remapped; the next is made once the look shows them no longer."""
    pending = GPU.but(faults=(Fault("remap-pending", "rows wait"),))
    snapshot = after(fallen(), MachineObserved(Machine(gpus=(pending,))), now=2.0)
    snapshot = after(snapshot, Tick(), now=1.0 + PERIOD)
    snapshot = after(snapshot, ProbeFinished(requested_probe_times(snapshot)["GPU-a"], pending), now=1.0 + PERIOD)

    assert next_due_time(snapshot) is None
    probe = (snapshot.ledger.health or HealthRecords()).devices["GPU-a"].probe
    assert probe is not None
    assert probe.failure_code == "remap-pending"
    mended = after(snapshot, MachineObserved(Machine(gpus=(GPU,))), now=1000.0)
    assert requested_probe_times(mended) == {"GPU-a": 1000.0}
