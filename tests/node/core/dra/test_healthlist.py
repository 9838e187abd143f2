"""The health of devices, as kubelet is told of it."""

from gpuplane.node.core.dra.healthlist import MAX_MESSAGE, claim_device_health
from gpuplane.node.model.facts import ClaimPrepareRequested, DrainRequested, LedgerLoaded, MachineObserved
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault, Mig, MigDevice
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.dra.nodes import GPUS, MACHINE, after, claim, node


def states(snapshot: Snapshot) -> dict[str, str]:
    """Device → state."""
    return {each.device: each.state for each in claim_device_health(snapshot, "n1") or ()}


def test_every_gpu_is_in_the_list() -> None:
    """Under its names in the slices; MIG devices are none of these devices. Before the first look there is no list."""
    assert claim_device_health(Snapshot(), "n1") is None
    gpus = (
        GPUS[0].but(mig=Mig(enabled=True, devices=(MigDevice(uuid="MIG-1", profile="1g.10gb", gpu_instance=1),))),
        *GPUS[1:],
    )
    found = claim_device_health(node(machine=MACHINE.but(gpus=gpus)), "n1")
    assert found is not None
    assert [(each.pool, each.device, each.state, each.message) for each in found] == [
        (f"n1/gpu-{n}", f"gpu-{n}", "healthy", "") for n in range(4)
    ]


def test_a_fault_is_that_of_its_device() -> None:
    sick = GPUS[1].but(faults=(Fault("gpu-lost", "x" * 3000),))
    snapshot = node(machine=MACHINE.but(gpus=(GPUS[0], sick, *GPUS[2:])))
    assert states(snapshot) == {"gpu-0": "healthy", "gpu-1": "unhealthy", "gpu-2": "healthy", "gpu-3": "healthy"}
    [_, found, *_] = claim_device_health(snapshot, "n1") or ()
    assert len(found.message) == MAX_MESSAGE
    everywhere = node(machine=MACHINE.but(faults=(Fault("driver-hang", "it hangs"),)))
    assert set(states(everywhere).values()) == {"unhealthy"}


def test_a_drained_gpu_works() -> None:
    """A person's request is not a fault of the device; the message tells of it."""
    snapshot = after(node(), DrainRequested("GPU-2", Drain(reason="for repair")))
    assert states(snapshot)["gpu-2"] == "healthy"
    assert [each.device for each in claim_device_health(snapshot, "n1") or () if each.message] == ["gpu-2"]


def test_a_prepared_gpu_stays_in_the_list() -> None:
    """Whatever the look shows: kubelet keeps showing what was said last of a device that is left out."""
    prepared = after(node(), ClaimPrepareRequested(claim("a", 1)))
    gone = after(prepared, MachineObserved(MACHINE.but(gpus=(GPUS[0], *GPUS[2:]))))
    assert states(gone).keys() == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
    assert states(gone)["gpu-1"] != "healthy"
    silent = after(Snapshot(), LedgerLoaded(prepared.ledger), MachineObserved(MACHINE.but(gpus=None)))
    assert states(silent) == {"gpu-1": "unknown"}


def test_the_list_stays_the_same_object() -> None:
    """While nothing of it changes: streams compare it at each change of the node."""
    snapshot = node()
    changed = after(snapshot, ClaimPrepareRequested(claim("a", 1, admin=True)))
    assert claim_device_health(changed, "n1") is claim_device_health(snapshot, "n1")
