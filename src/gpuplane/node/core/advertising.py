"""The offer: what this node advertises, as a function of the snapshot.

Machine and settings say which units there are and under which names; health and what containers hold say which of
them may be given out now. A unit that may not is still listed, unhealthy, with the reason: capacity stays the truth.

Each layer is remembered by the parts that it depends on. A grant changes only what containers hold; where that
withholds nothing, the offer after it is the very same object, and nobody who follows the offer has anything to do.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from gpuplane.base.text import Text
from gpuplane.node.core import mps, requests, withholding
from gpuplane.node.core.containers.cdi import desiredspecs as cdi
from gpuplane.node.core.health import reasons
from gpuplane.node.core.health.context import devices_of_kind, health_context, with_health_inputs_alone
from gpuplane.node.core.inventory.resources import describe_unsupported_sharing, node_resources
from gpuplane.node.core.kinds.table import PLAIN_KINDS
from gpuplane.node.core.partitions.plans import withdrawn_units
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.core.view import part_view, view, without_allocations
from gpuplane.node.core.withholding import withheld_reasons
from gpuplane.node.model.machine import NVIDIA_GPU
from gpuplane.node.model.reasons import ReasonCode
from gpuplane.node.model.sharelayout import EncodedLayout
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import (
    CDI_FILES_PART,
    CONFIG_PART,
    DRIVER_PART,
    KUBELET_LOCK_PART,
    MPS_COMPUTE_MODES_PART,
    POD_RESOURCES_PART,
    STATE_DIRECTORY_PART,
    AnyPart,
    parse_part_name,
)
from gpuplane.node.model.views import Offer, OfferedDevice, Reason, ReasonKind, Resource

UNSAVED_LAYOUT_TEXT = "the agent has not yet saved the layout of its shares in the state directory"
"""Why a share has to wait: for a moment, or for as long as the state directory cannot be written."""


@view
def offer(snapshot: Snapshot) -> Offer:
    """What to tell kubelet. `waiting` is set, and nothing else, while too little is known to say anything."""
    if waiting := offer_waiting_reason(snapshot):
        return Offer(waiting_reason=waiting.text, waiting_code=waiting.code)
    fit = _offer_without_allocations(without_allocations(snapshot))
    reasons, going = withheld_reasons(snapshot), withdrawn_units(snapshot)
    if reasons or going:
        return fit.but(resources=tuple(_mark_withheld_devices(resource, reasons, going) for resource in fit.resources))
    return fit


def share_layouts_for_ledger(snapshot: Snapshot) -> Mapping[str, EncodedLayout]:
    """The share layouts that the ledger has to remember: see `withholding`."""
    settings, resources = snapshot.config.settings, tuple[Resource, ...]()
    if settings is not None:
        resources, _ = node_resources(snapshot, settings)
    index = withholding.offered_index.of(snapshot, resources)
    return withholding.merged_share_layouts(index, snapshot.allocations or (), snapshot.ledger.share_layouts or {})


@part_view
def offered_devices_by_id(offered: Offer) -> Mapping[str, Mapping[str, OfferedDevice]]:
    """resource → id → device, for requests that name ids."""
    return {resource.name: {device.id: device for device in resource.devices} for resource in offered.resources}


@view
def _offer_without_allocations(snapshot: Snapshot) -> Offer:
    """The offer, as if no container held anything."""
    settings = snapshot.config.settings
    assert settings is not None
    resources, not_offered = node_resources(snapshot, settings)
    unsaved = withholding.units_with_unstored_layout(
        withholding.offered_index.of(snapshot, resources),
        snapshot.ledger.share_layouts or {},
        snapshot.stored_ledger.possible_share_layouts,
    )
    with_reasons = (
        _mark_units_unavailable(resource, _reasons_by_unit(snapshot, resource, unavailable_units(snapshot), unsaved))
        for resource in resources
    )
    return Offer(resources=tuple(with_reasons), not_offered=not_offered)


_unsupported_sharing_text = part_view(describe_unsupported_sharing)


def describe_unsupported_settings(snapshot: Snapshot) -> Text:
    """What of the configuration this machine cannot have, though there is nothing wrong with either; "" for nothing."""
    machine, settings = snapshot.machine, snapshot.config.settings
    return (
        _unsupported_sharing_text.of(snapshot, machine, settings)
        if machine is not None and settings is not None
        else ""
    )


def unavailable_units(snapshot: Snapshot) -> Mapping[str, tuple[Reason, ...]]:
    """Unit id → what health or a person has against giving it out; of the kinds that have been counted."""
    return _unavailable_units_without_allocations(without_allocations(snapshot))


@view
def _unavailable_units_without_allocations(snapshot: Snapshot) -> Mapping[str, tuple[Reason, ...]]:
    return _derive_unavailable_units(with_health_inputs_alone(snapshot))


@view
def _derive_unavailable_units(snapshot: Snapshot) -> Mapping[str, tuple[Reason, ...]]:
    return dict(_iterate_unavailable_units(snapshot))


def _iterate_unavailable_units(snapshot: Snapshot) -> Iterator[tuple[str, tuple[Reason, ...]]]:
    """(unit id, why it must not be given out) of each unavailable unit.

    The reasons of a GPU are those of its MIG devices too. Those of a MIG device are those of its GPU, where that
    is offered whole.
    """
    context = health_context(snapshot)
    for gpu in snapshot.gpus:
        found = ((each.uuid, reasons.unavailable_reasons(snapshot, context, gpu, each)) for each in gpu.mig_devices)
        mig_reasons = {uuid: why for uuid, why in found if why}
        yield from mig_reasons.items()
        of_parts = tuple(dict.fromkeys(chain.from_iterable(mig_reasons.values())))
        if gpu_reasons := reasons.unavailable_reasons(snapshot, context, gpu) or of_parts:
            yield gpu.uuid, gpu_reasons
    for kind in PLAIN_KINDS.values():
        for device in devices_of_kind(snapshot, kind.name):
            if found_reasons := reasons.unavailable_plain_reasons(snapshot, context, kind, device):
                yield kind.unit_id(device.id), found_reasons


def _reasons_by_unit(
    snapshot: Snapshot,
    resource: Resource,
    unavailable_units: Mapping[str, tuple[Reason, ...]],
    units_with_unstored_layout: Collection[withholding.OfferedId],
) -> Mapping[str, tuple[Reason, ...]]:
    """Unit id → why it must not be given out as this resource: what ails it, and else what its containers lack.

    Shares of an `unsaved` unit wait, for after a restart they would be taken for other ones.
    """
    waiting = {
        unit: _layout_not_stored_reason(snapshot) for name, unit in units_with_unstored_layout if name == resource.name
    }
    lacks = {
        **waiting,
        **_cdi_unavailable_reasons(snapshot, resource, unavailable_units),
        **_mps_unavailable_reasons(snapshot, resource, unavailable_units),
    }
    return {**{unit: (why,) for unit, why in lacks.items()}, **unavailable_units}


def _layout_not_stored_reason(snapshot: Snapshot) -> Reason:
    refused = (status := snapshot.statuses.of(STATE_DIRECTORY_PART)) is not None and status.state == "failing"
    return Reason(
        kind="problem" if refused else "waiting",
        text=UNSAVED_LAYOUT_TEXT,
        part=STATE_DIRECTORY_PART.name,
        code="layout-not-stored",
    )


def _cdi_unavailable_reasons(
    snapshot: Snapshot, resource: Resource, unavailable_units: Collection[str]
) -> dict[str, Reason]:
    """Unit id → why a container that is given it by CDI could not start."""
    if not cdi.desired_specs(snapshot):
        return {}
    units = {device.unit.id: device.unit for device in resource.devices if device.unit.id not in unavailable_units}
    return {id: why for id, unit in units.items() if (why := cdi.cdi_unavailable_reason(snapshot, unit))}


def _mps_unavailable_reasons(
    snapshot: Snapshot, resource: Resource, unavailable_units: Collection[str]
) -> dict[str, Reason]:
    """Unit id → why MPS does not serve it, or has not left it yet."""
    if not resource.uses_mps and MPS_COMPUTE_MODES_PART not in snapshot.statuses:
        return {}
    found: dict[str, Reason] = {}
    for device in {
        device.unit.id: device for device in resource.devices if device.unit.id not in unavailable_units
    }.values():
        client = resource.uses_mps and device.is_share
        why = (
            mps.unavailable_reason(snapshot, resource.name, device.unit)
            if client
            else mps.compute_mode_reason(snapshot, device.unit)
        )
        found |= {device.unit.id: why} if why else {}
    return found


def _mark_units_unavailable(resource: Resource, reasons_by_unit: Mapping[str, tuple[Reason, ...]]) -> Resource:
    if not reasons_by_unit:
        return resource
    devices = (
        d.but(reasons=reasons_by_unit[d.unit.id]) if d.unit.id in reasons_by_unit else d for d in resource.devices
    )
    return resource.but(devices=tuple(devices))


def _mark_withheld_devices(
    resource: Resource,
    reasons_by_offered_id: Mapping[withholding.OfferedId, Reason],
    withdrawn: Mapping[str, Reason],
) -> Resource:
    """The resource, with what is withheld for its holder, and what is about to go (unit id → why)."""
    reasons = {id: (why,) for (name, id), why in reasons_by_offered_id.items() if name == resource.name}
    for device in resource.devices if withdrawn else ():
        if why := withdrawn.get(device.unit.id):
            reasons[device.id] = (*reasons.get(device.id, ()), why)
    devices = (d.but(reasons=(*d.reasons, *reasons[d.id])) if d.id in reasons else d for d in resource.devices)
    return resource.but(devices=tuple(devices)) if reasons else resource


def offer_waiting_reason(snapshot: Snapshot) -> Reason | None:
    """Why nothing may be offered by this agent now; None if something may."""
    if why := standby_reason(snapshot):
        return Reason(kind="waiting", text=why, part=KUBELET_LOCK_PART.name, code="standby")
    gpus_are_missing = missing_gpus_reason(snapshot)
    if gpus_are_missing is not None and not has_plain_devices(snapshot):
        return gpus_are_missing
    return _missing_configuration_reason(snapshot)


def has_plain_devices(snapshot: Snapshot) -> bool:
    """Whether a device is known that is no GPU: it is offered, whatever is known of the GPUs."""
    return any(each.devices for each in snapshot.devices.values())


def is_ready_to_take_over(snapshot: Snapshot) -> bool:
    """Whether this agent stands by for another, and knows all that it needs to serve in its place."""
    return bool(standby_reason(snapshot)) and missing_information_reason(snapshot) is None


def missing_information_reason(snapshot: Snapshot) -> Reason | None:
    """What is not known yet, so that not all could be offered, whoever serves kubelet; None for nothing."""
    return missing_gpus_reason(snapshot) or _missing_configuration_reason(snapshot)


def missing_kind_reasons(snapshot: Snapshot) -> Mapping[str, Reason]:
    """Kind → why its devices have not been counted now."""
    gpus = missing_gpus_reason(snapshot)
    return {
        **({} if gpus is None else {NVIDIA_GPU: gpus}),
        **{
            kind: Reason(kind="problem", text=reasons.describe_faults(found.faults), code=found.faults[0].code)
            for kind, found in snapshot.devices.items()
            if found.faults
        },
    }


def missing_gpus_reason(snapshot: Snapshot) -> Reason | None:
    """Why nothing is known of the GPUs; None if they have been counted."""
    if snapshot.machine is None and (why := requests.driver_release_reason(snapshot)):
        text = f"the driver is released: {why}"
        return Reason(kind="released", text=text, part=DRIVER_PART.name, code="driver-released")
    if snapshot.machine is None:
        return _not_reported_reason(
            snapshot, DRIVER_PART, "machine-not-observed", "the agent has not observed the machine yet"
        )
    if snapshot.machine.gpus is None:
        faults = snapshot.machine.faults
        code = faults[0].code if faults else ""
        return Reason(kind="problem", text=reasons.describe_faults(faults), part=DRIVER_PART.name, code=code)
    return None


def _missing_configuration_reason(snapshot: Snapshot) -> Reason | None:
    """What is not known yet, beside the devices, that an offer depends on; None for nothing."""
    if snapshot.config.settings is None:
        return _not_reported_reason(snapshot, CONFIG_PART, "config-missing", "there is no valid configuration yet")
    if snapshot.allocations is None:
        return _not_reported_reason(
            snapshot,
            POD_RESOURCES_PART,
            "allocations-unknown",
            "kubelet has not reported yet which devices containers hold",
        )
    if cdi.is_first_write_pending(snapshot):
        text = "the CDI specifications are being written"
        return Reason(kind="waiting", text=text, part=CDI_FILES_PART.name, code="cdi-not-written")
    return None


def part_with_missing_information(snapshot: Snapshot) -> AnyPart | None:
    """The part that has not told yet what an offer needs; None for none. Why it has not, its status says."""
    lack = missing_information_reason(snapshot)
    if lack is None or lack.part == CDI_FILES_PART.name or requests.driver_release_reason(snapshot):
        return None
    return parse_part_name(lack.part)


def _not_reported_reason(snapshot: Snapshot, part: AnyPart, code: ReasonCode, missing_fact: Text) -> Reason:
    """What a part has not told yet: in a moment, or never where that part fails."""
    status = snapshot.statuses.get(part)
    if status is None or status.state == "ok":
        return Reason(kind="waiting", text=missing_fact, part=part.name, code=code)
    kind: ReasonKind = "problem" if status.state == "failing" else "waiting"
    text = f"{missing_fact}: {status.text}" if status.text else missing_fact
    return Reason(kind=kind, text=text, part=part.name, code=status.code or code)
