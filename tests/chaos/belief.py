"""What the oracle believes: how each part of a node stands, and what kubelet has to be shown for it.

A part (the node, a GPU, a MIG device) is
    ill       something unhealthy is on it
    stuck     nothing is any more, but no probe can find it well: it stays unhealthy
    mending   nothing is any more: it comes back by itself
    doubtful  one of these, or well
    well
and a device is well where the node, its GPU and it itself are, and nobody has drained them.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.value import Value
from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE, UNKNOWN_FAULT, UNLISTED_XID
from gpuplane.node.model.health import CatalogueEntry
from gpuplane.node.model.machine import Gpu, MachineFile

State = Literal["well", "ill", "stuck", "mending", "doubtful"]
Verdict = Literal["Healthy", "Unhealthy", "either"]

NODE = ""
"""The part that is the node itself."""
MOST_FLAPS = 7
"""Relapses that count."""
LONGEST_PAUSE = 60.0
"""Seconds between two probes at the most."""
CLOSE = 1.0
"""Seconds around a drain's end within which it may be over or not."""


def entry(code: str) -> CatalogueEntry:
    """The catalogue's word about a fault."""
    return CATALOGUE.get(code, UNLISTED_XID if code.startswith("xid-") else UNKNOWN_FAULT)


class Cause(Value):
    """Something unhealthy that is on a part: an event, or what a look shows, or has `shown` and a person has to end.

    `sure` False: the agent was killed about then, and may never have heard of it. `pids`, `pods`: whose end ends it.
    """

    code: str
    ends: str
    event: bool = False
    shown: bool = True
    sure: bool = True
    pids: tuple[int, ...] = ()
    pods: tuple[str, ...] = ()


class Part(Value):
    """How one part stands. `since`: when it ceased to be well; `eased`: when it began to mend; CLOCK_MONOTONIC."""

    state: State = "well"
    causes: tuple[Cause, ...] = ()
    pending: bool = False  # a look shows what no part is well again with
    confirmed: bool = False  # it has surely been ill: kubelet was shown it, or nothing had to be waited for
    tried: bool = False  # probes may have failed, and the next one may be far
    falls: int = 0  # times that it fell ill since it was last taken for mended
    shown: frozenset[str] = frozenset()  # all that looks show of it, as far as they can tell
    errors: int = 0  # uncorrectable memory errors, as a look that could tell counted them last
    since: float = 0.0
    eased: float = 0.0
    drained: bool = False
    until: float | None = None  # of the drain


class Belief(Value):
    """What the oracle knows. `file` is the version that a look showed last; `counted` whether that told of the GPUs.

    A GPU that has gone keeps its last description in `gone`. `parts`: UUID, or NODE → how it stands.
    """

    file: MachineFile
    left: frozenset[str]  # MIG devices that are not offered
    period: float  # of recovery probes
    patience: float  # with a fault, at the most
    counted: bool = False
    driver: str = ""  # the fault for which the driver does not answer
    last: int = -1  # the number of the last incident
    gone: Mapping[str, Gpu] = {}
    reset: frozenset[str] = frozenset()  # GPUs that had a reset by the last look: before or after what happened then?
    parts: Mapping[str, Part] = {}
    pods: frozenset[str] = frozenset()
    late: float = 0.0  # until when the agent may believe that a pod runs which has ended

    def part(self, key: str) -> Part:
        """How a part stands."""
        return self.parts.get(key, Part())

    def units(self) -> dict[str, tuple[str, ...]]:
        """What kubelet may give out: id without its share → the parts on which that depends."""
        found: dict[str, tuple[str, ...]] = {}
        for gpu in self.file.gpus or ():
            if gpu.mig_enabled:
                devices = (device.uuid for device in gpu.mig_devices if device.uuid not in self.left)
                found |= {device: (NODE, gpu.uuid, device) for device in devices}
            else:
                found[gpu.uuid] = (NODE, gpu.uuid)
        return found

    def told(self, unit: str) -> str:
        """How its parts stand, for people."""
        parts = {key or "node": self.part(key) for key in self.units().get(unit, ())}
        return ", ".join(
            f"{key} is {part.state}{' and drained' * part.drained}{''.join(f' {each.code}' for each in part.causes)}"
            for key, part in parts.items()
        )

    def verdict(self, unit: str, now: float) -> Verdict:
        """What kubelet has to be shown of it, once all is quiet."""
        if not self.counted:
            return "Unhealthy"
        parts = [self.part(key) for key in self.units()[unit]]
        if any(part.state in ("ill", "stuck") or drain(part, now) == "Unhealthy" for part in parts):
            return "Unhealthy"
        doubtful = any(part.state == "doubtful" or drain(part, now) == "either" for part in parts)
        return "either" if doubtful else "Healthy"

    def touched(self, unit: str) -> bool:
        """Whether anything has to do with it, so that kubelet may be shown it unhealthy at this moment."""
        parts = [self.part(key) for key in self.units().get(unit, ())]
        return not self.counted or not parts or any(part.state != "well" or part.drained for part in parts)

    def surely_ill(self, unit: str, now: float) -> bool:
        """Whether kubelet may not be shown it healthy."""
        parts = [self.part(key) for key in self.units().get(unit, ())]
        standing = any(part.state in ("ill", "stuck") and part.confirmed for part in parts)
        return self.counted and (standing or any(drain(part, now) == "Unhealthy" for part in parts))

    def due(self, unit: str) -> float:
        """By when kubelet has to be shown it as it is: what falls ill after its patience, what is over after two probe
        periods, each twice as long for every relapse, or when the pause after a failed probe is over."""
        return max(self._due(self.part(key)) for key in self.units()[unit])

    def _due(self, part: Part) -> float:
        if part.state in ("ill", "stuck", "doubtful"):
            return self.fallen(part)
        pause = min(LONGEST_PAUSE, part.eased - part.since + self.period) if part.tried else 0.0
        return part.eased + max(self.recovery(part), pause)

    def fallen(self, part: Part) -> float:
        """By when a part on which something unhealthy is has surely fallen ill: the patience with that is over."""
        patience = max((entry(each.code).grace_period for each in part.causes), default=0.0)
        return part.since + min(patience, self.patience)

    def recovery(self, part: Part) -> float:
        """Seconds that a part may take to be found well: two probe periods, twice as long for every relapse."""
        return self.period * (2 << min(part.falls, MOST_FLAPS))


def drain(part: Part, now: float) -> Verdict:
    """What a part has to be shown for its drain alone."""
    if not part.drained:
        return "Healthy"
    if part.until is None or now < part.until - CLOSE:
        return "Unhealthy"
    return "either" if now < part.until + CLOSE else "Healthy"
