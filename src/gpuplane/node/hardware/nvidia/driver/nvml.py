"""NVML's functions: the only place that calls them."""

from collections.abc import Callable, Collection
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.nvidia.driver.callpage import CallPage
from gpuplane.node.hardware.nvidia.driver.errors import UNSUPPORTED_ERRORS, CallFailed, gpu_fault
from gpuplane.node.model.machine import Fault, Gpu


class Nvml:
    """nvidia-ml-py, with each call announced before it is made."""

    def __init__(self, page: CallPage) -> None:
        self._page = page
        self.calls = 0
        """How many there were so far."""

    def call(self, function: str, *arguments: Any, gpu: int | None = None) -> Any:
        """What nvidia-ml-py's function returns. `gpu` is the index of the GPU that it is about. Raises CallFailed."""
        made = getattr(pynvml, function)
        self.calls += 1
        self._page.begin(function, gpu)
        try:
            return made(*arguments)
        except pynvml.NVMLError as error:
            raise CallFailed(function, error.value) from None
        finally:
            self._page.end()


class Subject:
    """A GPU, or a MIG device of it, while it is asked about: what is known of it so far.

    What fails becomes one of its `faults`. `handle` is NVML's; None where there is none to ask with.
    """

    def __init__(self, nvml: Nvml, gpu: Gpu, handle: Any = None) -> None:
        self._nvml, self.gpu, self.handle = nvml, gpu, handle
        self.faults: list[Fault] = []

    def ask(self, default: Any, function: str, *arguments: Any, fine: Collection[str] = ()) -> Any:
        """The answer; `default` where there is none. Errors named in `fine` are answers too."""
        try:
            return self._nvml.call(function, *arguments, gpu=self.gpu.index)
        except CallFailed as failed:
            if failed.error not in UNSUPPORTED_ERRORS and failed.error not in fine:
                self.faults.append(gpu_fault(function, failed.error))
            return default

    def part(self, handle: Any) -> "Subject":
        """A MIG device of this GPU: asked about on its own; a hang is one of the same GPU."""
        return Subject(self._nvml, self.gpu, handle)

    def whole(self, default: Any, stage: Callable[["Subject"], Any]) -> Any:
        """What a stage of the look finds; `default` where one of its queries fails. Half would pass for all."""
        before = len(self.faults)
        found = stage(self)
        return found if len(self.faults) == before else default

    def contain(self, stage: Callable[["Subject"], None]) -> None:
        """Do one stage of the look. Whatever it raises is this GPU's fault alone."""
        try:
            stage(self)
        except Exception as error:
            message = f"the agent cannot read the driver's answer about this GPU: {type(error).__name__}: {error}"
            self.faults.append(Fault(code="query-failed", message=message))
