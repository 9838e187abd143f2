"""What a log line is about, as a value: pure rooms say it, and `service/logs.py` writes it."""

from gpuplane.base.value import Value


class LogSubject(Value):
    """What a log line is about, for programs. Empty is what it is not about."""

    devices: tuple[str, ...] = ()  # UUIDs, or indices of what has none
    part: str = ""  # as in `gpuplane inspect`
    code: str = ""  # of a fault
    resources: tuple[str, ...] = ()

    @property
    def extra(self) -> dict[str, object]:
        """What a call of `logging` takes as `extra`, for a log that is read by programs to have it as fields."""
        return {"subject": self}
