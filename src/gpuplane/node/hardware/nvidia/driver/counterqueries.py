"""A GPU while its counters are read: what fails is missing, by NVML's name of the error, and is no fault of the GPU.

What a GPU does not support, or does not tell us, is not asked for again for a while. Only an error that means that the
whole GPU does not answer (`Lost`) ends its reading.
"""

import math
from typing import Any, NoReturn

from gpuplane.node.hardware.nvidia.driver.counters import PERCENT, RATIOS
from gpuplane.node.hardware.nvidia.driver.errors import OF_GPU, UNSUPPORTED, Failed
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml

UNKNOWN_STATE = 32  # NVML_PSTATE_UNKNOWN

LASTING = UNSUPPORTED | {"NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"}
"""Errors that stay for as long as the driver and its configuration do."""
AGAIN = 600.0
"""Seconds after which what is missing for such a reason is asked for again."""
NONSENSE = "NO_DATA"
"""What stands in place of a value that cannot be one."""


class Lost(Exception):
    """The whole GPU does not answer, by this error."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class Missing(Exception):
    """There is no answer, by this error."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class Asker:
    """Calls about one GPU, and which of them are not worth while for now."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml, self.index = nvml, index
        self._useless: dict[object, tuple[str, float]] = {}  # what was asked → (error, until when)

    def give_up(self, now: float, key: object, error: str) -> NoReturn:
        """Not to ask this again for a while. Raises Missing."""
        self._useless[key] = (error, now + AGAIN)
        raise Missing(error)

    def ask(self, now: float, key: object, function: str, *arguments: Any) -> Any:
        """The answer. `key`: what is remembered as useless where an error lasts. Raises Missing, Lost."""
        if (known := self._useless.get(key)) is not None:
            if now < known[1]:
                raise Missing(known[0])
            del self._useless[key]
        try:
            return self._nvml.call(function, *arguments, gpu=self.index)
        except Failed as failed:
            if failed.error in OF_GPU:
                raise Lost(failed.error) from None
            if failed.error in LASTING:
                self.give_up(now, key, failed.error)
            raise Missing(failed.error) from None
        except Exception:  # an answer that nvidia-ml-py cannot read
            raise Missing(NONSENSE) from None


def sane(name: str, value: float) -> float | None:
    """A value as it can be; None for one that cannot."""
    if not math.isfinite(value) or value < 0 or (name == "DCGM_FI_DEV_PSTATE" and value >= UNKNOWN_STATE):
        return None
    if name in PERCENT:
        return value if value <= 100 else None
    if name in RATIOS:  # two samples are not taken in one moment: a little more than all is all
        return min(value, 1.0) if value < 1.1 else None
    return value
