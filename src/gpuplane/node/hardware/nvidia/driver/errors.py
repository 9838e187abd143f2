"""NVML's errors, and the faults that they mean. Numbers and names are those of nvml.h."""

from collections.abc import Sequence

from gpuplane.node.model.machine import Fault

NVML_ERRORS = {
    "UNINITIALIZED": (1, "the library is not initialized"),
    "INVALID_ARGUMENT": (2, "invalid argument"),
    "NOT_SUPPORTED": (3, "not supported"),
    "NO_PERMISSION": (4, "no permission"),
    "ALREADY_INITIALIZED": (5, "already initialized"),
    "NOT_FOUND": (6, "not found"),
    "INSUFFICIENT_SIZE": (7, "a buffer is too small"),
    "INSUFFICIENT_POWER": (8, "external power cables are not attached"),
    "DRIVER_NOT_LOADED": (9, "the kernel driver is not loaded"),
    "TIMEOUT": (10, "timeout"),
    "IRQ_ISSUE": (11, "the kernel has an interrupt problem with the GPU"),
    "LIBRARY_NOT_FOUND": (12, "the library could not be found or loaded"),
    "FUNCTION_NOT_FOUND": (13, "this version of the library has no such function"),
    "CORRUPTED_INFOROM": (14, "the GPU's infoROM is corrupted"),
    "GPU_IS_LOST": (15, "the GPU has fallen off the bus or is otherwise inaccessible"),
    "RESET_REQUIRED": (16, "the GPU needs a reset"),
    "OPERATING_SYSTEM": (17, "the operating system blocks the request"),
    "LIB_RM_VERSION_MISMATCH": (18, "the library and the kernel driver are of different versions"),
    "IN_USE": (19, "the GPU is in use"),
    "MEMORY": (20, "insufficient memory"),
    "NO_DATA": (21, "no data"),
    "VGPU_ECC_NOT_SUPPORTED": (22, "not possible while ECC is enabled"),
    "INSUFFICIENT_RESOURCES": (23, "insufficient resources"),
    "FREQ_NOT_SUPPORTED": (24, "the frequency is not supported"),
    "ARGUMENT_VERSION_MISMATCH": (25, "an argument's version is invalid"),
    "DEPRECATED": (26, "the function is deprecated"),
    "NOT_READY": (27, "the system is not ready"),
    "GPU_NOT_FOUND": (28, "no GPU was found"),
    "INVALID_STATE": (29, "the GPU's state does not allow it"),
    "RESET_TYPE_NOT_SUPPORTED": (30, "the kind of reset is not supported"),
    "UNKNOWN": (999, "the driver reports an unknown error"),
}
ERROR_NAMES = {number: name for name, (number, _) in NVML_ERRORS.items()}

UNSUPPORTED_ERRORS = {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"}
"""An answer, not a failure: this GPU, or this version of the library, has no such thing."""

NO_ANSWER_ERRORS = UNSUPPORTED_ERRORS | {
    "INVALID_ARGUMENT",
    "NO_PERMISSION",
    "NO_DATA",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NOT_READY",
    "INVALID_STATE",
}
"""No failure either where it is asked how a GPU does: it need not tell, and not everybody."""

GPU_FAULT_CODES = {"GPU_IS_LOST": "gpu-lost", "RESET_REQUIRED": "reset-required"}
DRIVER_FAULT_CODES = {
    "LIBRARY_NOT_FOUND": "driver-missing",
    "DRIVER_NOT_LOADED": "driver-not-loaded",
    "LIB_RM_VERSION_MISMATCH": "driver-mismatch",
    "NO_PERMISSION": "driver-denied",
    "OPERATING_SYSTEM": "driver-denied",
}

NOT_SAMPLED_REASONS = {
    "gpu-lost": "GPU_IS_LOST",
    "reset-required": "RESET_REQUIRED",
    "gpu-hang": "TIMEOUT",
    "gpu-crash": "UNKNOWN",
    "gpu-missing": "NOT_FOUND",
}
"""Faults because of which a GPU is not asked for its counters → the reason that stands there instead."""

UNKNOWN_PROFILE_FAULT = Fault(code="query-failed", message="the driver does not report the profile of this MIG device")


class CallFailed(Exception):
    """A call that NVML answered with an error, by its name."""

    def __init__(self, function: str, number: int) -> None:
        self.function, self.error = function, ERROR_NAMES.get(number, str(number))
        super().__init__(describe_error(function, self.error))


def describe_error(function: str, error: str) -> str:
    """What went wrong, for an operator."""
    return f"{function}: {NVML_ERRORS[error][1] if error in NVML_ERRORS else f'NVML error {error}'}"


def gpu_fault(function: str, error: str) -> Fault:
    """What a failed call about a GPU says about it."""
    return Fault(code=GPU_FAULT_CODES.get(error, "query-failed"), message=describe_error(function, error))


def driver_fault(function: str, error: str) -> Fault:
    """What a failed call without which there is no look says about the driver."""
    return Fault(code=DRIVER_FAULT_CODES.get(error, "driver-failed"), message=describe_error(function, error))


def gpu_hang_fault(function: str) -> Fault:
    """A call about a GPU that does not return."""
    return Fault(code="gpu-hang", message=f"the driver's library hangs in {function}")


def gpu_crash_fault(function: str) -> Fault:
    """A call about a GPU that ends the process that makes it."""
    return Fault(code="gpu-crash", message=f"the driver's library crashes in {function}")


def driver_hang_fault(function: str) -> Fault:
    """A call about no GPU that does not return."""
    return Fault(
        code="driver-hang", message=f"the driver does not answer: the agent's driver process hangs in {function}"
    )


def process_stopped_fault(function: str) -> Fault:
    """A process that was stopped from outside, and did nothing any more. It says nothing about a GPU."""
    message = f"a signal or a debugger stopped the agent's driver process in {function}; the agent starts a new process"
    return Fault(code="driver-crash", message=message)


def driver_crash_fault(function: str) -> Fault:
    """A call about no GPU that ends the process that makes it."""
    return Fault(code="driver-crash", message=f"the driver's library crashes in {function}")


def distinct_faults(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """The faults that say something new: a GPU that is lost is lost for every call."""
    said: dict[Fault | str, Fault] = {}
    for fault in faults:
        said.setdefault(fault if fault.code == "query-failed" else fault.code, fault)
    return tuple(said.values())
