"""A node whose container runtime takes CDI: described GPUs, the agent, a CDI directory, and who reads it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from gpuplane.node.core.containers.cdi.names import CDI_KINDS, VENDOR, spec_file_name
from gpuplane.node.core.containers.cdi.registry import parse_spec_file
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.machine import (
    DeviceNodeStat,
    Driver,
    DriverFiles,
    DriverLibrary,
    Gpu,
    MachineFile,
    Mig,
    MigDevice,
)
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet

GPU = f"{VENDOR}/gpu"
CDI = "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n"
VERSION = "580.95.05"
PROFILES = {1: "7g.80gb", 2: "3g.40gb", 3: "2g.20gb", 7: "1g.10gb"}
"""How many MIG devices a GPU is cut into → their profile."""
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def machine(gpus: Iterable[int] = range(2), cut: Mapping[int, int] = {}, version: str = VERSION) -> MachineFile:
    """The GPUs of these indices; of those in `cut` so many MIG devices. Every node has its numbers."""
    found = tuple(_gpu(index, cut.get(index, 0)) for index in gpus)
    paths = [path for gpu in found for path in gpu.device_nodes]
    caps = [path for gpu in found for device in gpu.mig_devices for path in device.device_nodes]
    return MachineFile(
        driver=Driver(version=version, cuda="13.0", files=files(version)),
        gpus=found,
        shared_nodes=CONTROL,
        device_node_stats={
            **{path: DeviceNodeStat(major=195, minor=int(path.removeprefix("/dev/nvidia"))) for path in paths},
            **{path: DeviceNodeStat(major=236, minor=int(path.rpartition("cap")[2])) for path in caps},
            **{path: DeviceNodeStat(major=195, minor=255 - n) for n, path in enumerate(CONTROL)},
        },
    )


def _gpu(index: int, parts: int) -> Gpu:
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{index}-{parts}-{n}",
            profile=PROFILES[parts],
            gpu_instance=n,
            mig_index=n,
            device_nodes=tuple(f"/dev/nvidia-caps/nvidia-cap{index * 100 + parts * 10 + n * 2 + i}" for i in (1, 2)),
        )
        for n in range(parts)
    )
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        model="NVIDIA A100",
        device_nodes=(f"/dev/nvidia{index}",),
        mig=Mig(enabled=bool(parts), devices=devices),
    )


def files(version: str) -> DriverFiles:
    """The driver's libraries of that version."""
    folder, names = "/usr/lib/x86_64-linux-gnu", ("cuda", "nvidia-ml")
    return DriverFiles(
        libraries=tuple(
            DriverLibrary(
                path=f"{folder}/lib{name}.so.{version}", soname=f"lib{name}.so.1", symlinks=(f"lib{name}.so.1",)
            )
            for name in names
        )
    )


class Place:
    """The node's files."""

    def __init__(self, root: Path, config: str = CDI) -> None:
        self.root, self.machine, self.config = root, root / "machine.yaml", root / "config.yaml"
        self.cdi, self.hook = root / "cdi", root / "gpuplane-hook"
        self.describe(machine())
        self.configure(config)

    def describe(self, machine: MachineFile) -> None:
        """The machine is this one now."""
        _replace(self.machine, msgspec.json.encode(machine))

    def configure(self, text: str) -> None:
        """The configuration is this one now."""
        _replace(self.config, text.encode())

    def agent(self, *more: object, **environment: str) -> Agent:
        """An agent here."""
        return Agent(
            "--machine", self.machine, "--config", self.config, "--kubelet-root", self.root / "k",
            "--state-dir", self.root / "s", "--cdi-dir", self.cdi, "--hook-path", self.hook, *more,
            environment=environment,
        )  # fmt: skip

    def kubelet(self) -> Kubelet:
        """A kubelet here, whose runtime resolves what is in the CDI directory."""
        return Kubelet(self.root / "k", cdi_dirs=self.cdi)

    def file(self, kind: str = GPU) -> Path:
        """The file of a kind."""
        return self.cdi / spec_file_name(kind)

    def spec(self, kind: str = GPU) -> Spec | None:
        """What the file of a kind says; None where there is none. It must be a good one."""
        try:
            loaded = parse_spec_file(str(self.file(kind)), self.file(kind).read_bytes())
        except FileNotFoundError:
            return None
        assert loaded.spec is not None, loaded.problem
        return loaded.spec

    def names(self, kind: str = GPU) -> set[str]:
        """The names of the devices that the file of a kind defines."""
        spec = self.spec(kind)
        return {device.name for device in spec.devices} if spec is not None else set()

    def libraries(self) -> set[str]:
        """The versions of the libraries that a container gets."""
        spec = self.spec()
        mounts = spec.container_edits.mounts if spec is not None else ()
        return {mount.host_path.partition(".so.")[2] for mount in mounts if "libcuda" in mount.host_path}

    def left(self) -> list[str]:
        """What is in the CDI directory beside our files."""
        ours = {spec_file_name(kind) for kind in CDI_KINDS}
        return sorted(path.name for path in self.cdi.iterdir() if path.name not in ours) if self.cdi.exists() else []


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_suffix(".new")
    aside.write_bytes(data)
    aside.replace(path)


def document(kind: str, *names: str, node: str = "/dev/null") -> bytes:
    """A specification as somebody else may have left it."""
    devices = [{"name": name, "containerEdits": {"deviceNodes": [{"path": node}]}} for name in names]
    return msgspec.json.encode({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})
