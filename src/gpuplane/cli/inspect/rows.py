"""The rows of an inspection, for every form in which it is read: ids that stand alike, and causes, are together."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby

from gpuplane.cli.times import span
from gpuplane.core.resources.sharing import base
from gpuplane.core.text import ranged
from gpuplane.model.inspection import Device, Holder, Id, Inspection, Release
from gpuplane.model.value import Value

ADMITTED = "a pod that is being admitted"


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
    reason: str
    since: datetime | None = None
    until: datetime | None = None
    ends: str = ""
    advice: str = ""


def rows(whole: Inspection) -> Iterator[Row]:
    """A row for each device, or for each run of its shares that stand alike: there may be thousands of these."""
    for device in whole.devices:
        first = Row(
            index=device.index or "-",
            device=device.uuid,
            model=model(device) or "-",
            memory=gib(device.memory_bytes) or "-",
            resource=device.resource or _unnamed(device, whole),
            state=state(device),
        )
        if len(device.ids) > 1 or any(each.id != device.uuid for each in device.ids):
            yield from _shares(device, first)
        else:
            yield first.but(held_by=", ".join(dict.fromkeys(map(held_by, device.holders or ()))))


def _shares(device: Device, first: Row) -> Iterator[Row]:
    names = holders(device)
    for n, ((healthy, holder), run) in enumerate(
        groupby(device.ids, key=lambda each: (each.healthy, names.get(each.id, "")))
    ):
        ids = [each.id for each in run]
        more = f"…{ids[-1].removeprefix(f'{base(ids[0])}::')}" if len(ids) > 1 else ""
        standing = first.state if healthy or first.state in TOLD else "withheld"
        row = first if n == 0 else first.but(model="", memory="")
        yield row.but(device=ids[0] + more, state=standing, held_by=holder)


TOLD = ("unhealthy", "probing", "drained", "withheld")
"""The states of which kubelet is told that they are unhealthy."""


def _unnamed(device: Device, whole: Inspection) -> str:
    """What stands in the place of a resource's name."""
    parts = any(each.gpu == device.uuid and each.mig_profile and each.resource for each in whole.devices)
    return "by its MIG devices" if parts and not device.mig_profile else "-"


def state(device: Device) -> str:
    """How a device stands, in a word or two for people."""
    return "not offered" if device.not_offered and device.state in ("healthy", "withheld") else device.state


def holders(device: Device) -> dict[str, str]:
    """Id → who holds it."""
    return {id: held_by(each) for each in device.holders or () if each.resource == device.resource for id in each.ids}


def held_by(holder: Holder) -> str:
    """The pod, for people."""
    return f"{holder.namespace}/{holder.pod}" if holder.pod else ADMITTED


def model(device: Device) -> str:
    """The profile of a MIG device, the model of a GPU; all of these are NVIDIA's."""
    return device.mig_profile or device.model.removeprefix("NVIDIA ")


def gib(memory: int | None) -> str:
    """An amount of memory in a few characters: drivers tell of 80 GiB 320 MiB less."""
    if memory is None:
        return ""
    return f"{memory / 2**30:.0f} GiB" if memory >= 1 << 30 else f"{memory / 2**20:.0f} MiB"


def causes(whole: Inspection) -> Iterator[Cause]:
    """What is wrong with devices, or keeps them from being given out, each once; the node first."""
    node = whole.node
    if node.state != "healthy":
        yield Cause((), node.state, node.reason, node.since, node.until, node.ends, node.advice)
    found: dict[Cause, list[Device]] = {}
    for device in whole.devices:
        for cause in _of(device):
            found.setdefault(cause, []).append(device)
    for cause, devices in found.items():
        yield cause.but(devices=tuple(devices))


def _of(device: Device) -> Iterator[Cause]:
    if device.state == "withheld" and device.reason == device.not_offered:
        yield Cause((), "not offered", device.not_offered)
    elif device.state != "healthy":
        yield Cause((), device.state, device.reason, device.since, device.until, device.ends, device.advice)
    else:
        yield from (Cause((), "withheld", why) for why in _partly(device.ids))
    if device.not_offered and device.not_offered != device.reason:
        yield Cause((), "not offered", device.not_offered)


def _partly(ids: Iterable[Id]) -> Iterable[str]:
    """Why some shares of a device are not given out that is well."""
    return dict.fromkeys(each.reason for each in ids if not each.healthy)


def called(devices: tuple[Device, ...]) -> str:
    """Devices in words: "GPU 3", "GPUs 0 to 7", "MIG devices 0:0 to 0:6"; those without an index by their UUID."""
    if not devices:
        return "The node"
    groups = (
        ("GPU", [each.index for each in devices if each.index and ":" not in each.index]),
        ("MIG device", [each.index for each in devices if ":" in each.index]),
    )
    named = [f"{kind}{'s' * (len(indices) > 1)} {ranged(indices)}" for kind, indices in groups if indices]
    return ", ".join([*named, *(each.uuid for each in devices if not each.index)])


def until(whole: Inspection, release: Release) -> str:
    """For how long the driver is still let go of."""
    if release.until is None:
        return "as long as the Node object asks for it"
    return f"for another {span((release.until - whole.time).total_seconds())}"


def lasting(whole: Inspection, since: datetime | None) -> str:
    """For how long; "" where nobody knows."""
    return "" if since is None else span((whole.time - since).total_seconds())


def ending(whole: Inspection, ends: str, until: datetime | None) -> str:
    """What ends it, and in how long where time does."""
    return ends + (f", in {span((until - whole.time).total_seconds())}" if ends and until is not None else "")
