"""What one look tells: the code of the driver's process, in this process, over the stand-in for the library."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.observation import merge_observation
from gpuplane.node.hardware.described import profiles
from gpuplane.node.hardware.described.failures import observed_facts
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.nvidia.driver.channel import SkippedGpu
from gpuplane.node.hardware.nvidia.driver.errors import gpu_crash_fault, gpu_hang_fault
from gpuplane.node.hardware.nvidia.driver.miginstances import profile_name
from gpuplane.node.hardware.nvidia.driver.observation import THOROUGH_OBSERVATION_INTERVAL
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Fault, Gpu, InjectedFailure, Machine, MachineFile, Mig
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.machines import CALLS, changed, failures, machines
from tests.texts import as_shown
from tests.trees import may_make_nodes


def described(machine: MachineFile) -> Machine:
    """What a look at it shows when all goes well, without its nodes' numbers."""
    return Machine(**{field: getattr(machine, field) for field in Machine.__struct_fields__}).but(device_node_stats={})


def told(machine: Machine) -> Machine:
    """What a look showed, without its nodes' numbers and the reason why its driver has no files."""
    return machine.but(driver=machine.driver and machine.driver.but(files_error=""), device_node_stats={})


def but_distances(gpu: Gpu) -> Gpu:
    """A GPU apart from what it says of others."""
    return gpu.but(distances={})


def but_card(gpu: Gpu) -> Gpu:
    """A GPU apart from what it can be partitioned into, and its instances: what is not told is no fault."""
    mig = gpu.mig and gpu.mig.but(profiles=(), instances=None, needs_reset=None)
    return gpu.but(mig=mig, pci_id="", pci_subsystem="")


def test_everything_that_nvml_tells_is_told(inside: Inside, rich: MachineFile) -> None:
    """Every field of a machine with NVLinks, NVSwitches, MIG in all namings, IMEX channels and odd addresses."""
    assert told(inside.start(rich).observe(())) == described(rich)


@pytest.mark.parametrize("name", profiles.profile_names())
def test_every_profile_is_what_its_driver_would_tell(inside: Inside, name: str) -> None:
    """The machines that are shipped are machines that NVML could tell of."""
    machine = read_machine(profiles.find_machine_file(name).read_bytes(), name)

    seen, wanted = told(inside.start(machine).observe(())), described(machine)
    for field in Machine.__struct_fields__:
        assert (field, getattr(seen, field)) == (field, getattr(wanted, field))


def test_a_gpu_at_the_address_of_a_switch_of_the_machine_before_is_none(inside: Inside) -> None:
    """The stand-in forgets what it was, in whatever order tests describe their machines."""
    switches, gpus = (
        read_machine(profiles.find_machine_file(name).read_bytes(), name) for name in ("big-16", "hgx-b200")
    )
    assert {*switches.switches} & {gpu.pci for gpu in gpus.gpus or ()}
    inside.start(switches)

    assert inside.start(gpus).observe(()).switches == gpus.switches


@pytest.mark.parametrize("name", ["rich", *profiles.profile_names()])
def test_nodes_have_the_numbers_that_are_described(
    inside: Inside, rich: MachineFile, name: str, tmp_path: Path
) -> None:
    """With who may use them, and whether they are linked; those that are missing have theirs too."""
    if not may_make_nodes(tmp_path):
        pytest.skip("needs to make device nodes: CAP_MKNOD")
    machine = rich if name == "rich" else read_machine(profiles.find_machine_file(name).read_bytes(), name)

    assert inside.start(machine).observe(()).device_node_stats == machine.device_node_stats


@given(machine=machines())
def test_any_machine_is_told_whole(inside: Inside, machine: MachineFile) -> None:
    """And told the same again by the next look, which asks less."""
    observer = inside.start(machine)

    assert told(observer.observe(())) == described(machine)
    assert told(observer.observe(())) == described(machine)


@given(data=st.data(), machine=machines(least=1))
def test_a_query_that_fails_is_a_fault_of_its_gpu_alone(
    inside: Inside, data: st.DataObject, machine: MachineFile
) -> None:
    """After a look at it whole, it is just as after a look at the described machine; the other GPUs are told whole."""
    failing = data.draw(st.lists(failures(len(machine.gpus or ())), min_size=1, max_size=2))
    file = machine.but(failures=tuple(failing))
    (look,) = (fact.machine for fact in observed_facts(file, "file") if isinstance(fact, MachineObserved))
    shown = merge_observation(described(machine), look).gpus or ()

    seen = merge_observation(described(machine), inside.start(file).observe(())).gpus or ()

    assert [but_card(but_distances(gpu)) for gpu in seen] == [but_card(but_distances(gpu)) for gpu in shown]


def test_faults_are_told_in_the_order_of_asking(inside: Inside) -> None:
    """By the driver's process and by a described machine."""
    machine = read_machine(profiles.find_machine_file("hgx-h100").read_bytes(), "hgx-h100")
    failing = ("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetFieldValues")
    file = machine.but(
        failures=tuple(InjectedFailure(effect="error", nvml_function=call, gpu=0, error="UNKNOWN") for call in failing)
    )
    (shown,) = (fact.machine for fact in observed_facts(file, "file") if isinstance(fact, MachineObserved))

    assert (inside.start(file).observe(()).gpus or ())[0].faults == (shown.gpus or ())[0].faults


@pytest.mark.parametrize("call", CALLS)
def test_each_query_can_fail(inside: Inside, rich: MachineFile, call: str) -> None:
    """While it fails for one GPU, the four others are whole and it has a fault; when it is over, all are whole."""
    observer = inside.start(rich.but(failures=(InjectedFailure(effect="error", nvml_function=call, gpu=2),)))
    for index, gpu in enumerate(observer.observe(()).gpus or ()):
        assert bool(_codes(gpu)) == (index == 2)
        assert index == 2 or but_distances(gpu) == but_distances((rich.gpus or ())[index])

    inside.standin.describe(rich)

    assert [but_distances(gpu) for gpu in observer.observe(()).gpus or ()] == [
        but_distances(g) for g in rich.gpus or ()
    ]


@pytest.mark.parametrize("call", CALLS)
def test_a_query_that_fails_for_a_moment_leaves_the_description(inside: Inside, rich: MachineFile, call: str) -> None:
    """Of a GPU with MIG devices, in a running driver's process and in the one after it: what is new is a fault."""
    observer = inside.start(rich)
    before = observer.observe(())
    inside.standin.describe(
        rich.but(failures=(InjectedFailure(effect="error", nvml_function=call, gpu=1, error="TIMEOUT"),))
    )

    for each in (observer, inside.restart()):
        machine = merge_observation(before, each.observe(()))
        assert [but_distances(_sound(gpu)) for gpu in machine.gpus or ()] == [but_distances(g) for g in rich.gpus or ()]


def _sound(gpu: Gpu) -> Gpu:
    """A GPU without faults."""
    mig = gpu.mig and gpu.mig.but(devices=tuple(device.but(faults=()) for device in gpu.mig.devices))
    return gpu.but(faults=(), mig=mig)


def _codes(gpu: Gpu) -> list[str]:
    devices = gpu.mig_devices
    return [fault.code for fault in (*gpu.faults, *(fault for device in devices for fault in device.faults))]


def test_a_gpu_that_nvml_does_not_describe_is_known_by_the_kernels_files(inside: Inside, rich: MachineFile) -> None:
    """Its UUID, model, place and node; where the kernel shows other GPUs than NVML counts, its index alone."""
    lost = rich.but(failures=(InjectedFailure(effect="error", nvml_function="*", gpu=1, error="GPU_IS_LOST"),))
    described = (rich.gpus or ())[1]
    fault = Fault("gpu-lost", "nvmlDeviceGetHandleByIndex: the GPU has fallen off the bus or is otherwise inaccessible")
    known = Gpu(
        index=1,
        uuid=described.uuid,
        minor=described.minor,
        model=described.model,
        pci=described.pci,
        numa=described.numa,
        device_nodes=described.device_nodes,
        faults=(fault,),
    )
    observer = inside.start(lost)
    assert (observer.observe(()).gpus or ())[1] == known

    (inside.standin.root / "proc/driver/nvidia/gpus/0000:ff:00.0").mkdir()
    assert (observer.observe(()).gpus or ())[1] == Gpu(index=1, faults=(fault,))


def test_a_skipped_gpu_is_not_asked(inside: Inside, rich: MachineFile) -> None:
    """It carries its charge; it is known by its address, if that is known, and by its index otherwise."""
    deaf = rich.but(failures=(InjectedFailure(effect="hang", gpu=1), InjectedFailure(effect="crash", gpu=3)))
    skipped = (
        SkippedGpu(index=0, pci="0000:0a:00.0", fault=gpu_hang_fault("nvmlDeviceGetUUID")),
        SkippedGpu(index=3, pci="", fault=gpu_crash_fault("nvmlDeviceGetUUID")),
    )
    codes = [_codes(gpu) for gpu in inside.start(deaf).observe(skipped).gpus or ()]

    assert codes == [[], ["gpu-hang"], [], ["gpu-crash"], []]


def test_a_node_that_is_missing_is_a_fault(inside: Inside, rich: MachineFile) -> None:
    """A container could not be given the GPU; when the node is there, it can."""
    observer = inside.start(rich)
    node = inside.standin.root / "dev/nvidia3"
    node.unlink()
    faults = [gpu.faults for gpu in observer.observe(()).gpus or ()]
    assert [[fault.code for fault in each] for each in faults] == [[], ["node-missing"], [], [], []]
    assert "/dev/nvidia3 " in as_shown(faults[1][0].message)
    node.touch()
    assert observer.observe(()).gpus == rich.gpus


def test_a_mig_device_without_its_nodes_has_a_fault_of_its_own(inside: Inside, rich: MachineFile) -> None:
    """Its siblings are fine."""
    observer = inside.start(rich)
    (inside.standin.root / "proc/driver/nvidia-caps/mig-minors").write_text(
        "config 1\ngpu3/gi2/access 21\ngpu3/gi2/ci0/access 22\ngpu3/gi9/access 84\nnonsense\n"
    )
    gpu = (observer.observe(()).gpus or ())[1]
    assert gpu.mig is not None
    assert gpu.faults == ()
    assert [[fault.code for fault in device.faults] for device in gpu.mig.devices][:2] == [[], ["node-missing"]]
    assert "gpu3/gi9/ci0/access" in as_shown(gpu.mig.devices[1].faults[0].message)


def test_a_display_gpu_is_no_gpu(inside: Inside, rich: MachineFile) -> None:
    """A DGX Station's own display is left out; the others keep their indices."""
    display = changed(rich, 2, model="NVIDIA DGX Display", mig=None)

    assert [gpu.index for gpu in inside.start(display).observe(()).gpus or ()] == [0, 1, 3, 4]


def test_an_answer_that_is_nonsense_is_a_fault_of_its_gpu(inside: Inside, rich: MachineFile) -> None:
    """As a name that is no text: it is contained, whatever it breaks."""
    observer = inside.start(changed(rich, 2, model="\udcff\udcfe"))
    codes = [_codes(gpu) for gpu in observer.observe(()).gpus or ()]

    assert codes == [[], [], ["query-failed"], [], []]


def test_a_change_of_mig_is_seen(inside: Inside, rich: MachineFile) -> None:
    """Devices that come and go, and a GPU that is put out of MIG mode."""
    gpu = (rich.gpus or ())[1]
    assert gpu.mig is not None
    observer = inside.start(rich)
    observer.observe(())
    for mig in (gpu.mig.but(devices=gpu.mig.devices[1:]), Mig(), Mig(enabled=True), gpu.mig):
        machine = changed(rich, 1, mig=mig)
        inside.standin.describe(machine)
        assert observer.observe(()).gpus == machine.gpus


def test_a_mig_device_that_was_made_anew_may_have_the_uuid_of_the_one_before(inside: Inside, rich: MachineFile) -> None:
    """And another profile: that is seen by the next thorough look."""
    gpu = (rich.gpus or ())[1]
    assert gpu.mig is not None
    observer = inside.start(rich)
    observer.observe(())
    first, second, *others = gpu.mig.devices
    swapped = first.but(profile=second.profile, memory_mib=second.memory_mib, attributes=second.attributes)
    machine = changed(rich, 1, mig=gpu.mig.but(devices=(swapped, second, *others)))
    inside.standin.describe(machine)
    seen = [observer.observe(()) for _ in range(THOROUGH_OBSERVATION_INTERVAL)][-1].gpus or ()
    assert [but_card(gpu) for gpu in seen] == [but_card(gpu) for gpu in machine.gpus or ()]


@pytest.mark.parametrize("text", ["-1\n", "", "two\n", "99999999999999999999x\n"])
def test_a_numa_node_that_is_none_is_none(inside: Inside, rich: MachineFile, text: str) -> None:
    """-1 says that the kernel does not know; nonsense says no more."""
    inside.start(rich)
    (inside.standin.root / "sys/bus/pci/devices/0000:07:00.0/numa_node").write_text(text)

    assert (inside.restart().observe(()).gpus or ())[0].numa is None


@pytest.mark.parametrize(
    ("total_mib", "memory_mib", "slices", "name"),
    [
        (40960, 4864, (1, 1, ""), "1g.5gb"),
        (40960, 19968, (3, 1, ""), "1c.3g.20gb"),
        (81920, 9856, (1, 1, "+me"), "1g.10gb+me"),
        (81920, 80384, (7, 7, ""), "7g.80gb"),
        (143771, 16384, (1, 1, ""), "1g.18gb"),
        (143771, 33280, (1, 1, ""), "1g.35gb"),
        (143771, 68096, (3, 3, ""), "3g.71gb"),
        (143771, 143360, (7, 7, ""), "7g.141gb"),
        (24576, 5952, (1, 1, ""), "1g.6gb"),
        (97887, 24128, (1, 1, "-me"), "1g.24gb-me"),
    ],
)
def test_profiles_have_nvidias_names(total_mib: int, memory_mib: int, slices: tuple[int, int, str], name: str) -> None:
    """A100, H200, A30 and RTX PRO 6000, as NVIDIA's MIG guide lists them."""
    gpu, compute, suffix = slices

    assert profile_name(gpu, compute, memory_mib, total_mib << 20, suffix) == name
