"""The pauses after failures."""

import random

from gpuplane.base.pauses import Backoff

PAUSE_LIMITS = (0.5, 30.0)
"""Seconds: the first pause after a failure or a stream's end, and the longest."""
STEADY_AFTER = 60.0
"""Seconds after which a stream counts as stable."""
REFUSED_CODES = (401, 403)
REFUSED_PAUSE = 300.0
"""Seconds to pause after a refusal that only a person can resolve."""


class RequestPauses:
    """The pauses of one who asks the API server: each is longer than the one before, and shortened by chance, so that
    the agents of a cluster do not all ask at once."""

    def __init__(self) -> None:
        self._backoff = Backoff(*PAUSE_LIMITS)

    def reset(self) -> None:
        """It succeeded: the next pause is a short one."""
        self._backoff.after(well=True)

    def after_failure(self, code: int) -> float:
        """Seconds to pause after a failure with this HTTP status (0: there was no answer)."""
        seconds = self._backoff.seconds
        self._backoff.after(well=False)
        return jittered(REFUSED_PAUSE if code in REFUSED_CODES else seconds)

    def after_stream(self, lasted: float) -> float:
        """Seconds to pause after a stream, or a try to open one, that lasted so many."""
        if lasted > STEADY_AFTER:
            self.reset()
        return self.after_failure(0)


def jittered(seconds: float) -> float:
    """A pause of this length at the most, and of half of it at the least."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311 (spreads load; no secret)
