"""Many files: which devices a runtime knows of them, and what a container sees of several devices."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.containers.cdi.effectiveedits import concatenate_edits, drop_overridden_edits
from gpuplane.node.core.containers.cdi.registry import (
    Registry,
    SpecFile,
    UnresolvableDevices,
    build_registry,
    parse_spec_file,
    resolve_devices,
)
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Hook, Mount
from tests.golden import Golden

DATA = Path(__file__).with_name("testdata")
GPU = "nvidia.com/gpu"


def spec(*names: str, value: str = "1", kind: str = GPU) -> bytes:
    """A specification of devices that each give a variable, and all of them another."""
    devices = ", ".join(f'{{name: "{name}", containerEdits: {{env: [DEVICE={value}]}}}}' for name in names)
    return (
        f"cdiVersion: 0.5.0\nkind: {kind}\ndevices: [{devices}]\ncontainerEdits: {{env: [COMMON={value}]}}\n".encode()
    )


def files(*given: tuple[str, int, bytes | OSError]) -> Registry:
    return build_registry(parse_spec_file(path, data, priority) for path, priority, data in given)


def test_devices_of_several_files_are_known_by_their_qualified_names() -> None:
    """In their order, with the file that defines each."""
    known = files(("/etc/cdi/a.yaml", 0, spec("1", "0")), ("/run/b.json", 1, spec("0", kind="amd.com/gpu")))

    assert {name: each.file.path for name, each in known.devices.items()} == {
        "amd.com/gpu=0": "/run/b.json",
        "nvidia.com/gpu=0": "/etc/cdi/a.yaml",
        "nvidia.com/gpu=1": "/etc/cdi/a.yaml",
    }
    assert (known.conflicting_files_by_device, known.problem_by_file) == ({}, {})


def test_a_later_directory_has_priority() -> None:
    """For the device that both define, and for that alone; with it comes what its file gives with any."""
    known = files(("/run/b", 1, spec("0", value="new")), ("/etc/a", 0, spec("0", "1", value="old")))

    assert known.devices[f"{GPU}=0"].overridden_files == ("/etc/a",)
    assert resolve_devices(known, [f"{GPU}=0"]).env == ("COMMON=new", "DEVICE=new")
    assert resolve_devices(known, [f"{GPU}=1"]).env == ("COMMON=old", "DEVICE=old")


def test_files_of_equal_priority_that_define_a_device_take_it_away() -> None:
    """Their other devices stay; a file of a higher priority does not give it back, as in the runtimes' library."""
    known = files(("/etc/a", 0, spec("0", "1")), ("/etc/b", 0, spec("0", "2")), ("/run/c", 1, spec("0")))

    assert list(known.devices) == [f"{GPU}=1", f"{GPU}=2"]
    assert known.conflicting_files_by_device == {f"{GPU}=0": ("/etc/a", "/etc/b")}


def test_a_conflict_above_takes_away_what_is_below() -> None:
    """The files that are in conflict are those of equal priority."""
    known = files(("/etc/a", 0, spec("0")), ("/run/b", 1, spec("0")), ("/run/c", 1, spec("0")))

    assert (dict(known.devices), known.conflicting_files_by_device) == ({}, {f"{GPU}=0": ("/run/b", "/run/c")})


def test_a_broken_file_counts_for_nothing_and_the_others_for_all(golden: Golden) -> None:
    """Its problem is told with the line, and how many more there are; one that cannot be read with why."""
    denied = PermissionError(13, "Permission denied", "/etc/c")
    known = files(
        ("/etc/a", 0, spec("0")),
        ("/etc/b", 0, b"kind: x\ndevices: []\ncdi: 1\n"),
        ("/etc/c", 0, denied),
        ("/etc/d", 0, b"\xff"),
    )

    assert list(known.devices) == [f"{GPU}=0"]
    assert known.problem_by_file.keys() == {"/etc/b", "/etc/c", "/etc/d"}
    assert known.problem_by_file["/etc/b"].startswith("/etc/b:1: cdiVersion")
    assert known.problem_by_file["/etc/d"].startswith("/etc/d:1: ")
    golden(known.problem_by_file.values())


@pytest.mark.parametrize(
    "name",
    [
        f"{GPU}=x",
        f"{GPU}=A",
        "amd.com/gpu=0",
        "k8s.device-plugin.nvidia.com/gds=all",
        f"{GPU}=a",
        "10",
        "",
        "nvidia.com/gpu=",
    ],
)
def test_why_a_device_cannot_be_resolved(name: str, golden: Golden) -> None:
    """And what there is, or what was meant."""
    known = files(("/etc/a", 0, spec("0", "10", "11", "a")), ("/etc/b", 0, spec("a")))

    with pytest.raises(UnresolvableDevices) as unresolvable:
        resolve_devices(known, [f"{GPU}=0", name])

    assert unresolvable.value.reasons.keys() == {name}
    golden(unresolvable.value.reasons[name], name)


def test_a_file_that_counts_for_nothing_may_have_been_meant_to_define_a_device(golden: Golden) -> None:
    """So its problem is told too; and where nothing is defined, no list is."""
    known = files(("/etc/a", 0, b""), ("/etc/b", 0, b""))

    with pytest.raises(UnresolvableDevices) as unresolvable:
        resolve_devices(known, [f"{GPU}=0", f"{GPU}=1"])

    golden(str(unresolvable.value))


def test_many_names_are_not_all_listed(golden: Golden) -> None:
    """Eight of them, and how many more there are."""
    known = files(("/etc/a", 0, spec(*map(str, range(10, 30)))))

    with pytest.raises(UnresolvableDevices) as unresolvable:
        resolve_devices(known, [f"{GPU}=x"])
    golden(str(unresolvable.value))


def test_what_a_container_sees_of_two_gpus_of_nvidias() -> None:
    """What the file gives with any device comes once and first; then each device's, in the order of the names."""
    known = files(("nvidia.yaml", 0, (DATA / "nvidia.yaml").read_bytes()))
    edits = resolve_devices(known, [f"{GPU}=1", f"{GPU}=0"])

    assert [node.path for node in edits.device_nodes] == [
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidiactl",
        "/dev/nvidia1",
        "/dev/nvidia0",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    assert edits.env == ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu", "NVIDIA_VISIBLE_DEVICES=void")
    assert len(edits.hooks) == 5
    assert len(edits.mounts) == 4


def test_what_holds_where_edits_meet() -> None:
    """The last of each variable, node and mount; every hook; each group once and never 0; mounts by their depth."""
    hook = Hook("createContainer", "/a")
    one = ContainerEdits(
        env=("A=1", "B=1"),
        device_nodes=(DeviceNode("/dev/a", major=1), DeviceNode("/dev/b")),
        hooks=(hook,),
        mounts=(Mount("/old", "/x/y/"), Mount("/n", "/x//y/z"), Mount("/m", "/x")),
        additional_gids=(0, 44),
    )
    two = ContainerEdits(
        env=("C=2", "A=2"),
        device_nodes=(DeviceNode("/dev/a", major=2),),
        hooks=(hook,),
        mounts=(Mount("/new", "/x/y/"),),
        additional_gids=(44, 7),
    )

    assert drop_overridden_edits(concatenate_edits((one, two))) == ContainerEdits(
        env=("A=2", "B=1", "C=2"),
        device_nodes=(DeviceNode("/dev/b"), DeviceNode("/dev/a", major=2)),
        hooks=(hook, hook),
        mounts=(Mount("/m", "/x"), Mount("/new", "/x/y/"), Mount("/n", "/x//y/z")),
        additional_gids=(44, 7),
    )


names = st.sampled_from(("0", "1", "2"))
some = st.lists(
    st.builds(
        lambda path, priority, held: parse_spec_file(f"/{priority}/{path}", spec(*held), priority),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.lists(names, min_size=1, unique=True),
    ),
    unique_by=lambda file: file.path,
)


@given(some)
def test_the_order_in_which_files_are_read_means_nothing(given: list[SpecFile]) -> None:
    """Nor can a device be both known and in conflict; what is known can be resolved, alone and with all others."""
    known = build_registry(given)

    assert build_registry(reversed(given)) == known
    assert not known.devices.keys() & known.conflicting_files_by_device.keys()
    assert resolve_devices(known, list(known.devices)) is not None
    for name, defined in known.devices.items():
        priorities = [
            file.priority
            for file in given
            if file.spec and name.endswith(tuple(f"={device.name}" for device in file.spec.devices))
        ]
        assert defined.file.priority == max(priorities)
        assert len(set(priorities)) == len(priorities)
