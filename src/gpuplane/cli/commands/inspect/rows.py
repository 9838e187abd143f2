"""The rows of an inspection, for every form in which it is read: ids that stand alike, and causes, are together."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby

from gpuplane.base.text import Text, group_by_key
from gpuplane.base.value import Value
from gpuplane.cli.kit.durations import describe_duration
from gpuplane.kubernetes.podref import ADMITTED_TEXT
from gpuplane.node.core.availability import CLEAR_WHEN_TEXT_BY_KIND, names_failing_part
from gpuplane.node.core.devicenames import describe_devices
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.inspection import Device, Holder, Inspection, Kind, Release

HELD_STATE = "held"
"""The state of an id that a container holds and that is no longer offered."""


class Row(Value):
    """One or more ids of a device that stand alike. `device`: the first id, and where there are more the last."""

    index: str
    device: str
    model: str = ""
    memory: str = ""
    resource: str = ""
    state: str = ""
    held_by: str = ""


class Cause(Value):
    """Why devices do not stand well: said once, of all that it concerns."""

    devices: tuple[Device, ...]
    state: str
    reason: Text
    since: datetime | None = None
    until: datetime | None = None
    clear_when_text: Text = ""
    advice: Text = ""


def rows(whole: Inspection) -> Iterator[Row]:
    """A row for each device, or for each run of its shares that stand alike: there may be thousands of these."""
    for device in whole.devices:
        first = Row(
            index=device.index or "-",
            device=device.uuid,
            model=model(device) or "-",
            memory=format_bytes(device.memory_bytes) or "-",
            resource=device.resource or _unnamed(device, whole),
            state=state(device),
        )
        if len(device.ids) > 1 or any(each.id != device.uuid for each in device.ids):
            yield from _shares(device, first)
        else:
            yield first.but(held_by=", ".join(dict.fromkeys(map(held_by, device.holders or ()))))


def _shares(device: Device, first: Row) -> Iterator[Row]:
    names = holders(device)
    for n, (holder, run) in enumerate(groupby((each.id for each in device.ids), key=lambda id: names.get(id, ""))):
        ids = list(run)
        row = first if n == 0 else first.but(model="", memory="")
        yield row.but(device=_span(ids), held_by=holder)
    for holding, left in held_otherwise(device):
        row = first.but(model="", memory="", resource=holding.resource, state=HELD_STATE)
        yield row.but(device=_span(left), held_by=held_by(holding))


def _span(ids: Sequence[str]) -> str:
    return ids[0] + (f"…{ids[-1].removeprefix(f'{unit_of(ids[0])}::')}" if len(ids) > 1 else "")


def _unnamed(device: Device, whole: Inspection) -> str:
    """What stands in the place of a resource's name."""
    parts = any(each.gpu == device.uuid and each.mig_profile and each.resource for each in whole.devices)
    return "see its MIG devices" if parts and not device.mig_profile else "-"


def state(device: Device) -> str:
    """How a device stands, in a word or two for people."""
    return "not offered" if device.not_offered and device.state in ("healthy", "withheld") else device.state


def holders(device: Device) -> dict[str, str]:
    """Id → who holds it."""
    return {id: held_by(each) for each in device.holders or () if each.resource == device.resource for id in each.ids}


def held_otherwise(device: Device) -> Iterator[tuple[Holder, tuple[str, ...]]]:
    """Who holds ids of a device that are no longer offered, or not under that name; and these ids."""
    offered = {each.id for each in device.ids}
    for each in device.holders or ():
        if left := tuple(id for id in each.ids if each.resource != device.resource or id not in offered):
            yield each, left


def held_by(holder: Holder) -> str:
    """The pod, for people."""
    return f"{holder.namespace}/{holder.pod}" if holder.pod else ADMITTED_TEXT


def model(device: Device) -> str:
    """The profile of a MIG device, the model of a GPU; all of these are NVIDIA's."""
    return device.mig_profile or device.model.removeprefix("NVIDIA ")


def format_bytes(memory: int | None) -> str:
    """An amount of memory in a few characters: drivers tell of 80 GiB 320 MiB less."""
    if memory is None:
        return ""
    return f"{memory / 2**30:.0f} GiB" if memory >= 1 << 30 else f"{memory / 2**20:.0f} MiB"


def causes(whole: Inspection) -> Iterator[Cause]:
    """What is wrong with devices, or keeps them from being given out, each once; the node first."""
    node = whole.node
    if node.state != "healthy":
        yield Cause((), node.state, node.reason, node.since, node.until, node.clear_when_text, node.advice)
    unwell = (each for each in whole.devices if each.state != "healthy")
    alike = group_by_key((key, each) for each in unwell for key in _device_causes(each))
    for (stands, reason, ends, advice), devices in alike:
        since = min((each.since for each in devices if each.since), default=None)
        until = max((each.until for each in devices if each.until), default=None)
        yield Cause(tuple(devices), stands, reason, since, until, ends, advice)


def _device_causes(device: Device) -> Iterator[tuple[str, Text, Text, Text]]:
    """(state, reason, what ends it, what to do) of each thing that is said of a device: where no fault is told beside,
    of each reason why it is withheld, for others may have the same. The advice is about the first part that fails."""
    if device.state != "withheld" or device.code:
        yield state(device), device.reason, device.clear_when_text, device.advice
        return
    advised = next((each for each in device.reasons if names_failing_part(each.kind, each.part)), None)
    for each in device.reasons:
        ends = CLEAR_WHEN_TEXT_BY_KIND.get(each.kind, "")
        yield state(device), each.reason, ends, device.advice if each is advised else ""


def uncounted_beside_waiting(whole: Inspection) -> Iterator[Kind]:
    """The kinds of which no device was counted, though others are offered: where nothing is, the reason is said."""
    return (
        each for each in whole.kinds if not each.counted and not whole.waiting_reason and whole.node.state == "healthy"
    )


def names(cause: Cause) -> str:
    """Whom it concerns, in words: "The node", "GPU 3", "8 GPUs (0 to 7)"; what has no index by its UUID."""
    named = [("" if each.index else each.uuid, each.index) for each in cause.devices]
    return describe_devices(named) if named else "The node"


def offered_twice(whole: Inspection) -> str:
    """The devices that are offered twice, in words; "" for none."""
    named = [(each.uuid, each.index) for each in whole.devices if each.uuid in whole.offered_twice]
    return describe_devices(named) if named else ""


def release_duration(whole: Inspection, release: Release) -> str:
    """For how long the driver is still let go of."""
    if release.until is None:
        return "as long as the Node object requests it"
    return f"for another {describe_duration((release.until - whole.time).total_seconds())}"


def duration_since(whole: Inspection, since: datetime | None) -> str:
    """For how long; "" where nobody knows."""
    return "" if since is None else describe_duration((whole.time - since).total_seconds())


def ending(whole: Inspection, ends: Text, until: datetime | None) -> Text:
    """What ends it, and in how long where time does."""
    return (
        f"{ends}, in {describe_duration((until - whole.time).total_seconds())}" if ends and until is not None else ends
    )
