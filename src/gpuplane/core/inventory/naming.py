"""Which unit gets which name (k8s-device-plugin 0.20, api/config/v1/resources.go, internal/rm/*.go).

Every unit of the machine gets one `Decision`: a name, or the reason why it has none. There is no third outcome. Where
NVIDIA's plugin gives up the node because one GPU is odd, the odd one is left and the others are served.

- Patterns of the configuration come first, the first that matches. What they do not match goes by the strategy.
- Whole GPUs are nvidia.com/gpu. A GPU in MIG mode is no whole GPU.
- `mixed` names a MIG device by its profile. A compute instance that is a part of its GPU instance ("1c.3g.20gb") has no
  name there; only a pattern can give it one.
- `single` promises that nvidia.com/gpu is one kind of thing. Where there are MIG devices it is they, for who asks for
  `single` wants those: of several profiles the one on most GPUs. Others are left, and so are whole GPUs then. Where
  patterns name devices nvidia.com/gpu, it is what they name, and nothing joins it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache

from gpuplane.core.inventory.units import units
from gpuplane.model.config import Settings
from gpuplane.model.machine import Machine
from gpuplane.model.status import DRIVER
from gpuplane.model.text import Text
from gpuplane.model.value import Value
from gpuplane.model.views import Reason, ReasonKind, Unit

PREFIX = "nvidia.com/"
GPU = f"{PREFIX}gpu"
MIG = f"{PREFIX}mig-"
LONGEST = 63
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")  # RFC 1123, as Kubernetes takes it
PART = re.compile(r"\d+c\.\d+g\.")


class Decision(Value):
    """What becomes of one unit: its name, or the reason why it is left. `by` is the setting that decided."""

    unit: Unit
    name: str = ""
    reason: Text = ""
    kind: ReasonKind = "configured"  # of the reason
    by: str = ""  # a field of Settings, with the entry's number where it is a list: "mig_strategy", "gpus.0"
    replicas: int = 1
    shared_by: str = ""  # likewise, "sharing.0" or "memory.0"
    grain_mib: int = 0  # memory that each share stands for; 0: shares are not of memory
    distinct: bool = False
    mps: bool = False

    @property
    def shared(self) -> bool:
        """Whether its ids are shares of it. A GPU's memory may make no more than one."""
        return self.replicas > 1 or self.grain_mib > 0


def qualified(name: str) -> str:
    """A resource name with its prefix. Raises ValueError: what is wrong with it."""
    rest = name.removeprefix(PREFIX)
    full = PREFIX + rest
    if not SUBDOMAIN.fullmatch(rest):
        tame = PREFIX + re.sub(r"[^a-z0-9.]+", "-", rest.rpartition("/")[2].lower()).strip("-.")
        perhaps = f"; did you mean {tame!r}?" if SUBDOMAIN.fullmatch(tame.removeprefix(PREFIX)) else ""
        raise ValueError(
            f"{full!r} is no resource name: after {PREFIX} it has small letters, digits, - and ., "
            f"and begins and ends with a letter or digit{perhaps}"
        )
    if len(full) > LONGEST:
        raise ValueError(f"{full!r} is longer than {LONGEST} characters")
    return full


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches: `*` stands for any run of characters, all else for itself."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def name_units(machine: Machine, settings: Settings) -> list[Decision]:
    """One decision for each unit of the machine, in its order, before anything is shared."""
    there = units(machine, mig=settings.mig_strategy != "none", whole=settings.whole_mig_gpus)
    found = [_by_pattern(decision, settings) for decision in _distinct(there)]
    return list(_by_strategy(found, settings))


def _distinct(found: Iterable[tuple[Unit, Reason | None]]) -> Iterator[Decision]:
    """Each unit with what speaks against it from the start. Of two that bear one id, only the first can be named."""
    seen: dict[str, Unit] = {}
    for unit, reason in found:
        if reason is None and unit.id in seen:
            reason = Reason(kind="problem", text=f"device {seen[unit.id].index} has the same UUID", part=DRIVER.name)
        seen.setdefault(unit.id, unit)
        yield Decision(unit=unit) if reason is None else Decision(unit=unit, reason=reason.text, kind=reason.kind)


def _by_pattern(decision: Decision, settings: Settings) -> Decision:
    unit = decision.unit
    if decision.reason:
        return decision
    field, patterns, text = ("mig", settings.mig, unit.profile) if unit.profile else ("gpus", settings.gpus, unit.model)
    for i, naming in enumerate(patterns):
        if matches(naming.pattern, text):
            return decision.but(name=naming.name, by=f"{field}.{i}")
    return decision


def _by_strategy(decisions: Sequence[Decision], settings: Settings) -> Iterator[Decision]:
    open_ones = [decision.unit for decision in decisions if not decision.name and not decision.reason]
    kinds = {decision.unit.profile for decision in decisions if decision.name == GPU} or {_prevailing(open_ones)}
    for decision in decisions:
        if decision.name or decision.reason:
            yield decision
        else:
            name, reason = _default(decision.unit, settings, kinds)
            yield decision.but(name=name, reason=reason, by="mig_strategy")


def _default(unit: Unit, settings: Settings, kinds: Set[str]) -> tuple[str, str]:
    """(name, "") or ("", reason) of a unit that no pattern names. `kinds`: what is nvidia.com/gpu under `single`."""
    match settings.mig_strategy:
        case "single" if unit.profile not in kinds:
            here, own = " and ".join(each or "a whole GPU" for each in sorted(kinds)), unit.profile or "a whole GPU"
            return "", f"migStrategy single offers one kind of device, here {here}, and this is {own}"
        case "mixed" if unit.profile:
            return _by_profile(unit.profile)
    return GPU, ""


def _by_profile(profile: str) -> tuple[str, str]:
    if PART.match(profile):
        return "", f"{profile} is a part of a GPU instance, which has no name; name it with a pattern in resources.mig"
    try:
        return qualified(MIG + profile.replace("+", ".")), ""
    except ValueError as error:
        return "", f"its profile gives no name: {error}"


def _prevailing(found: Iterable[Unit]) -> str:
    """The profile that is on most GPUs, "" for none. Between equals: the one of more devices, then by name."""
    parts = [unit for unit in found if unit.profile]
    devices = Counter(unit.profile for unit in parts)
    gpus = Counter(profile for profile, _ in {(unit.profile, unit.gpu) for unit in parts})
    return min(devices, key=lambda profile: (-gpus[profile], -devices[profile], profile), default="")
