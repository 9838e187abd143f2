"""Any machine that NVML could tell of, and any failure of a query about one of its GPUs."""

from hypothesis import strategies as st

from gpuplane.node.core.partitions.cards import card_of
from gpuplane.node.hardware.described.migchanges import with_mig_details
from gpuplane.node.hardware.nvidia.driver.miginstances import profile_name
from gpuplane.node.model.machine import (
    Driver,
    FabricClique,
    Gpu,
    InjectedFailure,
    Link,
    MachineFile,
    Mig,
    MigAttributes,
    MigDevice,
    Vgpu,
)
from tests.node.hardware.nvidia.driver.standin import LEVELS, PROFILES

CALLS = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
)
PATTERNS = (
    *CALLS,
    "*",
    "nvmlDeviceGetM*",
    "nvmlDeviceGetNvLink*",
    "nvmlDeviceGetC*",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlUnheardOf",
)
VGPUS = (Vgpu(present=False), Vgpu(present=True, host_driver_version="550.54.16", host_driver_branch="r550_00"))
CLUSTER = "0123abcd-0000-4000-8000-00ff00000000"  # with a zero in its midst: it is bytes, and no C string
CAPS = "/dev/nvidia-caps/nvidia-cap"


def changed(machine: MachineFile, index: int, **fields: object) -> MachineFile:
    """The machine with something else about one GPU."""
    gpus, mig = machine.gpus or (), fields.get("mig")
    if isinstance(mig, Mig):  # its instances are those of its devices
        fields["mig"] = mig.but(instances=None)
    return machine.but(gpus=tuple(with_mig_details(gpu.but(**fields)) if gpu.index == index else gpu for gpu in gpus))


@st.composite
def failures(draw: st.DrawFn, gpus: int) -> InjectedFailure:
    """An error of one query, or of several, about one GPU."""
    error = draw(st.sampled_from(("UNKNOWN", "GPU_IS_LOST", "RESET_REQUIRED", "TIMEOUT", "NO_PERMISSION")))
    gpu = draw(st.integers(0, gpus - 1))
    return InjectedFailure(effect="error", nvml_function=draw(st.sampled_from(PATTERNS)), gpu=gpu, error=error)


@st.composite
def machines(draw: st.DrawFn, least: int = 0) -> MachineFile:
    """A machine of up to five GPUs."""
    buses = sorted(draw(st.sets(st.integers(0, 0x1FFFF), min_size=least, max_size=5)))
    addresses = [f"{bus >> 8:04x}:{bus & 0xFF:02x}:00.0" for bus in buses]
    minors = draw(st.permutations(range(len(buses))))
    gpus = [draw(_gpus(index, pci, minor, addresses)) for index, (pci, minor) in enumerate(zip(addresses, minors))]  # noqa: B905
    version = f"{draw(st.integers(470, 600))}.{draw(st.integers(10, 200))}.{draw(st.integers(10, 99)):02d}"
    return MachineFile(
        driver=Driver(version=version, cuda=f"{draw(st.integers(11, 14))}.{draw(st.integers(0, 9))}"),
        gpus=tuple(map(with_mig_details, gpus)),
        shared_nodes=draw(st.sampled_from(((), ("/dev/nvidiactl",), ("/dev/nvidiactl", "/dev/nvidia-uvm")))),
        product=draw(st.sampled_from(("", "DGXH100", "AS -4125GS-TNRT"))),
        vgpu=draw(st.sampled_from((None, *VGPUS))) if gpus else None,
    )


@st.composite
def _gpus(draw: st.DrawFn, index: int, pci: str, minor: int, addresses: list[str]) -> Gpu:
    others = [address for address in addresses if address != pci]
    peers = draw(st.lists(st.sampled_from(["nvswitch", *others]), unique=True, max_size=3))
    levels = st.sampled_from((None, *LEVELS))
    distances = {other: level for other in others if (level := draw(levels)) is not None}
    model = draw(st.sampled_from(("NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA L40S")))
    memory = draw(st.integers(1, 300_000))
    partitions = st.none() | st.just(Mig())
    if (card := card_of(Gpu(index=index, model=model, memory_mib=memory))) is None:
        partitions |= _partitions(index, minor, memory)
    else:  # it has no other profiles than its own, and they are named after its memory
        memory = card.memory_mib
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=minor,
        model=model,
        memory_mib=memory,
        compute_capability=draw(st.sampled_from(("", "7.5", "9.0", "12.1"))),
        pci=pci,
        numa=draw(st.none() | st.integers(0, 9)),
        mig=draw(partitions),
        links=tuple(Link(peer=peer, nvlink_count=draw(st.integers(1, 6))) for peer in peers),
        distances=distances,
        device_nodes=(f"/dev/nvidia{minor}",),
        pcie_root=draw(st.sampled_from(("", "pci0000:16", "pci10000:00"))),
        pci_class=draw(st.sampled_from(("", "0x030000", "0x030200"))),
        fabric=draw(
            st.none() | st.builds(FabricClique, cluster=st.just(CLUSTER), clique=st.integers(0, (1 << 32) - 1))
        ),
        uncorrected_errors=draw(st.none() | st.integers(0, 1 << 40)),
    )


@st.composite
def _partitions(draw: st.DrawFn, index: int, minor: int, total: int) -> Mig:
    devices: list[MigDevice] = []
    for instance in range(draw(st.integers(0, 3))):
        slices, suffix = draw(st.sampled_from(sorted(PROFILES)))
        memory = draw(st.integers(1, total))
        compute = draw(st.integers(1, slices))
        name = profile_name(slices, compute, memory, total << 20, suffix)
        engines = draw(st.none() | st.tuples(*[st.integers(0, 7)] * 5))
        attributes = MigAttributes(draw(st.integers(1, 200)), slices, compute, *engines) if engines else None
        node = 3 + 1000 * minor + 10 * instance  # 1 and 2 are of all GPUs
        for part in range(draw(st.integers(1, 2))):
            device = MigDevice(
                uuid=f"MIG-{index}-{instance}-{part}",
                profile=name,
                gpu_instance=instance + 3,
                compute_instance=part,
                mig_index=len(devices),
                memory_mib=memory,
                attributes=attributes,
                device_nodes=(f"{CAPS}{node}", f"{CAPS}{node + 1 + part}"),
            )
            devices.append(device)
    return Mig(enabled=True, devices=tuple(devices))
