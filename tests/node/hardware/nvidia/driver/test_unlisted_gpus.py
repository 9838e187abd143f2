"""GPUs on the PCI bus that NVIDIA's driver does not have, as sysfs shows them."""

from pathlib import Path

from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles


def function(root: Path, pci: str, driver: str = "", *, vendor: str = "0x10de", code: str = "0x030200") -> Path:
    """A PCI function below a root, with the kernel driver that has it."""
    place = root / "sys/bus/pci/devices" / pci
    place.mkdir(parents=True)
    (place / "vendor").write_text(f"{vendor}\n")
    (place / "class").write_text(f"{code}\n")
    if driver:
        (place / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return place


def test_each_is_named_with_the_kernel_driver_that_has_it(tmp_path: Path) -> None:
    function(tmp_path, "0000:01:00.0", "nvidia")
    function(tmp_path, "0000:02:00.0", "vfio-pci")
    function(tmp_path, "0000:03:00.0", "nouveau", code="0x030000")
    function(tmp_path, "0000:04:00.0")
    function(tmp_path, "0000:04:00.1", "snd_hda_intel", code="0x040300")
    function(tmp_path, "0000:05:00.0", code="0x068000")
    function(tmp_path, "0000:06:00.0", vendor="0x1002")
    function(tmp_path, "0000:07:00.0")
    function(tmp_path, "0000:07:00.4").joinpath("physfn").symlink_to("../0000:07:00.0")
    (tmp_path / "proc/driver/nvidia/gpus/0000:08:00.0").mkdir(parents=True)
    function(tmp_path, "0000:08:00.0")

    assert KernelFiles(str(tmp_path)).unlisted(["0000:07:00.0"]) == {
        "0000:02:00.0": "vfio-pci",
        "0000:03:00.0": "nouveau",
        "0000:04:00.0": "",
    }
    assert KernelFiles(str(tmp_path / "nowhere")).unlisted([]) == {}
