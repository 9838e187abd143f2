"""What the command line says to a running agent, and hears from it."""

from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Offer

LONGEST_RELEASE = 7 * 86400.0
LONGEST_DRAIN = 3650 * 86400.0
"""Seconds that a wish may hold at most."""


class Show(Value, tag=True, forbid_unknown_fields=False):
    """Show the picture of the node. Whatever a command of another version adds to this costs nobody anything."""


class LetGo(Value, tag=True):
    """Let go of the driver for so many seconds. `at`: when the wish was made (CLOCK_BOOTTIME)."""

    at: float
    seconds: float
    why: str


class TakeUp(Value, tag=True):
    """Take the driver up again before the time."""

    at: float


class DrainDevice(Value, tag=True):
    """Give a device out to nobody. `device`: a UUID, an index ("0", "0:1") or a PCI address.

    `seconds` None: until it is restored.
    """

    at: float
    device: str
    seconds: float | None
    why: str


class RestoreDevice(Value, tag=True):
    """End the drain of a device, and take it for mended: what waits for a reset or for a person waits no longer."""

    at: float
    device: str


Ask = Show | LetGo | TakeUp | DrainDevice | RestoreDevice


class Picture(Value):
    """The snapshot, and what it makes the node advertise, at `now` (CLOCK_BOOTTIME)."""

    snapshot: Snapshot
    offer: Offer
    now: float


class About(Value):
    """Which agent it is that answers. `began`: when it was started (CLOCK_BOOTTIME); `node`: "" without a cluster."""

    version: str = ""
    node: str = ""
    began: float | None = None


class Answer(Value):
    """To `Show` a picture; to a wish nothing, once it is on disk; otherwise an error for the person who asked."""

    picture: Picture | None = None
    error: str = ""
    agent: About = About()
