"""Stand-ins: containers get the environment, /dev/null by the name of each device node, and nothing else of a node."""

from collections.abc import Iterator
from typing import get_args

import pytest

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.plain import plain_response
from gpuplane.node.core.allocate.response import allocate, response_for_units
from gpuplane.node.core.containers.cdi.desiredspecs import desired_specs
from gpuplane.node.core.containers.cdi.validation import all_spec_problems
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.core.inventory.resources import list_resources
from gpuplane.node.core.kinds.table import PLAIN_KINDS
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file, profile_names
from gpuplane.node.model.cdi import ContainerEdits, Mount, Spec
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName
from gpuplane.node.model.config import CdiHook, DraSettings, ListStrategy, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimPrepareRequested,
    ConfigLoaded,
    DevicesObserved,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.machine import Device, DeviceList, MachineFile
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CDI_HOOK_PART, CdiFilesStatus, CdiHookStatus
from gpuplane.node.model.views import Mount as KubeletMount
from gpuplane.node.model.views import Unit
from tests.node.core.dra.nodes import after

NULL, OPTIONS = "/dev/null", ("ro", "nosuid", "noexec", "rbind", "rprivate")
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
KVM = Device(id="kvm", kind="device-node", device_nodes=("/dev/kvm",))
ALL_FEATURES = Settings(device_list_strategy=("cdi-cri",), gdrcopy=True, gds=True, mofed=True, imex_channels=(0,))


def profile(name: str) -> MachineFile:
    return read_machine(find_machine_file(name).read_bytes(), name)


def node(machine: MachineFile, settings: Settings) -> Snapshot:
    """A node with this machine and a plain device, which has written its CDI files and has our hook installed."""
    return after(
        Snapshot(),
        ConfigLoaded(settings),
        MachineObserved(machine),
        DevicesObserved("device-node", DeviceList(devices=(KVM,))),
        AllocationsListed((), 0.0),
        StatusChanged(CDI_FILES_PART, CdiFilesStatus("ok")),
        StatusChanged(CDI_HOOK_PART, CdiHookStatus("ok", path="/opt/gpuplane/bin/gpuplane-hook")),
    )


def edits_of(spec: Spec) -> Iterator[ContainerEdits]:
    yield from (spec.container_edits, *(device.container_edits for device in spec.devices))


def is_harmless(edits: ContainerEdits) -> bool:
    return edits == ContainerEdits(env=edits.env, mounts=edits.mounts) and all(
        (mount.host_path, mount.options) == (NULL, OPTIONS) for mount in edits.mounts
    )


@pytest.mark.parametrize("hook", get_args(CdiHook))
@pytest.mark.parametrize("name", profile_names())
def test_a_specification_has_null_alone_of_the_node(name: str, hook: CdiHook) -> None:
    """Of every profile, of every kind of device, whichever hook is configured: the same devices as without stand-ins,
    with the same environment, and for each of their device nodes a read-only mount of /dev/null."""
    settings = ALL_FEATURES.but(cdi_hook=hook)
    real = desired_specs(node(profile(name), settings))
    found = desired_specs(node(profile(name), settings.but(stand_ins=True)))

    assert found.keys() == real.keys()
    assert {"k8s.device-plugin.nvidia.com/gpu", "gpuplane.io/device-node"} <= found.keys()
    for kind, built in real.items():
        assert (found[kind].spec is None) == (built.spec is None)
        if built.spec is not None and (spec := found[kind].spec) is not None:
            assert [device.name for device in spec.devices] == [device.name for device in built.spec.devices]
            for before, after in zip(edits_of(built.spec), edits_of(spec), strict=True):
                assert is_harmless(after)
                assert after.env == before.env
                assert {m.container_path for m in after.mounts} == {node.path for node in before.device_nodes}
            assert not list(all_spec_problems(spec))


def test_without_stand_ins_nothing_is_replaced() -> None:
    """The test above can fail."""
    found = desired_specs(node(profile("t4"), Settings(device_list_strategy=("cdi-cri",))))
    spec = found["k8s.device-plugin.nvidia.com/gpu"].spec

    assert spec is not None
    assert not any(map(is_harmless, edits_of(spec)))


def units(machine: MachineFile) -> list[Unit]:
    resources, _ = list_resources(machine, Settings(mig_strategy="mixed"))
    return [device.unit for each in resources for device in each.devices]


@pytest.mark.parametrize("strategy", sorted({*get_args(ListStrategy)} - {"auto"}))
@pytest.mark.parametrize("name", profile_names())
def test_kubelet_is_given_null_alone_of_the_node(name: str, strategy: ListStrategy) -> None:
    """Where no CDI document has them, kubelet mounts the stand-ins, without passDeviceSpecs; the environment is the
    same. What names the devices for NVIDIA's runtime is read-only, too: else root of a container could change the mode
    of the node's /dev/null."""
    machine, settings = profile(name), Settings(device_list_strategy=(strategy,), imex_channels=(0,))
    for unit in units(machine):
        real = response_for_units([unit], machine, settings.but(pass_device_specs=True), "nvidia.com/gpu")
        found = response_for_units([unit], machine, settings.but(stand_ins=True), "nvidia.com/gpu")

        assert found.but(mounts=()) == real.but(mounts=(), device_specs=())
        assert {(mount.host_path, mount.read_only) for mount in found.mounts} <= {(NULL, True)}
        places = {mount.container_path for mount in found.mounts}
        listed = {mount.container_path for mount in real.mounts}
        assert places == listed | {each.container_path for each in real.device_specs}
        assert strategy.startswith("cdi-") or {*unit.device_nodes} < places


def test_a_described_gpu_is_given_with_stand_ins() -> None:
    """From the snapshot: what Allocate answers for a GPU, and for a device that is no GPU."""
    snapshot = node(profile("t4"), Settings(device_list_strategy=("envvar",), stand_ins=True))
    [gpu] = (each for each in offer(snapshot).resources if each.name == "nvidia.com/gpu")
    got = allocate(snapshot, gpu.name, [gpu.devices[0].id])
    kvm = allocate(snapshot, "gpuplane.io/kvm", ["device-node:kvm"])

    assert got.env == {"NVIDIA_VISIBLE_DEVICES": gpu.devices[0].id}
    assert {each.container_path for each in got.mounts} == {"/dev/nvidia0", *CONTROL & {*profile("t4").shared_nodes}}
    assert kvm.mounts == (KubeletMount("/dev/kvm", NULL, read_only=True),)
    assert got.device_specs == kvm.device_specs == ()


def test_a_claim_is_given_stand_ins() -> None:
    """A claim for a GPU and a device that is no GPU."""
    snapshot = node(profile("t4"), Settings(dra=DraSettings(enabled=True), stand_ins=True))
    slices = resource_slices(snapshot, "n1") or ()
    devices = tuple(AllocatedDevice("one", each.pool, device.name) for each in slices for device in each.devices)
    claim = AllocatedClaim(ClaimName("default", "both", "uid-1"), devices, (), pods={"train": "pod-uid"})
    [spec] = claim_specs(after(snapshot, ClaimPrepareRequested(claim))).values()

    assert all(map(is_harmless, edits_of(spec)))
    mounts = [mount for edits in edits_of(spec) for mount in edits.mounts]
    assert {Mount(NULL, path, OPTIONS) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kvm")} <= {*mounts}


def test_every_plain_kind_is_given_stand_ins() -> None:
    """Whatever else its edits would be."""
    for name in PLAIN_KINDS:
        unit = Unit(id=f"{name}:x", gpu="", index="", model="", kind=name, device_nodes=("/dev/x",))
        got = plain_response([unit], Settings(device_list_strategy=("envvar",), stand_ins=True), "gpuplane.io/x")

        assert got.mounts == (KubeletMount("/dev/x", NULL, read_only=True),)
        assert got.device_specs == ()
