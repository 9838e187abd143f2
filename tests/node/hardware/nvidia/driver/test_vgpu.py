"""Whether NVIDIA's functions are virtual GPUs: their PCI configuration, as the kernel gives it to whom."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.hardware.nvidia.driver import vgpu
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.model.machine import Vgpu
from tests.node.hardware.nvidia.driver.standin import configuration

VIRTUAL = Vgpu(present=True, host_driver_version="460.16", host_driver_branch="r460_00")
PHYSICAL = Vgpu(present=False)


@pytest.mark.parametrize("described", [VIRTUAL, PHYSICAL])
def test_a_whole_configuration_tells(described: Vgpu) -> None:
    """The version and branch of the host's driver are in it, as in NVIDIA's own example of a vGPU."""
    assert vgpu.parse_vgpu(configuration(described)) == described


def test_the_first_64_bytes_tell_only_that_there_are_no_capabilities() -> None:
    """More of it the kernel gives to CAP_SYS_ADMIN alone."""
    header = bytearray(configuration(VIRTUAL)[:64])
    assert vgpu.parse_vgpu(bytes(header)) is None
    header[0x06] = 0

    assert vgpu.parse_vgpu(bytes(header)) == PHYSICAL


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        ((), None),  # none of NVIDIA's
        ((configuration(PHYSICAL), configuration(PHYSICAL)), PHYSICAL),
        ((configuration(PHYSICAL), configuration(VIRTUAL)), VIRTUAL),
        ((configuration(None), configuration(PHYSICAL)), None),
        ((configuration(None), configuration(VIRTUAL)), VIRTUAL),  # one is enough
        ((b"",), None),
    ],
)
def test_one_function_that_is_virtual_is_enough(functions: tuple[bytes, ...], told: Vgpu | None) -> None:
    """That none is can be said only where all of them tell."""
    assert vgpu.merge_vgpu(functions) == told


def test_records_before_that_of_the_host_are_passed_over() -> None:
    """Each says how long it is; one that says 0 bytes would be passed for ever."""
    data = bytearray(configuration(VIRTUAL))
    at = 0xD0
    host = bytes(data[at + 5 : at + 27])
    for record, told in ((b"\x07\x05abc", VIRTUAL), (b"\x07\x00abc", Vgpu(present=True))):
        longer = data[:at] + bytes((0x09, 0x68, 5 + len(record) + len(host))) + b"VF" + record + host
        assert vgpu.parse_vgpu(bytes(longer.ljust(256, b"\0"))) == told


@given(data=st.binary(min_size=256, max_size=256))
def test_no_configuration_breaks_the_look(data: bytes) -> None:
    """Whatever its pointers lead to, itself included."""
    assert vgpu.parse_vgpu(data) is not None
    assert vgpu.parse_vgpu(data[:6] + b"\x10" + data[7:0x34] + b"\xd0" + data[0x35:]) is not None


def test_only_nvidias_functions_are_asked(tmp_path: Path) -> None:
    """And no more than the 256 bytes of each: what lies beyond are registers of the device."""
    for address, vendor in (("0000:01:00.0", "0x10de"), ("0000:02:00.0", "0x8086")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        described = PHYSICAL if vendor == "0x10de" else VIRTUAL
        (folder / "config").write_bytes(configuration(described).ljust(4096, b"\xff"))

    assert KernelFiles(str(tmp_path)).vgpu() == PHYSICAL


def test_a_name_of_the_server_is_one_short_line(tmp_path: Path) -> None:
    """Firmware says what its maker wrote there; a file that is none is no name."""
    file = tmp_path / "sys/class/dmi/id/product_name"
    file.parent.mkdir(parents=True)
    files = KernelFiles(str(tmp_path))
    assert files.product() == ""
    for text, name in (("AS -4125GS-TNRT \n", "AS -4125GS-TNRT"), ("a\x00b\n\tc", "ab c"), ("x" * 4096, "x" * 128)):
        file.write_text(text)
        assert files.product() == name
    file.unlink()
    file.mkdir()
    assert files.product() == ""


def test_a_model_that_the_kernels_driver_does_not_know_is_not_told(tmp_path: Path) -> None:
    """It says "Unknown" of a GPU that it has not started."""
    file = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    file.parent.mkdir(parents=True)
    file.write_text("Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n")

    gpu = KernelFiles(str(tmp_path)).gpu(0, "0000:01:00.0")

    assert (gpu.model, gpu.uuid, gpu.minor) == ("", "", 0)
