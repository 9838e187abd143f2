"""A state file that somebody edited, or that is odd: what it says of a device can be ended all the same."""

import pytest

from gpuplane.node.model.facts import DrainRequested, LedgerLoaded
from gpuplane.node.model.health import DeviceRecord, Finding, HealthRecords
from gpuplane.node.model.snapshot import Ledger
from tests.node.core.health.world import BOOT, World, machine


@pytest.mark.parametrize(("standing", "stands"), [(True, {"GPU-0": ("unhealthy", "xid-79")}), (False, {})])
def test_an_event_without_its_time_can_be_restored(standing: bool, stands: dict[str, tuple[str, str]]) -> None:
    """It happened when it began, then; no look shows it, whatever it lacks."""
    world = World(machine(2))
    odd = Finding(code="xid-79", message="off the bus", since=900.0, is_event=True, confirmed=standing)
    world.apply(
        LedgerLoaded(Ledger(boot_id=BOOT, health=HealthRecords(devices={"GPU-0": DeviceRecord(findings=(odd,))})))
    )
    assert world.verdicts() == stands

    world.apply(DrainRequested("GPU-0", None))
    world.wait(10, answer=True)

    assert world.verdicts() == {}
