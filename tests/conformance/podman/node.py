"""A node that a machine file describes, whose driver's files are files of this disk."""

from pathlib import Path

import msgspec
from click.testing import CliRunner

from gpuplane.cli.commands.cdi import command
from gpuplane.node.model.machine import (
    DeviceNodeStat,
    Driver,
    DriverFile,
    DriverFiles,
    DriverLibrary,
    Gpu,
    MachineFile,
    Mig,
    MigDevice,
)
from gpuplane.sandbox.agent import Agent
from tests.conformance.podman.box import LIBRARY, compiled
from tests.trees import grow

VERSION = "580.95.05"
FOLDER = "/usr/lib64"  # where the image's loader, Debian's, does not look by itself
TREE = f"""
f /usr/bin/nvidia-smi #!/bin/sh
f /lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin 64
f /usr/share/glvnd/egl_vendor.d/10_nvidia.json {{}}
s /run/nvidia-persistenced/socket
"""
CONTROL = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0), "/dev/nvidia-uvm-tools": (510, 1)}
GPUS = {
    "GPU-0": {"/dev/nvidia0": (195, 0), "/dev/dri/card1": (226, 1), "/dev/dri/renderD128": (226, 128)},
    "GPU-1": {"/dev/nvidia1": (195, 1), "/dev/dri/card2": (226, 2), "/dev/dri/renderD129": (226, 129)},
    "GPU-2": {"/dev/nvidia2": (195, 2)},
}
MIGS = {
    "MIG-0": {"/dev/nvidia-caps/nvidia-cap21": (237, 21), "/dev/nvidia-caps/nvidia-cap22": (237, 22)},
    "MIG-1": {"/dev/nvidia-caps/nvidia-cap30": (237, 30), "/dev/nvidia-caps/nvidia-cap31": (237, 31)},
}
LIBRARIES = (
    DriverLibrary(
        path=f"{FOLDER}/libcuda.so.{VERSION}", soname="libcuda.so.1", symlinks=("libcuda.so", "libcuda.so.1")
    ),
    DriverLibrary(
        path=f"{FOLDER}/libnvidia-ml.so.{VERSION}", soname="libnvidia-ml.so.1", symlinks=("libnvidia-ml.so.1",)
    ),
    DriverLibrary(path=f"{FOLDER}/libnvidia-ptxjitcompiler.so.{VERSION}", soname="libnvidia-ptxjitcompiler.so.1"),
)
FILES = ("/usr/bin/nvidia-smi", f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
         "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")  # fmt: skip
SOCKET = "/run/nvidia-persistenced/socket"


class Node:
    """Its driver root, its machine file and its CDI directory."""

    def __init__(self, root: Path, driver: Path) -> None:
        self.root, self.driver, self.machine, self.cdi = root, driver, root / "machine.yaml", root / "cdi"
        self.cdi.mkdir()
        self.machine.write_bytes(msgspec.json.encode(machine()))

    def generate(self, *words: object) -> None:
        """Write a specification into the CDI directory, by the command."""
        place = ("--driver-root", self.driver, "--dev-root", "/", "--output", self.cdi / "nvidia.yaml")
        done = CliRunner().invoke(command, ["generate", *map(str, ("--machine", self.machine, *place, *words))])
        assert done.exit_code == 0, done.output

    def agent(self, *words: object) -> Agent:
        """An agent that gives out GPUs and MIG devices by CDI."""
        config = self.root / "config.yaml"
        config.write_text(
            f"version: v1\nflags: {{migStrategy: mixed, nvidiaDriverRoot: {self.driver}, nvidiaDevRoot: /,\n"
            "        plugin: {deviceListStrategy: [cdi-cri]}}\n"
        )
        return Agent(
            "--config", config, "--kubelet-root", self.root / "k", "--state-dir", self.root / "s",
            "--cdi-dir", self.cdi, *words, environment={"DRIVER_ROOT_CTR_PATH": str(self.driver)},
        )  # fmt: skip

    def files(self) -> dict[str, str]:
        """Where a container sees each file of the driver → where that is."""
        paths = (*(each.path for each in LIBRARIES), *FILES, SOCKET)
        return {path: f"{self.driver}{path}" for path in paths}


def install(root: Path) -> Path:
    """A driver root."""
    for each in LIBRARIES:
        compiled(LIBRARY, root / each.path[1:], "-shared", "-fPIC", f"-Wl,-soname,{each.soname}")
    return grow(root, TREE)


def machine() -> MachineFile:
    """Two GPUs, and one in MIG mode."""
    numbers = {path: pair for nodes in (CONTROL, *GPUS.values(), *MIGS.values()) for path, pair in nodes.items()}
    return MachineFile(
        driver=Driver(
            version=VERSION,
            cuda="13.0",
            files=DriverFiles(libraries=LIBRARIES, files=tuple(map(DriverFile, FILES)), sockets=(DriverFile(SOCKET),)),
        ),
        shared_nodes=tuple(CONTROL),
        device_node_stats={path: DeviceNodeStat(major=major, minor=minor) for path, (major, minor) in numbers.items()},
        gpus=tuple(
            Gpu(
                index=index,
                uuid=uuid,
                minor=index,
                model="NVIDIA A100-SXM4-80GB",
                memory_mib=81920,
                pci=f"0000:{index + 1:02x}:00.0",
                device_nodes=(f"/dev/nvidia{index}",),
                dri=tuple(path for path in nodes if path.startswith("/dev/dri/")),
                mig=_mig() if index == 2 else None,
            )
            for index, (uuid, nodes) in enumerate(GPUS.items())
        ),
    )


def _mig() -> Mig:
    devices = (
        MigDevice(
            uuid=uuid,
            profile="3g.40gb",
            gpu_instance=slot + 1,
            mig_index=slot,
            memory_mib=40192,
            device_nodes=tuple(nodes),
        )
        for slot, (uuid, nodes) in enumerate(MIGS.items())
    )
    return Mig(enabled=True, devices=tuple(devices))
