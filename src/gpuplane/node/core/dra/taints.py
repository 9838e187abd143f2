"""Taints of devices: what health, people and containers have against giving one to a claim.

The verdicts are those by which the device plugin's list is made (`advertising.unavailable_units`). A device that is
only suspect has none. A kind may have taints of its own for some faults; the others are ours, and their value is the
reason's code. Effects of faults and drains are
configured: `NoExecute` ends pods, so nothing has it that the operator did not want so.

An API server takes 16 taints of a device. Where there are more, the mildest are left out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from gpuplane.base.text import Text
from gpuplane.node.core.advertising import unavailable_units
from gpuplane.node.core.dra.claimspecs import omission_reasons
from gpuplane.node.core.dra.devices import dra_devices
from gpuplane.node.core.health.reasons import direct_health_reasons
from gpuplane.node.core.kinds.dra import DraDevice
from gpuplane.node.core.kinds.table import KINDS, dra_of
from gpuplane.node.core.partitions.plans import withdrawn_units
from gpuplane.node.core.view import view, without_allocations
from gpuplane.node.core.withholding import held_units
from gpuplane.node.model.config import DraSettings, TaintEffect
from gpuplane.node.model.reasons import Reason, ReasonKind
from gpuplane.node.model.resourceslices import DeviceTaint
from gpuplane.node.model.snapshot import Snapshot

DOMAIN = "gpuplane.io"
UNHEALTHY, DEGRADED, DRAINED, RELEASED, HELD = (
    f"{DOMAIN}/{name}" for name in ("unhealthy", "degraded", "drained", "released", "held")
)

KEY_BY_KIND: Mapping[ReasonKind, str] = {
    "problem": UNHEALTHY,
    "degraded": DEGRADED,
    "drained": DRAINED,
    "released": RELEASED,
    "held": HELD,
    "configured": HELD,
    "waiting": HELD,
}
"""The kind of a reason → the key of its taint. The last two are over by themselves."""

MAX_TAINTS = 16
"""Of one device (resource.k8s.io/v1, DeviceTaintsMaxLength)."""

EFFECTS: tuple[TaintEffect, ...] = ("NoExecute", "NoSchedule", "None")
"""The strongest first."""

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What the value of a taint may be, beside nothing (apimachinery, IsValidLabelValue)."""


@view
def taint_reasons(snapshot: Snapshot) -> Mapping[str, tuple[Reason, ...]]:
    """Unit → what there is against giving it out; without those that nothing is against."""
    lasting = _lasting_reasons(without_allocations(snapshot))
    passing = held_units(snapshot), withdrawn_units(snapshot)
    found = dict(lasting)
    for each in passing:
        for unit, why in each.items():
            found[unit] = (*found.get(unit, ()), why)
    return found


@view
def _lasting_reasons(snapshot: Snapshot) -> Mapping[str, tuple[Reason, ...]]:
    """The same, apart from what containers hold and what is being changed."""
    unavailable, omitted = unavailable_units(snapshot), omission_reasons(snapshot)
    of_kind = {kind.dra: _degrading_reasons(snapshot, kind.record_key) for kind in KINDS.values()}
    found = {}
    for each in dra_devices(snapshot).by_name.values():
        degrading = *of_kind[dra_of(each.unit)], *_degrading_reasons(snapshot, each.unit)
        if why := (*unavailable.get(each.unit, ()), *degrading, *_own_reasons(each, omitted.get(each.unit, ""))):
            found[each.unit] = why
    return found


def _own_reasons(device: DraDevice, omission_reason: Text) -> Iterator[Reason]:
    """What is against a device beside its health."""
    if device.not_claimable is not None:
        yield device.not_claimable
    if omission_reason:
        yield Reason(kind="problem", text=omission_reason, code="cdi-no-device")
    if device.problem is not None:
        yield device.problem


def _degrading_reasons(snapshot: Snapshot, key: str) -> tuple[Reason, ...]:
    return tuple(each for each in direct_health_reasons(snapshot, key) if each.kind == "degraded")


def device_taints(reasons: Iterable[Reason], dra: DraSettings) -> tuple[DeviceTaint, ...]:
    """The taints of a device that has these reasons against it: the strongest first, then by key and value."""
    found = {_taint(each, dra) for each in reasons}
    in_order = sorted(found, key=lambda each: (EFFECTS.index(each.effect), each.key, each.value))
    return tuple(_without_repeated(in_order))[:MAX_TAINTS]


def _taint(reason: Reason, dra: DraSettings) -> DeviceTaint:
    effect: TaintEffect = "NoSchedule"
    if reason.kind in ("problem", "degraded", "drained"):
        effect = {"problem": dra.unhealthy, "degraded": dra.degraded, "drained": dra.drained}[reason.kind]
    if reason.kind in ("problem", "degraded") and (own := _taint_of_kind(reason.code)) is not None:
        name, value = own
        return DeviceTaint(key=f"{dra.driver}/{name}", value=value, effect=effect)
    value = reason.code if LABEL_VALUE.fullmatch(reason.code) else ""
    return DeviceTaint(key=KEY_BY_KIND[reason.kind], value=value, effect=effect)


def _taint_of_kind(code: str) -> tuple[str, str] | None:
    """The name and value that a kind has for a fault. A code means the same for each kind that has it."""
    return next((own for kind in KINDS.values() if (own := kind.dra.fault_taint(code)) is not None), None)


def _without_repeated(taints: Iterable[DeviceTaint]) -> Iterator[DeviceTaint]:
    """Without a milder one of the same key and value."""
    seen = set[tuple[str, str]]()
    for each in taints:
        if (each.key, each.value) not in seen:
            seen.add((each.key, each.value))
            yield each
