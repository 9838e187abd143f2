"""Where NVIDIA's driver is on this node, and how long it is waited for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DriverLocation:
    """`library` is libnvidia-ml's file; without it, it is searched for below `driver_root`, in `library_folders` first,
    and `root_chosen` says what decided that, where nothing is there. `root` has /sys, /proc and /dev in it; where the
    driver's nodes are in the /dev of `dev_root`, those are taken. `host_pids`: whether the numbers of processes are
    those of the host here."""

    library: Path | None = None
    driver_root: Path = Path("/")
    library_folders: tuple[str, ...] = ()
    root_chosen: str = ""
    root: Path = Path("/")
    dev_root: Path | None = None
    host_pids: bool = True


@dataclass(frozen=True)
class Timing:
    """All in seconds. An observation is made every `poll`, and a call that takes longer than `deadline` hangs. A GPU
    that hung, or made the process crash, is skipped for the first of `retry`, doubling up to the second; so is `rest`
    before a start that follows an end that was not wanted, until a process has done well for `well`. nvidia-smi, which
    may have to wake each GPU, is given `smi_deadline`."""

    poll: float = 1.0
    deadline: float = 10.0
    retry: tuple[float, float] = (60.0, 3600.0)
    rest: tuple[float, float] = (0.5, 30.0)
    well: float = 60.0
    smi_deadline: float = 30.0


USUAL_TIMING = Timing()
