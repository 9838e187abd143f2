"""What a document holds: GPUs, MIG devices, names, roots, nodes.

What is expected was written from NVIDIA's rules (nvidia-container-toolkit 1.20), by hand.
"""

from typing import Any

import msgspec
import pytest

from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Spec
from gpuplane.node.model.machine import (
    DeviceNodeStat,
    DriverFile,
    Machine,
    Mig,
    MigDevice,
)
from tests.golden import Golden
from tests.node.core.containers.documents import (
    A100,
    CONTROL,
    CONTROLLED,
    DRAWN,
    DRIVER,
    FILES,
    HOOK,
    KIND,
    LIB,
    MACHINE,
    OURS,
    VOID,
    a100_mig,
    arguments,
    given,
    made,
    mounted,
    node,
    paths,
    spec,
)
from tests.texts import as_shown


def test_a_whole_gpu() -> None:
    """Its node, by its minor number; for all: control nodes, the driver's files, and one entry that does the rest."""
    assert made(hook_program=OURS) == SpecBuildResult(
        spec=Spec(
            cdi_version="0.3.0",
            kind=KIND,
            devices=(CdiDevice("GPU-a", {}, ContainerEdits(device_nodes=(node("/dev/nvidia2", 195, 2),))),),
            container_edits=ContainerEdits(
                env=(f"NVIDIA_CTK_LIBCUDA_DIR={LIB}", VOID),
                device_nodes=CONTROLLED,
                hooks=(HOOK,),
                mounts=mounted(),
            ),
        )
    )


def test_on_the_wire_it_has_nothing_that_it_does_not_need() -> None:
    """A number of a node may be 0, and is written then; all that has no value is not written."""
    machine = Machine(shared_nodes=("/dev/gdrdrv",), device_node_stats={"/dev/gdrdrv": DeviceNodeStat(239, 0)})
    got = spec(machine, kind="nvidia.com/gdrcopy", mode="gdrcopy")
    assert msgspec.json.decode(msgspec.json.encode(got)) == {
        "cdiVersion": "0.3.0",
        "kind": "nvidia.com/gdrcopy",
        "devices": [
            {
                "name": "all",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/gdrdrv",
                            "type": "c",
                            "major": 239,
                            "minor": 0,
                            "fileMode": 0o666,
                            "permissions": "rwm",
                        }
                    ]
                },
            }
        ],
        "containerEdits": {"env": [VOID]},
    }


# MIG

MIG = {  # index → minor of the GPU, and those of the GPU instance's and the compute instance's capabilities:
    # 3 + 135 x minor + 9 x GPU instance, and one more + compute instance (/proc/driver/nvidia-caps/mig-minors)
    "2:0": (0, 66, 67),
    "2:1": (0, 75, 76),
    "2:2": (0, 84, 85),
    "2:3": (0, 93, 94),
    "2:4": (0, 102, 103),
    "2:5": (0, 111, 112),
    "2:6": (0, 120, 121),
    "3:0": (1, 147, 148),
    "3:1": (1, 156, 157),
    "4:0": (6, 831, 832),
    "4:1": (6, 840, 841),
    "4:2": (6, 894, 895),
    "4:3": (6, 903, 904),
    "6:0": (4, 552, 553),
    "6:1": (4, 561, 562),
    "6:2": (4, 561, 563),
    "7:0": (5, 705, 706),
    "7:1": (5, 723, 724),
    "7:2": (5, 732, 733),
    "7:3": (5, 759, 760),
}


def test_mig_devices_stand_for_their_gpu(golden: Golden) -> None:
    """The GPU's node and two capabilities each. A GPU in MIG mode is no device, also where it has no MIG devices."""
    got = given(a100_mig(), naming=("index",))
    assert paths(got.pop("0")) == ["/dev/nvidia2"]
    assert paths(got.pop("1")) == ["/dev/nvidia3"]
    assert {name: paths(edits) for name, edits in got.items()} == {
        name: [f"/dev/nvidia{minor}", *(f"/dev/nvidia-caps/nvidia-cap{each}" for each in caps)]
        for name, (minor, *caps) in MIG.items()
    }
    left = made(a100_mig()).omission_reason_by_device
    assert len(left) == 6
    golden(left["GPU-a1003160-0000-4000-8000-000000000005"], "no MIG devices")
    golden(left["GPU-a1003160-0000-4000-8000-000000000006"], "MIG devices")


def test_of_mig_devices_those_with_graphics_have_drm_nodes() -> None:
    devices = tuple(
        MigDevice(uuid=f"MIG-{n}", profile=profile, gpu_instance=n, mig_index=n, device_nodes=(f"/dev/c{n}", "/dev/d"))
        for n, profile in enumerate(("1g.24gb+gfx", "1g.24gb", "1g.24gb-me"))
    )
    gpu = A100.but(mig=Mig(enabled=True, devices=devices), dri=("/dev/dri/card1",))
    got = spec(MACHINE.but(gpus=(gpu,)), hook_program=OURS)
    assert [paths(device.container_edits) for device in got.devices] == [
        ["/dev/c0", "/dev/d", "/dev/nvidia2", "/dev/dri/card1"],
        ["/dev/c1", "/dev/d", "/dev/nvidia2"],
        ["/dev/c2", "/dev/d", "/dev/nvidia2"],
    ]
    assert "--link-if=../card1::/dev/dri/by-path/pci-0000:07:00.0-card" in arguments(got)[0]


# names


@pytest.mark.parametrize(
    ("names", "whole", "part"),
    [
        (("uuid",), ["GPU-a1003160-0000-4000-8000-000000000000"], ["MIG-a1003160-0006-4000-8000-000000000201"]),
        (("index",), ["0"], ["6:2"]),
        (("type-index",), ["gpu0"], ["mig6:2"]),
        (
            ("index", "uuid"),
            ["0", "GPU-a1003160-0000-4000-8000-000000000000"],
            ["6:2", "MIG-a1003160-0006-4000-8000-000000000201"],
        ),
    ],
)
def test_each_way_of_naming(names: tuple[str, ...], whole: list[str], part: list[str]) -> None:
    """By each name a device gives the same. A name that begins with a digit needs CDI 0.5.0."""
    got = spec(a100_mig(), naming=names, ids=("0", "6:2"))
    assert [device.name for device in got.devices] == [*sorted([*whole, *part])]
    edits = {device.name: device.container_edits for device in got.devices}
    assert all(edits[name] == edits[whole[0]] for name in whole)
    assert all(edits[name] == edits[part[0]] for name in part)
    assert got.cdi_version == ("0.5.0" if "index" in names else "0.3.0")


def test_a_device_that_is_all() -> None:
    """It gives what all the others give, each thing once; a document that has such a device gets no other."""
    got = given(a100_mig(), naming=("index", "uuid"), ids=("1", "6"), with_all_device=True)
    assert paths(got["all"]) == [
        "/dev/nvidia3",
        "/dev/nvidia4",
        *(f"/dev/nvidia-caps/nvidia-cap{each}" for each in (552, 553, 561, 562, 563)),
    ]
    assert list(given(MACHINE, mode="management", with_all_device=True)) == ["all"]


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ((), ["0", "1", *MIG]),
        (("all",), ["0", "1", *MIG]),
        (("0",), ["0"]),
        (("GPU-a1003160-0000-4000-8000-000000000001", "6:1"), ["1", "6:1"]),
        (("MIG-a1003160-0003-4000-8000-000000000200",), ["3:1"]),
        (("0000:0f:00.0",), ["1"]),
        (("00000000:0F:00.0",), ["1"]),  # as nvidia-smi writes it
        (("3",), ["3:0", "3:1"]),
        (("1", "1", "1"), ["1"]),
        (("none",), ["none"]),
    ],
)
def test_a_selection(ids: tuple[str, ...], names: list[str]) -> None:
    """By index, UUID, PCI address; a GPU in MIG mode means its MIG devices."""
    assert list(given(a100_mig(), naming=("index",), ids=ids)) == names


def test_none_gives_a_container_the_driver_and_no_device() -> None:
    got = spec(ids=("none",))
    assert got.devices == (CdiDevice("none", {}, ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))),)
    assert got.container_edits.mounts
    assert spec(ids=("none",), with_all_device=True) == got


@pytest.mark.parametrize(
    "asked",
    [
        {"ids": ("1",)},
        {"ids": ("0", "GPU-x", "")},
        {"ids": ("none", "0")},
        {"ids": ("0",), "mode": "gds"},
    ],
)
def test_an_unknown_id_is_an_error(asked: dict[str, Any], golden: Golden) -> None:
    with pytest.raises(ValueError) as error:
        made(**asked)
    golden(str(error.value), " ".join(asked["ids"]))


# roots


@pytest.mark.parametrize(
    ("dev_root", "host", "version"), [("/", "", "0.3.0"), ("/run/nvidia/driver", "/run/nvidia/driver", "0.5.0")]
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_driver_in_a_container(dev_root: str, host: str, version: str, slash: str) -> None:
    """Its files are below its root, and in a container where that root has them. Nodes are below the root of /dev."""
    got = spec(driver_root=f"/run/nvidia/driver{slash}", dev_root=dev_root, hook_program=OURS)
    assert got.cdi_version == version
    assert got.container_edits.mounts == mounted("/run/nvidia/driver")
    assert got.container_edits.hooks == (HOOK,)
    nodes = [*got.container_edits.device_nodes, *got.devices[0].container_edits.device_nodes]
    assert [each.host_path for each in nodes] == [(host and host + each.path) for each in nodes]
    assert [each.but(host_path="") for each in nodes] == [*CONTROLLED, node("/dev/nvidia2", 195, 2)]


def test_a_path_that_leads_out_of_a_root_is_taken_to_lie_in_it() -> None:
    files = FILES.but(files=(DriverFile("/usr/../../../etc/shadow"),))
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)), driver_root="/driver")
    assert "/driver/etc/shadow" in [each.host_path for each in got.container_edits.mounts]


# nodes


def test_drm_nodes_come_with_their_groups() -> None:
    """A node that is not everybody's is a group's, and the container's processes are put into it (CDI 0.7.0)."""
    got = spec(DRAWN, hook_program=OURS)
    assert got.cdi_version == "0.7.0"
    assert got.devices[0].container_edits == ContainerEdits(
        device_nodes=(
            node("/dev/nvidia2", 195, 2),
            node("/dev/dri/card1", 226, 1, 0o660, gid=44),
            node("/dev/dri/renderD128", 226, 128, 0o660, gid=110),
        ),
        additional_gids=(44, 110),
    )
    assert arguments(got)[0][6:8] == (
        "--link-if=../card1::/dev/dri/by-path/pci-0000:07:00.0-card",
        "--link-if=../renderD128::/dev/dri/by-path/pci-0000:07:00.0-render",
    )


def test_without_groups_where_the_feature_flag_says_so() -> None:
    got = spec(DRAWN, feature_flags=("no-additional-gids-for-device-nodes",))
    assert got.cdi_version == "0.3.0"
    assert got.devices[0].container_edits.additional_gids == ()
    assert got.devices[0].container_edits.device_nodes[1].gid == 44


def test_a_group_that_is_not_needed_is_not_given() -> None:
    """Everybody may open it: its group is of no account."""
    machine = MACHINE.but(device_node_stats={**CONTROL, "/dev/nvidia2": DeviceNodeStat(195, 2, mode=0o666, gid=44)})
    edits = given(machine)["GPU-a"]
    assert edits.device_nodes[0].gid == 44
    assert edits.additional_gids == ()


def test_a_node_of_unknown_numbers_is_left_to_the_runtime() -> None:
    """It then asks the host's node."""
    assert given(MACHINE.but(device_node_stats={}))["GPU-a"].device_nodes == (
        DeviceNode("/dev/nvidia2", permissions="rwm"),
    )


def test_what_is_left_out_is_told_once_for_each_reason(golden: Golden) -> None:
    """It changes nothing else: what was found is given."""
    many = {f"/usr/lib/{name}": "/usr/lib is owned by uid 12" for name in "abcd"}
    got = made(MACHINE.but(insecure_files={**many, "/tmp/nvidia-mps": "/tmp/nvidia-mps is a link"}))

    assert got.spec == made(MACHINE).spec
    assert len(got.notes) == 2
    golden(got.notes)


def test_control_nodes_that_do_not_exist_are_given_where_cuda_needs_them() -> None:
    """By the numbers that they would have: a runtime makes a container's nodes itself. That one is missing is told."""
    got = made(MACHINE.but(shared_nodes=("/dev/nvidiactl",)))
    assert got.spec is not None
    assert paths(got.spec.container_edits) == ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    assert got.notes == ("/dev/nvidia-uvm does not exist",)

    left = {"/dev/nvidia-uvm": "/dev is writable by others"}
    [note] = made(MACHINE.but(shared_nodes=("/dev/nvidiactl",), insecure_files=left)).notes
    assert "/dev/nvidia-uvm" in as_shown(note)
    assert left["/dev/nvidia-uvm"] in as_shown(note)

    unknown = {path: each for path, each in MACHINE.device_node_stats.items() if path != "/dev/nvidia-uvm"}
    got = made(MACHINE.but(shared_nodes=("/dev/nvidiactl",), device_node_stats=unknown))
    assert got.spec is None, "the driver of the node is not loaded: no CUDA program could start"
    assert {as_shown(why) for why in got.omission_reason_by_device.values()} == {
        "no container could use it: /dev/nvidia-uvm does not exist"
    }
