"""What the kernel's files say about GPUs without the driver's library: /sys and /proc under one root, and the nodes.

Addresses are as sysfs writes them, "0000:1b:00.0"; nodes as the host names them, whatever the root.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress

from gpuplane.base.files import open_regular_file, read
from gpuplane.node.hardware.nvidia.driver import vgpu
from gpuplane.node.hardware.nvidia.driver.devicenodes import DeviceNodes, parse_major_numbers
from gpuplane.node.model.machine import Gpu, Vgpu

NVIDIA_VENDOR, NVSWITCH_CLASS = "0x10de", "0x0680"  # PCI vendor, and the class of an NVSwitch: other bridge
VGA_CLASS, CONTROLLER_3D_CLASS = "0x0300", "0x0302"  # the classes of GPUs: VGA and 3D controller
NVIDIA_DRIVER = "nvidia"
UNKNOWN_MODEL = "Unknown"  # what the kernel's driver calls the model of a GPU that it has not started
MAX_PRODUCT_NAME_LENGTH = 128  # characters of a product's name


class KernelFiles:
    """The kernel's files under `root`, and the nodes under it, or under `dev_root` if it has them.

    Nothing here raises: what cannot be read is not known.
    """

    def __init__(self, root: str, dev_root: str = "") -> None:
        self._root = root
        self.nodes = DeviceNodes(*filter(None, (dev_root, root)))

    def kernel_version(self) -> str:
        """The version of the kernel driver that is loaded; "" where none is."""
        found = re.search(r"^NVRM version:.*?\s(\d+\.[\d.]+)\s", self._read("/proc/driver/nvidia/version"), re.M)
        return found[1] if found else ""

    def gpus(self) -> tuple[str, ...]:
        """The PCI addresses of the GPUs that the kernel driver has, in their order, which is NVML's."""
        with suppress(OSError):
            return tuple(sorted(map(str.lower, os.listdir(self._path("/proc/driver/nvidia/gpus")))))
        return ()

    def gpu(self, index: int, pci: str) -> Gpu:
        """What is known of a GPU that NVML does not describe."""
        told: dict[str, str] = {}
        for line in self._information(pci).splitlines():
            key, _, value = line.partition(":")
            told[key.strip()] = value.strip()
        uuid, minor = told.get("GPU UUID", ""), told.get("Device Minor", "")
        return Gpu(
            index=index,
            uuid="" if "?" in uuid else uuid,
            model="" if told.get("Model") == UNKNOWN_MODEL else told.get("Model", ""),
            pci=pci,
            pci_class=self.pci_class(pci),
            pcie_root=self.pcie_root(pci),
            numa=self.numa(pci),
            minor=int(minor) if minor.isdecimal() else None,
            device_nodes=(f"/dev/nvidia{minor}",) if minor.isdecimal() else (),
        )

    def excluded(self, pci: str) -> bool:
        """Whether somebody told the kernel driver to leave this GPU alone (NVreg_ExcludedGpus)."""
        return (
            re.search(r"^GPU Excluded:\s+Yes", self._read(f"/proc/driver/nvidia/gpus/{pci}/information"), re.M)
            is not None
        )

    def numa(self, pci: str) -> int | None:
        """The NUMA node of a PCI device; None where the kernel knows none (-1) or tells nonsense."""
        with suppress(ValueError):
            node = int(self._read(f"/sys/bus/pci/devices/{pci}/numa_node"))
            return node if node >= 0 else None
        return None

    def pci_class(self, pci: str) -> str:
        """The class of a PCI device, "0x030200"; "" where it is not told."""
        found = self._read(f"/sys/bus/pci/devices/{pci}/class").strip()
        return found if re.fullmatch("0x[0-9a-f]{6}", found) else ""

    def pcie_root(self, pci: str) -> str:
        """The root complex above a PCI device, "pci0000:16"; "" where it is not told.

        As Kubernetes finds it for resource.kubernetes.io/pcieRoot (dynamic-resource-allocation/deviceattribute).
        """
        with suppress(OSError, ValueError):
            names = os.readlink(self._path(f"/sys/bus/pci/devices/{pci}")).split("/")
            found = names[names.index("devices") + 1]
            return found if re.fullmatch("pci[0-9a-f]{4,8}:[0-9a-f]{2}", found) else ""
        return ""

    def switches(self) -> tuple[str, ...]:
        """The PCI addresses of the NVSwitches."""
        return tuple(each for each in self._functions() if self.pci_class(each).startswith(NVSWITCH_CLASS))

    def unlisted(self, listed: Collection[str]) -> dict[str, str]:
        """PCI address of each GPU that is neither in `listed` nor NVIDIA's driver's → the driver that has it, or "".

        Virtual functions are for guests.
        """
        own = {*listed, *self.gpus()}
        found = {each: self._driver_of(each) for each in self._functions() if each not in own and self._is_gpu(each)}
        return {pci: driver for pci, driver in found.items() if driver != NVIDIA_DRIVER}

    def _is_gpu(self, pci: str) -> bool:
        physical = not os.path.lexists(self._path(f"/sys/bus/pci/devices/{pci}/physfn"))
        return physical and self.pci_class(pci).startswith((VGA_CLASS, CONTROLLER_3D_CLASS))

    def _driver_of(self, pci: str) -> str:
        """The name of the kernel driver that has a PCI device; "" for none."""
        with suppress(OSError):
            return os.path.basename(os.readlink(self._path(f"/sys/bus/pci/devices/{pci}/driver")))
        return ""

    def vgpu(self) -> Vgpu | None:
        """Whether a GPU is a virtual one; None where that cannot be told."""
        return vgpu.merge_vgpu(map(self._configuration, self._functions()))

    def product(self) -> str:
        """The name of the server, as its firmware tells it; "" where it is not told."""
        name = " ".join(self._read("/sys/class/dmi/id/product_name").split())
        return "".join(each for each in name if each.isprintable())[:MAX_PRODUCT_NAME_LENGTH].strip()

    def _functions(self) -> tuple[str, ...]:
        """The PCI addresses of NVIDIA's functions: GPUs, NVSwitches, and what else is on their boards."""
        with suppress(OSError):
            devices = sorted(os.listdir(self._path("/sys/bus/pci/devices")))
            return tuple(each for each in devices if self._vendor(each) == NVIDIA_VENDOR)
        return ()

    def _vendor(self, pci: str) -> str:
        return self._read(f"/sys/bus/pci/devices/{pci}/vendor").strip()

    def _configuration(self, pci: str) -> bytes:
        """As much of a function's configuration as we may read. No more is asked for: beyond are registers."""
        with suppress(OSError), open_regular_file(self._path(f"/sys/bus/pci/devices/{pci}/config")) as file:
            return os.read(file, vgpu.CAPABILITIES_END)
        return b""

    def dri(self, pci: str) -> tuple[str, ...]:
        """A GPU's DRM nodes, so far as they exist; none where the driver's DRM module is not loaded."""
        with suppress(OSError):
            names = sorted(os.listdir(self._path(f"/sys/bus/pci/devices/{pci}/drm")))
            return self.nodes.there(f"/dev/dri/{name}" for name in names if re.fullmatch(r"(card|renderD)\d+", name))
        return ()

    def majors(self) -> dict[str, int]:
        """Name → major number of the character devices."""
        return parse_major_numbers(self._read("/proc/devices"))

    def release(self) -> str:
        """The kernel's release, "6.8.0-60-generic"; "" where it is not told."""
        return self._read("/proc/sys/kernel/osrelease").strip()

    def firmware(self) -> str:
        """Where somebody told the kernel to look for firmware first; "" where nobody did."""
        return self._read("/sys/module/firmware_class/parameters/path").strip()

    def mig_minors(self) -> dict[str, int]:
        """ "gpu0/gi1/access" → the minor number of its node below /dev/nvidia-caps."""
        pairs = (line.split() for line in self._read("/proc/driver/nvidia-caps/mig-minors").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}

    def _information(self, pci: str) -> str:
        return self._read(f"/proc/driver/nvidia/gpus/{pci}/information")

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path.removeprefix("/"))

    def _read(self, path: str) -> str:
        with suppress(OSError, ValueError):
            return read(self._path(path)).decode(errors="replace")
        return ""
