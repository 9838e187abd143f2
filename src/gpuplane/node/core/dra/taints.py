"""Taints of devices: what health, people and containers have against giving one to a claim.

The verdicts are those by which the device plugin's list is made (`advertising.unavailable_units`). A device that is
only suspect has none. Keys are NVIDIA's where that driver has one for the cause (dra-driver-nvidia-gpu 0.5,
cmd/gpu-kubelet-plugin/device_health.go), else ours; the value is the reason's code. Effects of faults and drains are
configured: `NoExecute` ends pods, so nothing has it that the operator did not want so.

An API server takes 16 taints of a device. Where there are more, the mildest are left out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from gpuplane.node.core.advertising import unavailable_units
from gpuplane.node.core.dra.claimspecs import omission_reasons
from gpuplane.node.core.faults.overrides import xid_number
from gpuplane.node.core.health.reasons import direct_health_reasons
from gpuplane.node.core.partitions.plans import withdrawn_units
from gpuplane.node.core.view import view, without_allocations
from gpuplane.node.core.withholding import held_gpus
from gpuplane.node.model.config import DraSettings, TaintEffect
from gpuplane.node.model.health import NODE_RECORD_KEY
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
    """UUID of a device → what there is against it; without those that nothing is against."""
    lasting = _lasting_reasons(without_allocations(snapshot))
    passing = held_gpus(snapshot), withdrawn_units(snapshot)
    found = dict(lasting)
    for each in passing:
        for uuid, why in each.items():
            found[uuid] = (*found.get(uuid, ()), why)
    return found


@view
def _lasting_reasons(snapshot: Snapshot) -> Mapping[str, tuple[Reason, ...]]:
    """The same of GPUs, apart from what containers hold and what is being changed."""
    unavailable, omitted = unavailable_units(snapshot), omission_reasons(snapshot)
    of_node = _degrading_reasons(snapshot, NODE_RECORD_KEY)
    found = {}
    for gpu in snapshot.gpus:
        if not gpu.uuid:
            continue  # it is in no slice
        reasons = [*unavailable.get(gpu.uuid, ()), *of_node, *_degrading_reasons(snapshot, gpu.uuid)]
        if gpu.mig_enabled:
            reasons.append(Reason(kind="problem", text="the GPU is in MIG mode", code="mig-mode"))
        if text := omitted.get(gpu.uuid):
            reasons.append(Reason(kind="problem", text=text, code="cdi-no-device"))
        if sum(other.uuid == gpu.uuid for other in snapshot.gpus) > 1:
            reasons.append(Reason(kind="problem", text="another GPU has the same UUID", code="duplicate-uuid"))
        if reasons:
            found[gpu.uuid] = tuple(reasons)
    return found


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
    if reason.kind in ("problem", "degraded"):
        if (number := xid_number(reason.code)) is not None:
            return DeviceTaint(key=f"{dra.driver}/xid", value=f"{number}", effect=effect)
        if reason.code == "gpu-lost":
            return DeviceTaint(key=f"{dra.driver}/gpu-lost", effect=effect)
    value = reason.code if LABEL_VALUE.fullmatch(reason.code) else ""
    return DeviceTaint(key=KEY_BY_KIND[reason.kind], value=value, effect=effect)


def _without_repeated(taints: Iterable[DeviceTaint]) -> Iterator[DeviceTaint]:
    """Without a milder one of the same key and value."""
    seen = set[tuple[str, str]]()
    for each in taints:
        if (each.key, each.value) not in seen:
            seen.add((each.key, each.value))
            yield each
