"""Described machines of the judge's own, written as machine files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

Fields = dict[str, Any]
GPU = "nvidia.com/gpu"


def uuid(index: int) -> str:
    """Of the GPU with this index."""
    return f"GPU-00000000-0000-4000-8000-{index:012}"


def mig_uuid(index: int, instance: int) -> str:
    """Of the MIG device of this GPU in this GPU instance."""
    return f"MIG-00000000-0000-4000-8000-{index:06}{instance:06}"


def gpu(index: int, **more: Any) -> Fields:
    """A GPU as a machine file has it."""
    return {
        "index": index,
        "uuid": uuid(index),
        "minor": index,
        "model": "NVIDIA A100-SXM4-40GB",
        "memory_mib": 40960,
        "compute_capability": "8.0",
        "pci": f"0000:{index + 16:02x}:00.0",
        "numa": index % 2,
        "device_nodes": [f"/dev/nvidia{index}"],
        **more,
    }


def mig(index: int, *instances: int, profile: str = "1g.5gb", **more: Any) -> Fields:
    """A GPU in MIG mode, with a MIG device in each of these GPU instances."""
    devices = [
        {
            "uuid": mig_uuid(index, instance),
            "profile": profile,
            "gpu_instance": instance,
            "mig_index": slot,
            "memory_mib": 4864,
            "device_nodes": [f"/dev/nvidia-caps/nvidia-cap{3 + 135 * index + 9 * instance + part}" for part in (0, 1)],
        }
        for slot, instance in enumerate(instances)
    ]
    return gpu(index, mig={"enabled": True, "devices": devices}, **more)


def fault(code: str) -> list[Fields]:
    """The faults of a thing that has this one."""
    return [{"code": code, "message": f"the test says {code}"}]


def incident(index: int, code: str, **more: Any) -> Fields:
    """Something that befalls a GPU."""
    return {"gpu": index, "code": code, "message": f"the test says {code}", **more}


class MachineFile:
    """A machine file that is edited while an agent runs on it. Each write replaces it in one piece."""

    def __init__(self, path: Path, gpus: Iterable[Mapping[str, Any]] | int, **more: Any) -> None:
        self.path = path
        self.document: Fields = {
            "driver": {"version": "580.95.05", "cuda": "13.0"},
            "shared_nodes": ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"],
            "major_numbers": {"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps": 236},
            "gpus": [gpu(index) for index in range(gpus)] if isinstance(gpus, int) else list(gpus),
            **more,
        }
        self.write()

    def write(self) -> None:
        """As its document is now."""
        replace(self.path, yaml.safe_dump(self.document, sort_keys=False))

    def set(self, **keys: Any) -> None:
        """Other values of some keys of the machine."""
        self.document |= keys
        self.write()

    def set_gpu(self, index: int, **keys: Any) -> None:
        """Other values of some keys of a GPU; None takes a key out."""
        (found,) = [each for each in self.document["gpus"] if each["index"] == index]
        for key, value in keys.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        self.write()

    def __str__(self) -> str:
        return str(self.path)


def replace(path: Path, text: str) -> None:
    """Write a file that somebody may be reading."""
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text)
    aside.replace(path)
