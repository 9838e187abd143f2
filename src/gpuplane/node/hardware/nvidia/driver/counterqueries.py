"""A GPU while its counters are read: what fails is missing, by NVML's name of the error, and is no fault of the GPU.

What a GPU does not support, or does not tell us, is not asked for again for a while. Only an error that means that the
whole GPU does not answer (`GpuNotAnswering`) ends its reading.
"""

import math
from typing import Any, NoReturn

from gpuplane.node.hardware.nvidia.driver.counters import PERCENT_FIELDS, RATIO_FIELDS
from gpuplane.node.hardware.nvidia.driver.errors import GPU_FAULT_CODES, UNSUPPORTED_ERRORS, CallFailed
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml

UNKNOWN_PERFORMANCE_STATE = 32  # NVML_PSTATE_UNKNOWN

LASTING_ERRORS = UNSUPPORTED_ERRORS | {"NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"}
"""Errors that stay for as long as the driver and its configuration do."""
LASTING_ERROR_RETRY_INTERVAL = 600.0
"""Seconds after which what is missing for such a reason is asked for again."""
INVALID_VALUE_ERROR = "NO_DATA"
"""What stands in place of a value that cannot be one."""


class GpuNotAnswering(Exception):
    """The whole GPU does not answer, by this error."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class NoAnswer(Exception):
    """There is no answer, by this error."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class CounterQueries:
    """Calls about one GPU, and which of them are not worth while for now."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml, self.index = nvml, index
        self._useless: dict[object, tuple[str, float]] = {}  # what was asked → (error, until when)

    def give_up(self, now: float, key: object, error: str) -> NoReturn:
        """Not to ask this again for a while. Raises NoAnswer."""
        self._useless[key] = (error, now + LASTING_ERROR_RETRY_INTERVAL)
        raise NoAnswer(error)

    def ask(self, now: float, key: object, function: str, *arguments: Any) -> Any:
        """The answer. `key`: what is remembered as useless where an error lasts. Raises NoAnswer, GpuNotAnswering."""
        if (known := self._useless.get(key)) is not None:
            if now < known[1]:
                raise NoAnswer(known[0])
            del self._useless[key]
        try:
            return self._nvml.call(function, *arguments, gpu=self.index)
        except CallFailed as failed:
            if failed.error in GPU_FAULT_CODES:
                raise GpuNotAnswering(failed.error) from None
            if failed.error in LASTING_ERRORS:
                self.give_up(now, key, failed.error)
            raise NoAnswer(failed.error) from None
        except Exception:  # an answer that nvidia-ml-py cannot read
            raise NoAnswer(INVALID_VALUE_ERROR) from None


def valid_value_or_none(name: str, value: float) -> float | None:
    """A value as it can be; None for one that cannot."""
    if not math.isfinite(value) or value < 0 or (name == "DCGM_FI_DEV_PSTATE" and value >= UNKNOWN_PERFORMANCE_STATE):
        return None
    if name in PERCENT_FIELDS:
        return value if value <= 100 else None
    if name in RATIO_FIELDS:  # two samples are not taken in one moment: a little more than all is all
        return min(value, 1.0) if value < 1.1 else None
    return value
