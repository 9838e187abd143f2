"""What several devices are called."""

import pytest

from gpuplane.node.core.devicenames import DeviceName, describe_devices, device_uuids_or_indices

GPUS = [(f"GPU-{n}", str(n)) for n in range(16)]
ODD = [(f"GPU-{n}", str(n)) for n in range(1, 26, 2)]
PARTS = [(f"MIG-{gpu}-{slot}", f"{gpu}:{slot}") for gpu in range(2) for slot in range(7)]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([("GPU-1", "1")], "GPU 1 (GPU-1)"),
        ([("MIG-a", "1:0")], "MIG device 1:0 (MIG-a)"),
        ([("", "3")], "GPU 3"),
        ([("GPU-gone", "")], "GPU-gone"),
        ([("", "")], "the driver"),
        (GPUS[:8], "8 GPUs (0 to 7)"),
        (GPUS[7::-1], "8 GPUs (0 to 7)"),
        (GPUS[:2], "2 GPUs (0, 1)"),
        ([GPUS[0], GPUS[2], GPUS[3], GPUS[4], GPUS[10]], "5 GPUs (0, 2 to 4, 10)"),
        ([*GPUS[:2], ("GPU-gone", "")], "3 GPUs (0, 1, GPU-gone)"),
        (PARTS, "14 MIG devices (0:0 to 0:6, 1:0 to 1:6)"),
        ([GPUS[5], *PARTS[:3]], "1 GPU (5) and 3 MIG devices (0:0 to 0:2)"),
        (ODD, "13 GPUs (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25)"),
    ],
)
def test_several_devices_have_one_short_name(devices: list[DeviceName], expected: str) -> None:
    """One is named with its UUID; several by their indices in the driver's order, those in a row as one."""
    assert describe_devices(devices) == expected


def test_programs_know_a_device_by_its_uuid() -> None:
    """Where the driver does not tell it, by its index."""
    assert device_uuids_or_indices([("GPU-0", "0"), ("", "3"), ("GPU-gone", "")]) == ("GPU-0", "3", "GPU-gone")
