"""How an agent in standby takes over the ledger of the agent that served before it.

The previous agent decided until its end, so its ledger has priority over what this agent decided while it watched. But
the previous agent knows nothing of the time after its end. So the newest observation of the machine is judged again on
top of its ledger, and faults that only this agent has seen are added. Records of the kernel log need no special care:
the agent that serves reads the log from its beginning, and each record counts once.
"""

from collections.abc import Mapping

from gpuplane.node.core.health import observations, state_machine
from gpuplane.node.core.health.context import HealthContext, health_context
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.model.facts import LedgerLoaded
from gpuplane.node.model.health import DeviceRecord, HealthRecords
from gpuplane.node.model.snapshot import Ledger, Snapshot, StoredLedger


def apply_loaded_ledger(snapshot: Snapshot, fact: LedgerLoaded, now: float) -> Snapshot:
    """The snapshot after the ledger was loaded from the state directory.

    If the previous agent has ended, nothing is offered until kubelet has listed the allocations again, because the
    previous agent allocated devices until its end.
    """
    disk = StoredLedger(possible_share_layouts=(fact.ledger.share_layouts or {},))
    if not standby_reason(snapshot):
        return snapshot.but(ledger=fact.ledger, stored_ledger=disk)
    after = snapshot.but(ledger=_merge_into_loaded_ledger(snapshot, fact.ledger), stored_ledger=disk)
    context = health_context(after)
    health, machine = fact.ledger.health or HealthRecords(), snapshot.machine
    if machine is not None:
        counted = machine.gpus is not None
        health = observations.apply_observation(health, machine, machine, counted, snapshot.allocations, context, now)
    for kind, seen in snapshot.devices.items():
        health = observations.apply_devices_observation(health, kind, seen, seen, context, now)
    health = _add_events_missing_in_ledger(health, snapshot.ledger.health or HealthRecords(), context, now)
    after = after.but(ledger=after.ledger.but(health=None if health == HealthRecords() else health))
    return after.but(allocations=None) if fact.previous_agent_ended else after


def _merge_into_loaded_ledger(snapshot: Snapshot, ledger: Ledger) -> Ledger:
    """The loaded ledger, with those facts that this agent received since it started and that are not sent again."""
    ours, homes = snapshot.ledger, {**(snapshot.ledger.mig_parents or {}), **(ledger.mig_parents or {})}
    return ledger.but(
        config_name=ledger.config_name if snapshot.config.settings is None else ours.config_name,
        node_requests=ours.node_requests if snapshot.config.is_node_object_read else ledger.node_requests,
        mig_parents=homes or None,
    )


def _add_events_missing_in_ledger(
    health: HealthRecords, own_records: HealthRecords, context: HealthContext, now: float
) -> HealthRecords:
    """The records of the previous agent, with the events that only our records count."""
    devices: dict[str, DeviceRecord] = dict(health.devices)
    for key, record in own_records.devices.items():
        known: Mapping[str, int] = devices.get(key, DeviceRecord()).fault_counts
        for each in record.findings:
            if each.is_event and record.fault_counts.get(each.code, 0) > known.get(each.code, 0):
                event, known_record = each.but(confirmed=False), devices.get(key, DeviceRecord())
                devices[key] = state_machine.apply_event(known_record, event, context, now)
    return health if devices == health.devices else health.but(devices=dict(sorted(devices.items())))
