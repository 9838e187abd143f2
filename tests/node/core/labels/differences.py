"""Where our labels are not those of NVIDIA's GPU Feature Discovery: the one list. docs/labels.md has the reasons."""

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")

DIFFERENCES = {
    "timestamp": "no time is written",
    "by-model": "each model has labels of its own",
    "vgpu": "without the right to read all of the PCI configuration nothing is said of vGPUs",
    "several-models": "gpu.* are always of the same model",
    "unlike-gpus": "of GPUs of one model that differ, the least is said",
    "legal": "values are legal",
    "not-told": "what the driver does not tell is left out, and nothing else",
    "failing-gpus": "a GPU that fails counts, and decides nothing that it does not tell",
    "silent-driver": "labels stay while the driver cannot be used",
    "mps-and-mig": "GPUs in MIG mode and MPS have labels",
    "chosen-devices": "entries that take some devices, and names of them, are followed",
    "memory-shares": "shares of memory are replicas",
    "machine-type-file": "the name of the server comes from its firmware alone",
    "platforms": "Tegra and GPUs of vfio have no labels",
}


def shows(code: str) -> Callable[[T], T]:
    """Mark a test that shows this difference."""
    assert code in DIFFERENCES, code

    def mark(test: T) -> T:
        test.__dict__.setdefault("differences", []).append(code)
        return test

    return mark


def shown_by(module: ModuleType) -> set[str]:
    """The differences that tests of a module show."""
    return {code for test in vars(module).values() for code in getattr(test, "differences", ())}
