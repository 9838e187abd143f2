"""What is true of every document, of whatever machine and for whatever request."""

from collections.abc import Iterable
from typing import Any, TypeVar, get_args

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuplane.node.core.allocate.response import response_for_units as allocated
from gpuplane.node.core.containers.cdi.names import qualified_name
from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult, build_spec
from gpuplane.node.core.containers.cdi.specrequest import HookProgram, NamingStrategy, SpecMode, SpecOptions
from gpuplane.node.core.containers.cdi.validation import all_spec_problems, runtime_refusal_problems
from gpuplane.node.core.containers.cdi.version import CDI_VERSIONS
from gpuplane.node.core.kinds.nvidia.units import list_units
from gpuplane.node.model.cdi import ContainerEdits, Spec
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import DeviceNodeStat, DriverFile, DriverFiles, DriverLibrary, Fault, Gpu, Machine, Mig
from tests.node.hardware.nvidia.driver.machines import machines

T = TypeVar("T")
KIND = "k8s.device-plugin.nvidia.com/gpu"
NAMES = ("libnvidia-ml", "libGLX_nvidia", "libnvidia-allocator", "vdpau/libvdpau_nvidia", "libnvidia-tls")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib64/nvidia/current")
OTHERS = (
    *("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-fs0", "/dev/gdrdrv", "/dev/infiniband/rdma_cm"),
    *("/dev/infiniband/uverbs1", "/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch3", "/dev/nvidia-caps/nvidia-cap2"),
    *(f"/dev/nvidia-caps-imex-channels/channel{n}" for n in (0, 1, 2047)),
)
FILES = (
    DriverFile("/usr/bin/nvidia-smi"),
    DriverFile("/lib/firmware/nvidia/1/gsp_ga10x.bin"),
    DriverFile("/usr/share/vulkan/icd.d/nvidia_icd.json", container_path="/etc/vulkan/icd.d/nvidia_icd.json"),
    DriverFile("/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.1.2"),
    DriverFile("/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.1.2"),
    DriverFile("/usr/local/bin/nvidia-smi", container_path="/usr/bin/nvidia-smi"),
    DriverFile("/../../etc/../etc/shadow"),
)
FAULTS = (
    Fault(code="node-missing", message="/dev/nvidia0 does not exist"),
    Fault(code="xid-79", message="it has fallen off the bus"),
)
ROOTS = ("/", "/run/nvidia/driver", "/run/nvidia/driver/", "/home/kubernetes/bin/nvidia")
HOOKS = (None, HookProgram("/opt/gpuplane/bin/gpuplane-hook"), HookProgram("/usr/bin/nvidia-ctk", is_nvidia=True))
DISABLED = ("create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification", "all")
FLAGS = ("no-additional-gids-for-device-nodes", "disable-ipc-discoverer", "enable-coherent-annotations")


def some(things: Iterable[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(st.sampled_from(list(things)), unique_by=repr, max_size=4).map(tuple)


@st.composite
def libraries(draw: st.DrawFn, folder: str, name: str) -> DriverLibrary:
    base, version = name.rpartition("/")[2], draw(st.sampled_from(("570.172.08", "1.1.18")))
    soname = draw(st.sampled_from(("", f"{base}.so.1", f"{base}.so.{version}")))
    return DriverLibrary(
        f"{folder}/{name}.so.{version}", soname, draw(some((f"{base}.so", f"{base}.so.1", f"{base}.so.0")))
    )


@st.composite
def driver_files(draw: st.DrawFn) -> DriverFiles:
    cuda = () if seldom(draw) else ("libcuda",)
    found = [
        draw(libraries(folder, name))
        for folder in draw(st.lists(st.sampled_from(FOLDERS), min_size=1, max_size=2, unique=True))
        for name in (*cuda, *draw(st.lists(st.sampled_from(NAMES), max_size=6)))
    ]
    return DriverFiles(
        libraries=tuple({library.path: library for library in found}.values()),
        files=draw(some(FILES)),
        sockets=draw(some((DriverFile("/run/nvidia-persistenced/socket"), DriverFile("/tmp/nvidia-mps")))),
        gds_paths=draw(some(("/run/udev", "/etc/cufile.json"))),
    )


def seldom(draw: st.DrawFn) -> bool:
    """One time in many: most of a machine is well."""
    return draw(st.integers(0, 11)) == 7


@st.composite
def fitted(draw: st.DrawFn, gpu: Gpu) -> Gpu:
    """A GPU with DRM nodes, or with something wrong."""
    dri = (f"/dev/dri/card{gpu.index + 1}", f"/dev/dri/renderD{gpu.index + 128}")
    return gpu.but(
        dri=draw(st.sampled_from(((), dri, dri[1:]))),
        uuid=draw(st.sampled_from(("", "GPU-0", "GPU/9"))) if seldom(draw) else gpu.uuid,
        device_nodes=() if seldom(draw) else gpu.device_nodes,
        faults=draw(some(FAULTS)) if seldom(draw) else (),
    )


@st.composite
def found(draw: st.DrawFn) -> Machine:
    """Any machine, with any of the files of a driver, of any of whose nodes the numbers may be known."""
    machine = draw(machines(least=1))
    files = None if seldom(draw) else draw(driver_files())
    gpus = tuple(draw(fitted(gpu)) for gpu in machine.gpus or ())
    there = tuple(dict.fromkeys([*machine.shared_nodes, *draw(some(OTHERS))]))
    own = [path for gpu in gpus for path in (*gpu.device_nodes, *gpu.dri)]
    own += [path for gpu in gpus for device in gpu.mig_devices for path in device.device_nodes]
    numbers = st.builds(
        DeviceNodeStat,
        st.integers(1, 511),
        st.integers(0, 4096),
        st.sampled_from((0o666, 0o660, 0o444)),
        st.integers(0, 200),
    )
    return Machine(
        driver=machine.driver.but(files=files) if machine.driver is not None else None,
        gpus=None if seldom(draw) else gpus,
        shared_nodes=there,
        device_node_stats={path: draw(numbers) for path in (*there, *own) if draw(st.booleans())},
    )


def namings() -> st.SearchStrategy[tuple[NamingStrategy, ...]]:
    return st.lists(st.sampled_from(get_args(NamingStrategy)), min_size=1, unique=True).map(tuple)


def requests(**fixed: Any) -> st.SearchStrategy[SpecOptions]:
    asked: dict[str, st.SearchStrategy[Any]] = {
        "kind": st.just(KIND),
        "mode": st.just("gpu") | st.sampled_from(get_args(SpecMode)),
        "naming": namings(),
        "with_all_device": st.booleans(),
        "ids": st.sampled_from(((), ("all",))),
        "driver_root": st.sampled_from(ROOTS),
        "dev_root": st.sampled_from(ROOTS),
        "hook_program": st.sampled_from(HOOKS),
        "disabled_hooks": some(DISABLED),
        "feature_flags": some(FLAGS),
    }
    return st.builds(SpecOptions, **{**asked, **{key: st.just(value) for key, value in fixed.items()}})


def all_edits(spec: Spec) -> list[ContainerEdits]:
    return [spec.container_edits, *(device.container_edits for device in spec.devices)]


def defined(got: SpecBuildResult) -> dict[str, ContainerEdits]:
    return {device.name: device.container_edits for device in got.spec.devices} if got.spec is not None else {}


@given(found(), requests())
def test_every_document_is_good(machine: Machine, request: SpecOptions) -> None:
    """Nothing refuses it or stumbles over it, and an older version would be refused: it has the lowest."""
    got = build_spec(machine, request)
    if got.spec is None:
        return
    assert list(all_spec_problems(got.spec)) == []
    for version in CDI_VERSIONS[CDI_VERSIONS.index("0.3.0") : CDI_VERSIONS.index(got.spec.cdi_version)]:
        assert list(runtime_refusal_problems(got.spec.but(cdi_version=version)))


@given(found(), requests(), st.randoms(use_true_random=False))
def test_the_order_of_a_look_is_of_no_account(machine: Machine, request: SpecOptions, random: Any) -> None:
    """To the byte; so a document that is written again is the same where nothing has changed."""

    def other(things: Iterable[T]) -> tuple[T, ...]:
        shuffled = list(things)
        random.shuffle(shuffled)
        return tuple(shuffled)

    def turned(gpu: Gpu) -> Gpu:
        mig = Mig(enabled=gpu.mig.enabled, devices=other(gpu.mig.devices)) if gpu.mig else None
        return gpu.but(mig=mig, dri=other(gpu.dri))

    driver = machine.driver
    if driver is not None and driver.files is not None:
        files = DriverFiles(
            libraries=other(each.but(symlinks=other(each.symlinks)) for each in driver.files.libraries),
            files=other(driver.files.files),
            sockets=other(driver.files.sockets),
            gds_paths=other(driver.files.gds_paths),
        )
        driver = driver.but(files=files)
    again = machine.but(
        driver=driver,
        gpus=None if machine.gpus is None else other(map(turned, machine.gpus)),
        shared_nodes=other(machine.shared_nodes),
        device_node_stats=dict(other(machine.device_node_stats.items())),
    )
    assert msgspec.json.encode(build_spec(again, request)) == msgspec.json.encode(build_spec(machine, request))


@given(found(), requests(mode="gpu"))
def test_what_every_container_gets_is_not_said_again(machine: Machine, request: SpecOptions) -> None:
    got = build_spec(machine, request)
    for edits in defined(got).values():
        assert got.spec is not None
        common = got.spec.container_edits
        for field in ("env", "device_nodes", "mounts", "hooks", "additional_gids"):
            assert set(getattr(edits, field)).isdisjoint(getattr(common, field))


@given(found(), requests())
def test_no_path_leads_out_of_the_roots(machine: Machine, request: SpecOptions) -> None:
    got = build_spec(machine, request)
    for edits in all_edits(got.spec) if got.spec is not None else ():
        for mount in edits.mounts:
            assert mount.host_path.startswith(f"{request.driver_root.rstrip('/')}/")
            assert ".." not in mount.host_path.split("/")
        for node in edits.device_nodes:
            assert (node.host_path or node.path) == request.dev_root.rstrip("/") + node.path


@given(found(), requests(mode="gpu", ids=()))
def test_every_unit_has_a_device_or_a_reason(machine: Machine, request: SpecOptions) -> None:
    """By its name, and by the very names that an answer to Allocate has for it."""
    got = build_spec(machine, request.but(naming=("uuid", "index")))
    names = defined(got)
    for whole in (False, True):
        for unit, reason in list_units(machine, with_mig_devices=not whole, whole_mig_gpus=whole):
            if reason:
                continue
            assert unit.id in names or got.omission_reason_by_device.get(unit.id)
            if unit.id in names:
                assert unit.index in names or got.omission_reason_by_device
                for strategy in ("uuid", "index"):
                    settings = Settings(device_list_strategy=("cdi-cri",), device_id_strategy=strategy)
                    told = allocated((unit,), machine, settings, "nvidia.com/gpu").cdi_devices
                    assert told == (qualified_name(KIND, unit.id if strategy == "uuid" else unit.index),)


@given(found(), requests(mode="gpu"), st.data())
def test_a_gpu_that_breaks_changes_no_other(machine: Machine, request: SpecOptions, data: st.DataObject) -> None:
    """Each other device gives what it gave, and so do the edits of every container but for links to what is gone."""
    gpus = machine.gpus or ()
    assume(gpus and len({gpu.uuid for gpu in gpus}) == len(gpus))
    index = data.draw(st.integers(0, len(gpus) - 1))
    change = data.draw(st.sampled_from(({"uuid": ""}, {"device_nodes": ()}, {"faults": FAULTS[:1]})))
    broken = gpus[index].but(**change)
    plain = request.but(with_all_device=False)
    before, after = (
        build_spec(machine, plain),
        build_spec(machine.but(gpus=(*gpus[:index], broken, *gpus[index + 1 :])), plain),
    )
    kept = {name: edits for name, edits in defined(before).items() if name in defined(after)}
    assert kept == defined(after)
    gone = set(defined(before)) - set(defined(after))
    own = {gpus[index].uuid, *(device.uuid for device in (gpus[index].mig or Mig()).devices)}
    numbers = {str(gpus[index].index)}
    assert all(name in own or name.partition(":")[0].lstrip("gpumi") in numbers for name in gone)


@given(found(), requests(with_all_device=True))
def test_all_is_all_others_together(machine: Machine, request: SpecOptions) -> None:
    names = defined(build_spec(machine, request))
    if not names:
        return
    whole, others = names["all"], [edits for name, edits in names.items() if name != "all"] or [names["all"]]
    for field in ("env", "device_nodes", "mounts", "hooks", "additional_gids"):
        parts = [thing for edits in others for thing in getattr(edits, field)]
        assert set(getattr(whole, field)) == set(parts)
        assert len(getattr(whole, field)) == len(set(parts))


@given(found(), requests(mode="gpu", hook_program=HOOKS[1]))
def test_ours_is_called_once_or_not_at_all(machine: Machine, request: SpecOptions) -> None:
    """However many devices a container gets; and never where there is nothing for it to do."""
    got = build_spec(machine, request)
    if got.spec is None:
        return
    assert all(not device.container_edits.hooks for device in got.spec.devices)
    hooks = got.spec.container_edits.hooks
    assert len(hooks) <= 1
    assert all(len(hook.args) > 2 and hook.env and hook.timeout for hook in hooks)
