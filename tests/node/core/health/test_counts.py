"""Counts of uncorrectable memory errors: what their growth says, and of whom."""

from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Snapshot

WHOLE = Gpu(index=0, uuid="GPU-a", pci="0000:01:00.0", uncorrected_errors=4)
PARTED = WHOLE.but(mig=Mig(enabled=True, devices=(MigDevice(uuid="MIG-1", profile="1g.5gb", gpu_instance=1),)))


def states(*looks: Gpu) -> dict[str, str]:
    """How the devices stand after these looks at one GPU, a second apart."""
    snapshot = Snapshot()
    for fact in (ConfigLoaded(Settings()), AllocationsListed((), 0.0)):
        snapshot = step(snapshot, fact, 0.0)
    for now, gpu in enumerate(looks):
        snapshot = step(snapshot, MachineObserved(Machine(gpus=(gpu,))), float(now))
    return {each.device: each.state for each in health_without_parents(snapshot) if each.device}


def test_errors_from_before_our_time_are_a_beginning_not_an_event() -> None:
    """A count that is there when we come says nothing about now."""
    assert states(WHOLE) == {"GPU-a": "healthy"}


def test_more_errors_are_an_event() -> None:
    """No XID is needed to notice them."""
    assert states(WHOLE, WHOLE.but(uncorrected_errors=5)) == {"GPU-a": "probing"}
    assert states(WHOLE, WHOLE.but(uncorrected_errors=None), WHOLE.but(uncorrected_errors=5)) == {"GPU-a": "probing"}


def test_a_gpu_in_mig_mode_does_not_fall_ill_as_a_whole_for_errors_of_one_instance() -> None:
    """The count is the GPU's; which instance it was only an XID tells."""
    assert states(PARTED, PARTED.but(uncorrected_errors=5)) == {"GPU-a": "healthy", "MIG-1": "healthy"}


def test_a_count_that_begins_anew_is_no_event() -> None:
    """Volatile counts begin anew with a reset, or with the next client: what follows is measured from there."""
    assert states(WHOLE, WHOLE.but(uncorrected_errors=0)) == {"GPU-a": "healthy"}
    assert states(WHOLE, WHOLE.but(uncorrected_errors=0), WHOLE.but(uncorrected_errors=1)) == {"GPU-a": "probing"}
