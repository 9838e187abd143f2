"""The share layout of a unit: what one share of it is.

State files, kubelet's holdings and the control socket have a layout as a short text, see `ShareLayout.encoded`. Only
this module reads and writes that text.
"""

from functools import lru_cache
from typing import Literal, NewType

from gpuplane.base.value import Value

EncodedLayout = NewType("EncodedLayout", str)
"""A share layout as it is stored: "time slices", "8 by MPS", "1024 MiB", "1024 MiB by MPS", "unknown"; "" for none."""

_ENCODED_TIME_SLICES, _ENCODED_UNKNOWN, _ENCODED_MIB, _ENCODED_BY_MPS = "time slices", "unknown", " MiB", " by MPS"

_MAX_DIGITS = 12
"""Of a stored number. A longer one is not ours."""


class ShareLayout(Value):
    """What one share of a unit is: an amount of memory, one of several MPS clients, or a time slice.

    Two layouts of one kind are the same layout where `share_mib` or `clients` agree. The number of time slices is no
    part of the layout: a time slice is no part of the GPU.
    """

    kind: Literal["memory", "clients", "time-slices", "unknown"]
    share_mib: int = 0  # of memory
    client_count: int = 0  # among how many MPS clients the unit is divided
    uses_mps: bool = False  # whether the holder of a share is a client of an MPS daemon

    @property
    def encoded(self) -> EncodedLayout:
        """The layout as it is stored."""
        match self.kind:
            case "memory":
                return EncodedLayout(f"{self.share_mib}{_ENCODED_MIB}{_ENCODED_BY_MPS * self.uses_mps}")
            case "clients":
                return EncodedLayout(f"{self.client_count}{_ENCODED_BY_MPS}")
            case "time-slices":
                return EncodedLayout(_ENCODED_TIME_SLICES)
            case "unknown":
                return EncodedLayout(_ENCODED_UNKNOWN)


TIME_SLICES = ShareLayout(kind="time-slices")
UNKNOWN = ShareLayout(kind="unknown")
"""The layout of a unit whose shares a container holds, where nobody remembers it."""


def memory_layout(share_mib: int, *, mps: bool) -> ShareLayout:
    """The layout of a unit whose memory is shared."""
    return ShareLayout(kind="memory", share_mib=share_mib, uses_mps=mps)


def mps_client_layout(clients: int) -> ShareLayout:
    """The layout of a unit that so many MPS clients share."""
    return ShareLayout(kind="clients", client_count=clients, uses_mps=True)


@lru_cache(maxsize=1024)
def decode(stored: EncodedLayout) -> ShareLayout:
    """The layout by its stored text. A text that is not understood, as of a newer version, is an unknown layout."""
    text = stored.removesuffix(_ENCODED_BY_MPS)
    mps = text != stored
    number = text.removesuffix(_ENCODED_MIB)
    if stored == _ENCODED_TIME_SLICES:
        return TIME_SLICES
    if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
        return UNKNOWN
    if number != text:
        return memory_layout(int(number), mps=mps)
    return mps_client_layout(int(number)) if mps else UNKNOWN
