"""Attributes and capacities: NVIDIA's names and types, the same for every device, within the API server's limits."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.kinds.attributes import MAX_NAMES, MAX_STRING, UNKNOWN
from gpuplane.node.core.kinds.nvidia.attributes import (
    MIG_CAPACITIES,
    absent_gpu_attributes,
    architecture_name,
    gpu_attributes,
    gpu_capacity,
    memory_quantity,
    semantic_version,
)
from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file, profile_names
from gpuplane.node.model.machine import Driver, FabricClique, Gpu
from gpuplane.node.model.resourceslices import DeviceAttribute

SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")

NVIDIAS_MIG_ATTRIBUTES = {
    "type", "uuid", "parentUUID", "profile", "productName", "brand", "architecture", "cudaComputeCapability",
    "driverVersion", "cudaDriverVersion", "resource.kubernetes.io/pciBusID",
    "resource.kubernetes.io/pcieRoot",
}  # fmt: skip
NVIDIAS_MIG_CAPACITIES = {
    "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "memory",
    *(f"memorySlice{n}" for n in range(8)),
}  # fmt: skip
"""dra-driver-nvidia-gpu 0.5, cmd/gpu-kubelet-plugin/deviceinfo.go: a MIG device that has all of its GPU."""

H100 = Gpu(
    index=3,
    uuid="GPU-1",
    model="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    compute_capability="9.0",
    pci="0000:1B:00.0",
    pcie_root="pci0000:16",
    numa=0,
    fabric=FabricClique(cluster="6b200a72-5c1e-4f0d-9d3a-2f6e1b7c8d90", clique=7),
)
KINDS = ("string", "version", "integer", "boolean")


def kind(attribute: DeviceAttribute) -> str:
    """Which of its values an attribute has."""
    [found] = [each for each in KINDS if getattr(attribute, each) is not None]
    return found


def test_a_gpu_that_tells_everything() -> None:
    """As NVIDIA's driver publishes it, with what is ours."""
    assert gpu_attributes(Driver(version="580.95.05", cuda="13.0"), H100) == {
        "type": DeviceAttribute(string="gpu"),
        "uuid": DeviceAttribute(string="GPU-1"),
        "parentUUID": DeviceAttribute(string=""),
        "profile": DeviceAttribute(string=""),
        "productName": DeviceAttribute(string="NVIDIA H100 80GB HBM3"),
        "brand": DeviceAttribute(string=""),
        "architecture": DeviceAttribute(string="Hopper"),
        "cudaComputeCapability": DeviceAttribute(version="9.0.0"),
        "driverVersion": DeviceAttribute(version="580.95.5"),
        "cudaDriverVersion": DeviceAttribute(version="13.0.0"),
        "numa": DeviceAttribute(integer=0),
        "resource.kubernetes.io/numaNode": DeviceAttribute(integer=0),
        "index": DeviceAttribute(integer=3),
        "clusterUUID": DeviceAttribute(string="6b200a72-5c1e-4f0d-9d3a-2f6e1b7c8d90"),
        "cliqueID": DeviceAttribute(integer=7),
        "resource.kubernetes.io/pciBusID": DeviceAttribute(string="0000:1b:00.0"),
        "resource.kubernetes.io/pcieRoot": DeviceAttribute(string="pci0000:16"),
    }
    assert gpu_capacity(H100)["memory"].value == "81559Mi"


def test_the_fullest_mig_device_has_room() -> None:
    """All that NVIDIA publishes of one, and what is ours: exactly as many names as the API server takes."""
    assert set(UNKNOWN) >= NVIDIAS_MIG_ATTRIBUTES
    assert set(MIG_CAPACITIES) == NVIDIAS_MIG_CAPACITIES
    assert len(UNKNOWN) + len(MIG_CAPACITIES) <= MAX_NAMES
    for name in (*UNKNOWN, *MIG_CAPACITIES):
        assert C_IDENTIFIER.fullmatch(name.removeprefix("resource.kubernetes.io/")), name


@given(
    st.builds(
        Gpu,
        index=st.integers(0, 99),
        uuid=st.text(max_size=90),
        model=st.text(max_size=90),
        compute_capability=st.text(max_size=9) | st.sampled_from(["9.0", "10.3"]),
        pci=st.text(max_size=9),
        pcie_root=st.text(max_size=90),
        numa=st.none() | st.integers(0, 9),
        memory_mib=st.integers(0, 1 << 24),
    ),
    st.none() | st.builds(Driver, version=st.text(max_size=80), cuda=st.text(max_size=80)),
)
def test_whatever_a_gpu_tells_the_api_server_takes_it(gpu: Gpu, driver: Driver | None) -> None:
    """The same names with the same types; strings of 64 bytes; versions that are semantic."""
    found = gpu_attributes(driver, gpu)
    assert {name: kind(each) for name, each in found.items()} == {name: kind(each) for name, each in UNKNOWN.items()}
    for each in found.values():
        assert each.string is None or len(each.string.encode()) <= MAX_STRING
        assert each.version is None or SEMVER.fullmatch(each.version)


def test_a_gpu_that_is_gone_has_the_same_names() -> None:
    """With its UUID, by which a person finds it."""
    found = absent_gpu_attributes("GPU-1")
    assert found.keys() == UNKNOWN.keys()
    assert found["uuid"].string == "GPU-1"


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("470.82", "470.82.0"), ("470.82.01", "470.82.1"), ("580.95.05", "580.95.5"), ("13.0", "13.0.0"),
        ("575", "575.0.0"), ("550.54.15.01", "550.54.15"), ("", "0.0.0"), ("unknown", "0.0.0"), ("1.-2", "0.0.0"),
        ("1..2", "0.0.0"), ("٣.0", "0.0.0"), ("010.00.00", "10.0.0"),
    ],
)  # fmt: skip
def test_versions_are_semantic(told: str, version: str) -> None:
    assert semantic_version(told) == version


@pytest.mark.parametrize(
    ("capability", "name"),
    [("8.0", "Ampere"), ("8.9", "Ada Lovelace"), ("7.5", "Turing"), ("10.0", "Blackwell"), ("99.0", ""), ("", "")],
)
def test_architectures_have_nvidias_names(capability: str, name: str) -> None:
    assert architecture_name(capability) == name


@pytest.mark.parametrize(("mib", "quantity"), [(81920, "80Gi"), (81559, "81559Mi"), (1 << 20, "1024Gi"), (0, "0")])
def test_memory_is_a_quantity(mib: int, quantity: str) -> None:
    assert memory_quantity(mib) == quantity


@pytest.mark.parametrize("profile", profile_names())
def test_profiles_tell_what_they_can(profile: str) -> None:
    """Of every machine that is shipped the model, the family and the versions are known."""
    machine = machinefile.read_machine(find_machine_file(profile).read_bytes(), profile)
    for gpu in machine.gpus or ():
        found = gpu_attributes(machine.driver, gpu)
        same = {name for name in found if found[name] == UNKNOWN[name]}
        assert not same & {"productName", "architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion"}
