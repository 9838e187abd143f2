"""What has to be sent to the API server, so that it has the ResourceSlices that it shall have.

- Nothing is sent that changes nothing: quantities are compared by value, and times and generations are the server's.
- A slice that is changed keeps the generation of its pool, for it is all of it. One that is made anew is of a newer
  generation than what the server has of that pool (dynamic-resource-allocation/resourceslice).
- What goes comes first, then what changes, then what is new: in between a pool is incomplete, which is safe.
- An API server drops fields whose feature is off, without a word (pkg/registry/resource/resourceslice/strategy.go).
  What it answers is compared with what was sent, and is not sent again: it would be dropped again.
- A taint that keeps pods away and that the server drops would leave a device that looks well. Such a device is
  withdrawn, unless a claim has it: its slice is published without it.
- Whoever leaves out when a taint was added moves that time, and with it evictions: it is sent back.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gpuplane.base.value import Value
from gpuplane.kubernetes.quantities import is_same_quantity
from gpuplane.node.model.resourceslices import KeptSlice, ResourceSlice, ServerAbilities

API_VERSION = "resource.k8s.io/v1"

Json = Mapping[str, Any]

GATE_BY_FIELD: Mapping[str, str] = {
    "taints": "DRADeviceTaints",
    "consumesCounters": "DRAPartitionableDevices",
    "sharedCounters": "DRAPartitionableDevices",
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
    "bindingConditions": "DRADeviceBindingConditions",
    "bindingFailureConditions": "DRADeviceBindingConditions",
    "bindsToNode": "DRADeviceBindingConditions",
}
"""A field that an API server may drop → the feature gate that has it keep the field."""

DECIDED_BY_SERVER = ("generation", "timeAdded")
"""Fields whose values are not ours to want."""


class Changes(Value):
    """What is to be sent: first the deletions, then the changes, then what is new. `specs`: name → JSON."""

    obsolete: tuple[KeptSlice, ...] = ()
    changed: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    specs: Mapping[str, Json] = {}

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.obsolete or self.changed or self.new)


class Answer(Value):
    """What an API server made of a slice: what was sent, and what it kept."""

    sent: Json
    kept: Json


def publishable(wanted: Iterable[ResourceSlice], server: ServerAbilities) -> tuple[ResourceSlice, ...]:
    """The slices as this API server may have them."""
    return tuple(_publishable(each, server) for each in wanted)


def _publishable(wanted: ResourceSlice, server: ServerAbilities) -> ResourceSlice:
    devices = wanted.devices
    if server.keeps_taints is False:
        withdrawn = withdrawn_devices((wanted,))
        devices = tuple(each for each in devices if each.name not in withdrawn)
    if not server.takes_soft_taints:
        devices = tuple(
            each.but(taints=tuple(taint for taint in each.taints if taint.keeps_pods_away)) for each in devices
        )
    return wanted if devices == wanted.devices else wanted.but(devices=devices)


def withdrawn_devices(wanted: Iterable[ResourceSlice]) -> tuple[str, ...]:
    """Names of the devices that are not published by an API server that drops taints."""
    return tuple(
        device.name
        for each in wanted
        for device in each.devices
        if device.name not in each.allocated and any(taint.keeps_pods_away for taint in device.taints)
    )


def changes(
    wanted: Iterable[ResourceSlice], kept: Mapping[str, KeptSlice], answers: Mapping[str, Answer], owner: str
) -> Changes:
    """What is to be sent. `answers`: name → the last answer; `owner`: the UID of our Node."""
    specs: dict[str, Json] = {}
    changed, new = [], []
    names = {each.name for each in wanted}
    for each in wanted:
        found = kept.get(each.name)
        spec = slice_spec(each, found, _generation(each, kept.values()))
        if found is None:
            new.append(each.name)
        elif found.owner != owner or not _is_as_sent(spec, found.spec, answers.get(each.name)):
            changed.append(each.name)
        else:
            continue
        specs[each.name] = spec
    obsolete = tuple(each for name, each in sorted(kept.items()) if name not in names)
    return Changes(obsolete=obsolete, changed=tuple(changed), new=tuple(new), specs=specs)


def _generation(wanted: ResourceSlice, kept: Iterable[KeptSlice]) -> int:
    """That of the slice; a newer one than that of any other of its pool where it is new."""
    of_pool = [each for each in kept if _pool(each.spec).get("name") == wanted.pool]
    found = [generation for each in of_pool if isinstance(generation := _pool(each.spec).get("generation", 0), int)]
    own = [each for each in of_pool if each.name == wanted.name]
    return max(1, found[0]) if own and len(of_pool) == 1 and found else max(found, default=0) + 1


def _pool(spec: Json) -> Json:
    pool = spec.get("pool")
    return pool if isinstance(pool, dict) else {}


def slice_spec(wanted: ResourceSlice, kept: KeptSlice | None, generation: int) -> Json:
    """The spec of a slice, with the times at which its taints were added as far as the server knows them."""
    devices = [msgspec.to_builtins(each) for each in wanted.devices]
    times = _taint_times(kept.spec if kept is not None else {})
    for device in devices:
        if "taints" in device:
            device["taints"] = list(device["taints"])
        for taint in device.get("taints", ()):
            if time := times.get((device["name"], taint["key"], taint.get("value", ""), taint["effect"])):
                taint["timeAdded"] = time
    pool = {"name": wanted.pool, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": wanted.driver, "nodeName": wanted.node, "pool": pool}
    return {**spec, "devices": devices} if devices else spec


def manifest(wanted: ResourceSlice, spec: Json | None = None, owner: str = "") -> Json:
    """A slice as an object. `owner`: the UID of its Node; "" where that is not known."""
    metadata: dict[str, Any] = {"name": wanted.name}
    if owner:
        node = {"apiVersion": "v1", "kind": "Node", "name": wanted.node, "uid": owner, "controller": True}
        metadata["ownerReferences"] = [node]
    spec = slice_spec(wanted, None, 1) if spec is None else spec
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _taint_times(spec: Json) -> Mapping[tuple[str, str, str, str], str]:
    """(device, key, value, effect) → when that taint was added."""
    return {
        (device["name"], taint["key"], taint.get("value", ""), taint["effect"]): taint["timeAdded"]
        for device in spec.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }


def _is_as_sent(spec: Json, kept: Json, answer: Answer | None) -> bool:
    """Whether the server has a slice as we want it, or as it left it when we sent just this."""
    if not differing_fields(spec, kept):
        return True
    return answer is not None and not differing_fields(spec, answer.sent) and not differing_fields(kept, answer.kept)


def differing_fields(sent: Any, kept: Any) -> tuple[str, ...]:
    """The fields in which two specs differ: "devices[gpu-0].taints"."""
    return tuple(_differing(sent, kept, ""))


def dropped_gates(fields: Iterable[str]) -> tuple[str, ...]:
    """The feature gates that have an API server keep these fields."""
    return tuple(dict.fromkeys(gate for each in fields for part, gate in GATE_BY_FIELD.items() if f".{part}" in each))


def _differing(sent: Any, kept: Any, where: str) -> Iterator[str]:
    if sent == kept:
        return
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key in dict.fromkeys((*sent, *kept)):
            if key not in DECIDED_BY_SERVER:
                yield from _differing(sent.get(key), kept.get(key), f"{where}.{key}" if where else key)
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for n, (one, other) in enumerate(zip(sent, kept, strict=True)):
            yield from _differing(one, other, f"{where}[{_item_name(one, n)}]")
    elif not (where.endswith(".value") and ".capacity." in where and is_same_quantity(sent, kept)):
        yield where


def _item_name(item: Any, position: int) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return str(name if name else position)
