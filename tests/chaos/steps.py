"""The steps of chaos: what can be done to a node, and how that is told."""

from gpuplane.base.value import Value
from gpuplane.node.model.machine import MachineFile


class Edit(Value, tag=True):
    """The machine file is replaced by this; None: by what is no machine."""

    kinds: tuple[str, ...]
    what: str
    file: MachineFile | None


class Death(Value, tag=True):
    """The agent is killed, `after` seconds after an edit, and started after others that it cannot see happen."""

    before: Edit | None
    after: float
    during: tuple[Edit, ...]


class Drain(Value, tag=True):
    """A person drains a device, for so many seconds or until it is restored."""

    device: str
    seconds: float | None


class Restore(Value, tag=True):
    """A person restores a device."""

    device: str


class End(Value, tag=True):
    """A pod ends: the one at this place of those that run, from 0 to 1."""

    place: float


class Nothing(Value, tag=True):
    """Nothing but what comes beside it."""


class Run(Value, tag=True):
    """A pod comes and asks for so many of the resource at this place of those that there are, from 0 to 1."""

    count: int
    place: float


class KubeletRestart(Value, tag=True):
    """Kubelet stops and starts."""


class LostStreams(Value, tag=True):
    """Kubelet loses its streams."""


Step = Edit | Death | Drain | Restore | End | Nothing
Aside = Run | KubeletRestart | LostStreams


class Turn(Value):
    """A step, what happens at the same moment beside it, and the seconds before the next turn."""

    step: Step
    asides: tuple[Aside, ...] = ()
    pause: float = 0.0


Burst = tuple[Turn, ...]


def told(turn: Turn) -> str:
    """A turn for people."""
    return "; at the same time: ".join(filter(None, (_step_told(turn.step), ", ".join(map(_aside_told, turn.asides)))))


def _step_told(step: Step) -> str:
    match step:
        case Edit(_, what, _):
            return what
        case Death(before, after, during):
            first = f"{before.what}, and {after:.2f} s later " if before else ""
            then = f"; meanwhile {'; '.join(edit.what for edit in during)}" if during else ""
            return f"{first}the agent is killed and started{then}"
        case Drain(device, seconds):
            return f"{device} is drained" + (f" for {seconds:.1f} s" if seconds else "")
        case Restore(device):
            return f"{device} is restored"
        case End():
            return "a pod ends"
        case Nothing():
            return "nothing"


def _aside_told(aside: Aside) -> str:
    match aside:
        case Run(count, _):
            return f"a pod asks for {count}"
        case KubeletRestart():
            return "kubelet restarts"
        case LostStreams():
            return "kubelet loses its streams"
