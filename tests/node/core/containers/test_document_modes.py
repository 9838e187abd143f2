"""Documents of what is no GPU, and of what is broken; written from NVIDIA's rules, by hand."""

from typing import Any, get_args

import pytest

from gpuplane.node.core.containers.cdi.hooks import DISABLE_NODE_MODIFICATION, UPDATE_APPLICATION_PROFILE
from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult
from gpuplane.node.core.containers.cdi.specrequest import HookProgram, SpecMode
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.machine import (
    Driver,
    DriverFile,
    DriverFiles,
    Fault,
    Gpu,
    Machine,
    Mig,
    MigDevice,
)
from tests.golden import Golden
from tests.node.core.containers.documents import (
    A100,
    CONTROL,
    DRIVER,
    FILES,
    MACHINE,
    OURS,
    VOID,
    a100_mig,
    given,
    made,
    mount,
    paths,
    spec,
)
from tests.texts import as_shown

# other modes

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
OTHERS = (
    *(f"{CHANNEL}{n}" for n in (0, 7)),
    *(f"/dev/nvidia-fs{n}" for n in (0, 1)),
    *("/dev/gdrdrv", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/umad0"),
    *("/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl", "/dev/nvidia-nvlink", "/dev/nvidia-caps/nvidia-cap1"),
)
NODE = MACHINE.but(
    shared_nodes=(*CONTROL, *OTHERS),
    gpus=(A100, a100_mig().gpus[3]),  # type: ignore[index]
)
MODES: dict[SpecMode, dict[str, list[str]]] = {  # the nodes of each device
    "imex": {"0": [f"{CHANNEL}0"], "7": [f"{CHANNEL}7"]},
    "gds": {"all": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]},
    "gdrcopy": {"all": ["/dev/gdrdrv"]},
    "mofed": {"all": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]},
    "nvswitch": {"all": ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"]},
    "management": {
        "all": [
            *("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1", "/dev/nvidia2"),
            *("/dev/nvidiactl", f"{CHANNEL}0", f"{CHANNEL}7"),
            *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (1, 147, 148, 156, 157)),
        ]
    },
}


def test_every_other_mode_is_below() -> None:
    assert {"gpu", *MODES} == set(get_args(SpecMode))


@pytest.mark.parametrize("mode", MODES)
def test_the_nodes_of_other_modes(mode: SpecMode) -> None:
    """Those that exist; nothing of the driver's files, but for management and for GPUDirect Storage."""
    got = spec(NODE, mode=mode, kind="nvidia.com/other", hook_program=OURS)
    assert {device.name: paths(device.container_edits) for device in got.devices} == MODES[mode]
    if mode == "management":
        assert got.container_edits == spec(
            hook_program=OURS, disabled_hooks=(DISABLE_NODE_MODIFICATION,)
        ).container_edits.but(device_nodes=())
    else:
        assert got.container_edits == ContainerEdits(env=(VOID,))
    storage = (mount("/etc/cufile.json"), mount("/run/udev")) if mode == "gds" else ()
    assert [device.container_edits.mounts for device in got.devices] == [storage] * len(got.devices)
    assert got.cdi_version == ("0.5.0" if mode == "imex" else "0.3.0")


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("imex", f"{CHANNEL}*"),
        ("gds", "/dev/nvidia-fs*"),
        ("gdrcopy", "/dev/gdrdrv"),
        ("mofed", "/dev/infiniband/uverbs*"),
        ("nvswitch", "/dev/nvidia-nvswitch*"),
        ("management", "/dev/nvidia*"),
    ],
)
def test_without_any_node_there_is_no_document(mode: SpecMode, what: str, golden: Golden) -> None:
    got = made(Machine(driver=DRIVER), mode=mode)
    assert got == SpecBuildResult(spec=None, omission_reason_by_device={what: got.omission_reason_by_device[what]})
    golden(got.omission_reason_by_device[what], "any")


def test_management_has_no_nodes_that_do_not_exist() -> None:
    """Of a GPU, or of a MIG device."""
    gone = (Fault(code="node-missing", message="/dev/c does not exist"),)
    there, away = (MigDevice(n, "1g.10gb", 3, device_nodes=(f"/dev/nvidia-caps/{n}",)) for n in ("there", "away"))
    split = A100.but(mig=Mig(enabled=True, devices=(there, away.but(faults=gone))))
    machine = MACHINE.but(gpus=(split, A100.but(index=1, device_nodes=("/dev/nvidia1",), faults=gone)), shared_nodes=())
    assert paths(given(machine, mode="management")["all"]) == ["/dev/nvidia2", "/dev/nvidia-caps/there"]


def test_imex_channels_that_do_not_exist_are_left() -> None:
    """Whatever was asked for: a configuration may want a channel that somebody makes later."""
    got = made(NODE, mode="imex", ids=("channel7", "1", "-1", "x"))
    assert got.spec is not None
    assert [device.name for device in got.spec.devices] == ["7"]
    assert got.omission_reason_by_device.keys() == {f"{CHANNEL}{id}" for id in ("1", "-1", "x")}
    assert made(NODE, mode="imex", ids=("1",)).spec is None


# what is broken


@pytest.mark.parametrize("mode", ["management"])
def test_management_does_without_cuda(mode: SpecMode) -> None:
    """It looks after GPUs that nobody computes on; what it misses is told."""
    got = made(NODE.but(driver=Driver(files_error="/driver: no such directory")), mode=mode, hook_program=OURS)
    assert got.spec is not None
    assert paths(got.spec.devices[0].container_edits) == MODES[mode]["all"]
    assert got.notes == ("/driver: no such directory",)
    assert got.spec.container_edits.hooks == ()


def test_a_management_container_may_make_device_nodes() -> None:
    """As with nvidia-container-toolkit 1.20 (pkg/nvcdi/options.go; the application profile is of common-nvml.go alone):
    what forbids it is left undone, unless it is asked for by name."""

    def done(hook: HookProgram, *enabled: str) -> str:
        got = spec(NODE, mode="management", hook_program=hook, enabled_hooks=enabled)
        return " ".join(argument for each in got.container_edits.hooks for argument in each.args)

    assert "--params" not in done(OURS)
    assert "--params" in done(OURS, DISABLE_NODE_MODIFICATION)
    assert "--compat" in done(OURS)
    theirs = HookProgram("/usr/bin/nvidia-cdi-hook", is_nvidia=True)
    assert DISABLE_NODE_MODIFICATION not in done(theirs)
    assert DISABLE_NODE_MODIFICATION in done(theirs, DISABLE_NODE_MODIFICATION)
    assert "update-ldcache" in done(theirs)
    assert "enable-cuda-compat" in done(theirs)
    assert UPDATE_APPLICATION_PROFILE not in done(theirs, UPDATE_APPLICATION_PROFILE)


NVML_ONLY = FILES.but(libraries=FILES.libraries[1:3])


@pytest.mark.parametrize(
    "driver",
    [
        None,
        Driver(),
        Driver(files_error="/driver/usr: permission denied"),
        DRIVER.but(files=NVML_ONLY),
    ],
    ids=["no driver", "no files", "files that cannot be read", "no libcuda"],
)
def test_without_libcuda_every_gpu_is_left(driver: Driver | None, golden: Golden) -> None:
    """A container would start, and find no GPU: better that it is not given one, and that the node says why."""
    got = made(MACHINE.but(driver=driver), driver_root="/driver")
    assert got.spec is None
    assert got.omission_reason_by_device.keys() == {"GPU-a"}
    assert len(got.notes) == 1
    assert as_shown(got.omission_reason_by_device["GPU-a"]).endswith(f": {got.notes[0]}")
    golden(got.omission_reason_by_device["GPU-a"])


@pytest.mark.parametrize(
    ("broken", "key"),
    [
        ({"uuid": ""}, "/dev/nvidia9"),
        ({"uuid": "", "device_nodes": ()}, "device 1"),
        ({"device_nodes": (), "minor": None}, "GPU-b"),
        (
            {"device_nodes": (), "faults": (Fault(code="gpu-lost", message="it is lost"),)},
            "GPU-b",
        ),
        (
            {"faults": (Fault(code="node-missing", message="/dev/nvidia9 does not exist"),)},
            "GPU-b",
        ),
        ({"uuid": "GPU-a"}, "/dev/nvidia9"),
        ({"uuid": "GPU/b"}, "GPU/b"),
        ({"mig": Mig(enabled=True)}, "GPU-b"),
    ],
    ids=[
        "no UUID", "neither UUID nor node", "no node", "lost", "a node is missing", "a UUID twice", "a bad UUID",
        "MIG mode",
    ],
)  # fmt: skip
def test_a_broken_gpu_is_left_and_the_other_is_as_it_was(broken: dict[str, Any], key: str, golden: Golden) -> None:
    gpu = Gpu(index=1, uuid="GPU-b", device_nodes=("/dev/nvidia9",)).but(**broken)
    got = made(MACHINE.but(gpus=(gpu, A100)), hook_program=OURS)
    assert got.omission_reason_by_device.keys() == {key}
    golden(got.omission_reason_by_device[key])
    assert got.spec == spec(hook_program=OURS)


def test_an_ill_gpu_that_has_its_node_is_a_device() -> None:
    """Whether it may be given out is not for a document to say: a container that has it goes on having it."""
    machine = MACHINE.but(gpus=(A100.but(faults=(Fault(code="xid-79", message="fallen off the bus"),)),))
    assert made(machine) == made()


@pytest.mark.parametrize(
    "broken",
    [
        {"device_nodes": ("/dev/c",)},
        {"faults": (Fault(code="node-missing", message="no line for gpu2/gi3"),)},
        {"uuid": "MIG-GPU-a/3/0"},
    ],
    ids=["no nodes", "a node is missing", "a bad UUID"],
)
def test_a_broken_mig_device_is_left_and_its_neighbour_is_not(broken: dict[str, Any], golden: Golden) -> None:
    well = MigDevice("MIG-a", "1g.10gb", 3, device_nodes=("/dev/a", "/dev/b"))
    ill = MigDevice("MIG-b", "1g.10gb", 4, mig_index=1, device_nodes=("/dev/c", "/dev/d")).but(**broken)
    got = made(MACHINE.but(gpus=(A100.but(mig=Mig(enabled=True, devices=(ill, well))),)))
    assert ill.uuid in got.omission_reason_by_device
    golden(got.omission_reason_by_device[ill.uuid])
    assert got.spec is not None
    assert [device.name for device in got.spec.devices] == ["MIG-a"]


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_that_claim_one_name_the_first_has_it(turn: int) -> None:
    """Whichever was seen first: of MIG devices the lower slot, of files for one place the first by path."""
    twins = [MigDevice("MIG-a", "1g.10gb", 3 + n, mig_index=n, device_nodes=(f"/dev/{n}", "/dev/x")) for n in (0, 1)][
        ::turn
    ]
    files = [DriverFile(f"/{each}/nvidia-smi", container_path="/usr/bin/nvidia-smi") for each in "ab"][::turn]
    machine = MACHINE.but(
        gpus=(A100.but(mig=Mig(enabled=True, devices=tuple(twins))),),
        driver=DRIVER.but(files=FILES.but(files=tuple(files))),
    )
    got = made(machine)
    assert got.spec is not None
    assert paths(got.spec.devices[0].container_edits) == ["/dev/0", "/dev/nvidia2", "/dev/x"]
    assert "0:0" in as_shown(got.omission_reason_by_device["/dev/nvidia2"])
    assert "MIG-a" in as_shown(got.omission_reason_by_device["/dev/nvidia2"])
    assert mount("/a/nvidia-smi", "/usr/bin/nvidia-smi") in got.spec.container_edits.mounts


def test_gpus_that_were_not_counted_make_no_document() -> None:
    assert made(MACHINE.but(gpus=None)) == SpecBuildResult(spec=None)


def test_what_a_container_may_miss_is_told(golden: Golden) -> None:
    libraries = tuple(each for each in FILES.libraries if "libcuda" in each.path)
    got = made(MACHINE.but(driver=DRIVER.but(files=DriverFiles(libraries=libraries), files_error="two versions")))
    assert got.spec is not None
    assert len(got.notes) == 4
    golden(got.notes)


def test_a_device_that_would_give_nothing_is_left(golden: Golden) -> None:
    """A device without edits would make the whole document invalid."""
    got = made(MACHINE.but(gpus=(A100, A100.but(index=1, uuid="GPU-odd", device_nodes=("/dev/nvidiactl",)))))
    assert got.omission_reason_by_device.keys() == {"GPU-odd"}
    golden(got.omission_reason_by_device["GPU-odd"])
    assert got.spec == spec()
