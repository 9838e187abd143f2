"""Every profile is a machine that could be: figures that contradict each other would test the agent on nothing real."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import msgspec
import pytest

from gpuplane.base import strict
from gpuplane.node.core.advertising import offer
from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file, profile_names
from gpuplane.node.hardware.nvidia.driver.devicenodes import nodes_of_gpus
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.machine import Gpu, MachineFile, MigDevice
from gpuplane.node.model.snapshot import Snapshot

WHOLE = {  # profile → GPUs offered as nvidia.com/gpu when nothing is configured
    "a100-mig": 2,
    "big-16": 16,
    "dgx-a100": 8,
    "dgx1-v100": 8,
    "gb200-nvl": 4,
    "hgx-b200": 8,
    "hgx-h100": 8,
    "hgx-h200": 8,
    "l40s": 8,
    "t4": 1,
    "workstation": 2,
}

NEAR_TO_FAR = ("PIX", "PXB", "PHB", "NODE", "SYS")

PLACEMENTS = {  # a GPU of seven slices: profile → memory slices at which it may start, how many it takes
    "1g.10gb": ((0, 1, 2, 3, 4, 5, 6), 1),
    "1g.10gb+me": ((0, 1, 2, 3, 4, 5, 6), 1),
    "1g.20gb": ((0, 2, 4, 6), 2),
    "2g.20gb": ((0, 2, 4), 2),
    "3g.40gb": ((0, 4), 4),
    "4g.40gb": ((0,), 4),
    "7g.80gb": ((0,), 8),
}

A100_MULTIPROCESSORS_PER_SLICE = 14
A100_ENGINES = {  # of a whole A100: `nvidia-smi mig -lgip`, profile 7g
    "copy_engines": 7,
    "decoders": 5,
    "encoders": 0,
    "jpeg_engines": 1,
    "optical_flow_engines": 1,
}

UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0")


def machine(name: str) -> MachineFile:
    return strict.load_yaml_as(find_machine_file(name).read_bytes(), MachineFile, f"{name}.yaml")


def gpus(name: str) -> tuple[Gpu, ...]:
    found = machine(name).gpus
    assert found
    return found


def uuids(name: str) -> Iterator[str]:
    for gpu in gpus(name):
        yield gpu.uuid
        yield from (device.uuid for device in gpu.mig.devices) if gpu.mig else ()


def instances(gpu: Gpu) -> dict[int, list[MigDevice]]:
    """GPU instance → its compute instances."""
    found: dict[int, list[MigDevice]] = {}
    for device in gpu.mig_devices:
        found.setdefault(device.gpu_instance, []).append(device)
    return found


def whole(profile: str) -> str:
    """The GPU instance's profile of a MIG device's: "1c.3g.40gb" lives in a "3g.40gb"."""
    return re.sub(r"^\d+c\.", "", profile)


def slices(profile: str) -> int:
    """Compute slices of a MIG device."""
    return int(profile[0])


def fits(profiles: list[str], taken: frozenset[int] = frozenset()) -> bool:
    """Whether these GPU instances have places that do not overlap."""
    if not profiles:
        return True
    starts, size = PLACEMENTS[profiles[0]]
    places = (frozenset(range(start, start + size)) for start in starts)
    return any(fits(profiles[1:], taken | place) for place in places if not place & taken)


def test_the_table_names_every_profile() -> None:
    """A profile without an expected offer is not tested."""
    assert profile_names() == tuple(sorted(WHOLE))


@pytest.mark.parametrize("name", profile_names())
def test_what_a_container_may_get_has_numbers_and_files(name: str) -> None:
    """Every node its own, a GPU its DRM nodes too; the driver its libraries; GPUDirect Storage what it needs."""
    machine = machinefile.read_machine(find_machine_file(name).read_bytes(), name)
    nodes = {*machine.shared_nodes, *nodes_of_gpus(machine.gpus or ())}

    assert nodes <= set(machine.device_node_stats)
    assert all(len(gpu.dri) == 2 for gpu in machine.gpus or ())
    assert machine.driver is not None
    assert machine.driver.files is not None
    assert any(library.soname == "libcuda.so.1" for library in machine.driver.files.libraries)
    assert bool(machine.driver.files.gds_paths) == any(
        node.startswith("/dev/nvidia-fs") for node in machine.shared_nodes
    )


@pytest.mark.parametrize("name", profile_names())
def test_what_is_offered_by_default(name: str) -> None:
    """All whole GPUs are nvidia.com/gpu, healthy; GPUs in MIG mode stay back, with the reason."""
    found = offer(Snapshot(machine=machine(name), config=Config(settings=Settings()), allocations=()))

    assert {r.name: len(r.devices) for r in found.resources} == {"nvidia.com/gpu": WHOLE[name]}
    assert not [device for resource in found.resources for device in resource.devices if device.unavailable_reason]
    assert len(found.not_offered) == len(gpus(name)) - WHOLE[name]
    assert {left.device for left in found.not_offered} == {
        gpu.uuid for gpu in gpus(name) if gpu.mig and gpu.mig.enabled
    }


@pytest.mark.parametrize("name", profile_names())
def test_nothing_is_wrong_with_it(name: str) -> None:
    """A profile is a sound machine: faults are for those who edit a copy."""
    found = machine(name)

    assert not found.faults
    assert not found.failures
    assert not [gpu.index for gpu in gpus(name) if gpu.faults or not gpu.model or not gpu.memory_mib]
    assert "/dev/nvidiactl" in found.shared_nodes
    assert found.driver is not None
    assert found.driver.version.split(".")[0] in {"570": "12.8", "580": "13.0"}
    assert found.driver.cuda == {"570": "12.8", "580": "13.0"}[found.driver.version.split(".")[0]]


@pytest.mark.parametrize("name", profile_names())
def test_index_is_the_order_of_pci_addresses(name: str) -> None:
    """As NVML counts them. Addresses are as sysfs writes them; no switch has a GPU's."""
    addresses = [gpu.pci for gpu in gpus(name)]

    assert [gpu.index for gpu in gpus(name)] == list(range(len(addresses)))
    assert addresses == sorted(set(addresses))
    assert all(PCI.fullmatch(address) for address in (*addresses, *machine(name).switches))
    assert not set(addresses) & set(machine(name).switches)


@pytest.mark.parametrize("name", profile_names())
def test_each_gpu_has_its_own_node(name: str) -> None:
    """/dev/nvidia<minor>, whatever the index."""
    assert sorted(gpu.minor for gpu in gpus(name) if gpu.minor is not None) == list(range(len(gpus(name))))
    assert all(gpu.device_nodes == (f"/dev/nvidia{gpu.minor}",) for gpu in gpus(name))


def test_uuids_are_well_formed_and_nowhere_twice() -> None:
    """Neither within a profile nor between them: nodes of several profiles may form one cluster."""
    found = [uuid for name in profile_names() for uuid in uuids(name)]

    assert [uuid for uuid in found if not UUID.fullmatch(uuid)] == []
    assert [uuid for uuid, count in Counter(found).items() if count > 1] == []


@pytest.mark.parametrize("name", profile_names())
def test_distances_are_complete_and_symmetric(name: str) -> None:
    """Every other GPU has one, by address, and the way back is as long."""
    distances = {gpu.pci: gpu.distances for gpu in gpus(name)}

    for pci, found in distances.items():
        assert set(found) == set(distances) - {pci}
        assert all(distances[peer][pci] == found[peer] for peer in found)
        assert set(found.values()) <= set(NEAR_TO_FAR)


@pytest.mark.parametrize("name", profile_names())
def test_distances_are_those_of_a_tree(name: str) -> None:
    """Two GPUs that are near a third are as near each other."""
    found = {(a.pci, b): NEAR_TO_FAR.index(far) for a in gpus(name) for b, far in a.distances.items()}

    for a, b, c in permutations([gpu.pci for gpu in gpus(name)], 3):
        assert found[a, c] <= max(found[a, b], found[b, c])


@pytest.mark.parametrize("name", profile_names())
def test_only_another_numa_node_is_as_far_as_sys(name: str) -> None:
    """SYS is the way between NUMA nodes, and there is no other."""
    numa = {gpu.pci: gpu.numa for gpu in gpus(name)}

    for gpu in gpus(name):
        assert [p for p, far in gpu.distances.items() if (far == "SYS") != (numa[p] != gpu.numa)] == []


@pytest.mark.parametrize("name", profile_names())
def test_links_have_as_many_lanes_from_either_end(name: str) -> None:
    """From GPU to GPU. Those to switches are as wide for all GPUs that have them."""
    found = {(gpu.pci, link.peer): link.nvlink_count for gpu in gpus(name) for link in gpu.links}
    switched = {lanes for (_, peer), lanes in found.items() if peer == "nvswitch"}

    assert len(found) == sum(len(gpu.links) for gpu in gpus(name))
    assert all(found.get((b, a)) == lanes for (a, b), lanes in found.items() if b != "nvswitch")
    assert len(switched) <= 1
    assert bool(switched) or not machine(name).switches


def test_a_cube_mesh_uses_all_six_lanes() -> None:
    """A V100 has six, each GPU of a DGX-1 four neighbours, and nobody is its own."""
    for gpu in gpus("dgx1-v100"):
        assert sorted(link.nvlink_count for link in gpu.links) == [1, 1, 2, 2]
        assert gpu.pci not in {link.peer for link in gpu.links}


@pytest.mark.parametrize("name", profile_names())
def test_mig_memory_is_within_the_gpus(name: str) -> None:
    """Compute instances of one GPU instance share its memory, so it counts once."""
    for gpu in gpus(name):
        each = [{device.memory_mib for device in devices} for devices in instances(gpu).values()]

        assert all(len(sizes) == 1 and 0 not in sizes for sizes in each)
        assert sum(size for sizes in each for size in sizes) <= gpu.memory_mib


@pytest.mark.parametrize("name", profile_names())
def test_mig_layouts_are_ones_that_the_driver_would_make(name: str) -> None:
    """GPU instances have places, at most one has the media engines, compute instances fit into theirs."""
    for gpu in gpus(name):
        profiles = [{whole(device.profile) for device in devices} for devices in instances(gpu).values()]
        assert all(len(each) == 1 for each in profiles)
        named = [profile for each in profiles for profile in each]

        assert fits(named)
        assert sum(map(slices, named)) <= 7
        assert sum(profile.endswith("+me") for profile in named) <= 1
        for devices in instances(gpu).values():
            wide = sum(slices(device.profile) for device in devices)
            assert wide <= slices(whole(devices[0].profile))
            assert [device.compute_instance for device in devices] == list(range(len(devices)))


@pytest.mark.parametrize("name", profile_names())
def test_mig_devices_consist_of_parts_of_their_gpu(name: str) -> None:
    """Those of compute instances within one GPU instance share its engines; multiprocessors they have of their own."""
    for gpu in gpus(name):
        engines = Counter[str]()
        for devices in instances(gpu).values():
            told = [device.attributes for device in devices if device.attributes is not None]
            assert len(told) == len(devices)
            for device, attributes in zip(devices, told, strict=True):
                assert attributes.compute_slices == slices(device.profile)
                assert attributes.gpu_slices == slices(whole(device.profile))
                assert attributes.multiprocessors == A100_MULTIPROCESSORS_PER_SLICE * attributes.compute_slices
            assert len({each.but(multiprocessors=0, compute_slices=0) for each in told}) == 1
            engines.update({field: getattr(told[0], field) for field in A100_ENGINES})
        assert all(engines[field] <= most for field, most in A100_ENGINES.items())


@pytest.mark.parametrize(
    "layout", [["3g.40gb", "4g.40gb", "1g.10gb"], ["2g.20gb"] * 4, ["1g.10gb"] * 8, ["7g.80gb", "1g.10gb"]]
)
def test_a_layout_without_room_is_found_out(layout: list[str]) -> None:
    """The check above can fail."""
    assert not fits(layout)


@pytest.mark.parametrize("name", profile_names())
def test_mig_devices_are_listed_as_nvml_does(name: str) -> None:
    """By GPU instance, then compute instance; only a GPU in MIG mode has any, and it has no NVLink on an A100."""
    for gpu in gpus(name):
        devices = gpu.mig_devices
        ids = [(device.gpu_instance, device.compute_instance) for device in devices]

        assert ids == sorted(ids)
        assert [device.mig_index for device in devices] == list(range(len(devices)))
        assert not devices or gpu.mig_enabled
        assert not (gpu.mig_enabled and gpu.links)


@pytest.mark.parametrize("name", profile_names())
def test_mig_instances_do_not_lie_within_each_other(name: str) -> None:
    """An id is a place in a tree: 0 the whole, 1 and 2 its halves, 3 to 6 quarters, 7 to 14 eighths."""
    for gpu in gpus(name):
        found = instances(gpu)
        for instance, devices in found.items():
            _, size = PLACEMENTS[whole(devices[0].profile)]
            assert len(above(instance)) == {8: 0, 4: 1, 2: 2, 1: 3}[size]
            assert not above(instance) & set(found)


def above(instance: int) -> set[int]:
    """The ids of all that a GPU instance's place lies within."""
    return {(instance - 1) // 2} | above((instance - 1) // 2) if instance else set()


@pytest.mark.parametrize("name", profile_names())
def test_mig_nodes_have_the_drivers_minors(name: str) -> None:
    """mig-minors: 1 config, 2 monitor, then 15 GPU instances a GPU minor with 8 compute instances each.

    Seen on a DGX A100: gpu4/gi7/access 606, gpu4/gi7/ci0/access 607.
    """
    assert cap(4, 7) == 606
    for gpu in gpus(name):
        for device in gpu.mig_devices:
            assert gpu.minor is not None
            instance = cap(gpu.minor, device.gpu_instance)
            wanted = (instance, instance + 1 + device.compute_instance)
            assert device.device_nodes == tuple(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in wanted)


def cap(minor: int, gpu_instance: int) -> int:
    return 3 + 15 * 9 * minor + 9 * gpu_instance


def test_mig_profile_has_every_kind_of_layout() -> None:
    """What MIG tests need: whole, empty, uniform, mixed, and a GPU instance that two share."""
    found = {gpu.index: [device.profile for device in gpu.mig.devices] for gpu in gpus("a100-mig") if gpu.mig}
    enabled = {gpu.index for gpu in gpus("a100-mig") if gpu.mig_enabled}

    assert enabled == {2, 3, 4, 5, 6, 7}
    assert found == {
        0: [],
        1: [],
        2: ["1g.10gb"] * 7,
        3: ["3g.40gb"] * 2,
        4: ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"],
        5: [],
        6: ["4g.40gb", "1c.3g.40gb", "2c.3g.40gb"],
        7: ["2g.20gb"] * 3 + ["1g.10gb+me"],
    }


def test_grace_has_an_imex_channel() -> None:
    """The one profile on which IMEX can be tried."""
    assert [n for n in profile_names() if any("imex" in node for node in machine(n).shared_nodes)] == ["gb200-nvl"]


@pytest.mark.parametrize("name", profile_names())
def test_an_entry_can_be_taken_out(name: str) -> None:
    """Of any GPU: the others are as before, and say nothing of one that is not there."""
    for gone in gpus(name):
        others = tuple(gpu for gpu in gpus(name) if gpu != gone)
        rest = machinefile.read_machine(msgspec.json.encode(machine(name).but(gpus=others)), name).gpus or ()

        assert [gpu.uuid for gpu in rest] == [gpu.uuid for gpu in others]
        for gpu in rest:
            assert set(gpu.distances) == {other.pci for other in rest} - {gpu.pci}
            assert gone.pci not in {link.peer for link in gpu.links}
