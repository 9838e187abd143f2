"""What a container gets, field by field, for every device list strategy; and what is refused, with the reason."""

import itertools
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate, response_for_units
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config, ListStrategy, NamingRule, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.views import ContainerAllocateResponse, DeviceSpec, Mount, RequestRefused, Unit
from tests.texts import as_shown

GPU = "nvidia.com/gpu"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
A, B, C = (
    Gpu(index=i, uuid=f"GPU-{name}", model="T4", device_nodes=(f"/dev/nvidia{i}",)) for i, name in enumerate("abc")
)


def node(*gpus: Gpu, nodes: Iterable[str] = (), held: tuple[Allocation, ...] = (), **settings: Any) -> Snapshot:
    """A node that offers these GPUs."""
    machine = Machine(gpus=gpus or (A, B, C), shared_nodes=tuple(nodes))
    return step(Snapshot(config=Config(settings=Settings(**settings)), allocations=held), MachineObserved(machine), 0.0)


def allocated(*ids: str, nodes: Iterable[str] = (), **settings: Any) -> ContainerAllocateResponse:
    return allocate(node(nodes=nodes, **settings), GPU, ids)


def refused(snapshot: Snapshot, *ids: str, resource: str = GPU) -> str:
    with pytest.raises(RequestRefused) as refusal:
        allocate(snapshot, resource, ids)
    return str(refusal.value)


MOUNTED = tuple(
    Mount(container_path=f"/var/run/nvidia-container-devices/GPU-{each}", host_path="/dev/null") for each in "ba"
)
CDI = ("k8s.device-plugin.nvidia.com/gpu=GPU-b", "k8s.device-plugin.nvidia.com/gpu=GPU-a")
ENVVAR = {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
VOLUMES = {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}

# strategies → environment, mounts, annotated, CDI names. The golden table: 3.3 of NVIDIA's behaviour, all 15 subsets.
GOLDEN: dict[frozenset[str], tuple[dict[str, str], tuple[Mount, ...], bool, tuple[str, ...]]] = {
    frozenset({"envvar"}): (ENVVAR, (), False, ()),
    frozenset({"volume-mounts"}): (VOLUMES, MOUNTED, False, ()),
    frozenset({"cdi-annotations"}): ({}, (), True, ()),
    frozenset({"cdi-cri"}): ({}, (), False, CDI),
    frozenset({"envvar", "volume-mounts"}): (VOLUMES, MOUNTED, False, ()),
    frozenset({"envvar", "cdi-annotations"}): (ENVVAR, (), True, ()),
    frozenset({"envvar", "cdi-cri"}): (ENVVAR, (), False, CDI),
    frozenset({"volume-mounts", "cdi-annotations"}): (VOLUMES, MOUNTED, True, ()),
    frozenset({"volume-mounts", "cdi-cri"}): (VOLUMES, MOUNTED, False, CDI),
    frozenset({"cdi-annotations", "cdi-cri"}): ({}, (), True, CDI),
    frozenset({"envvar", "volume-mounts", "cdi-annotations"}): (VOLUMES, MOUNTED, True, ()),
    frozenset({"envvar", "volume-mounts", "cdi-cri"}): (VOLUMES, MOUNTED, False, CDI),
    frozenset({"envvar", "cdi-annotations", "cdi-cri"}): (ENVVAR, (), True, CDI),
    frozenset({"volume-mounts", "cdi-annotations", "cdi-cri"}): (VOLUMES, MOUNTED, True, CDI),
    frozenset({"envvar", "volume-mounts", "cdi-annotations", "cdi-cri"}): (VOLUMES, MOUNTED, True, CDI),
}


def test_the_golden_table_is_complete() -> None:
    strategies = set(get_args(ListStrategy)) - {"auto"}  # which stands for one of the others
    assert set(GOLDEN) == {
        frozenset(each) for n in range(1, 5) for each in itertools.combinations(strategies, n)
    }  # no strategy at all is an error of the configuration


@pytest.mark.parametrize("strategies", GOLDEN, ids=lambda each: "+".join(sorted(each)))
def test_each_combination_of_strategies_gives_its_row(strategies: frozenset[str]) -> None:
    """Ids keep the order of the request; the order in which the strategies are configured is of no account."""
    env, mounts, annotated, cdi = GOLDEN[strategies]
    for order in itertools.permutations(strategies):
        got = allocated("GPU-b", "GPU-a", device_list_strategy=order)
        assert (got.env, got.mounts, got.device_specs, got.cdi_devices) == (env, mounts, (), cdi)
        assert list(got.annotations.values()) == ([",".join(CDI)] if annotated else [])


@pytest.mark.parametrize("strategies", GOLDEN, ids=lambda each: "+".join(sorted(each)))
def test_device_nodes_are_passed_unless_all_strategies_are_cdi(strategies: frozenset[str]) -> None:
    got = allocated("GPU-b", nodes=("/dev/nvidiactl",), pass_device_specs=True, device_list_strategy=tuple(strategies))
    expected = () if strategies <= {"cdi-annotations", "cdi-cri"} else ("/dev/nvidiactl", "/dev/nvidia1")
    assert tuple(each.container_path for each in got.device_specs) == expected


def test_device_nodes_are_the_control_nodes_that_exist_then_the_units_then_imex() -> None:
    """In NVIDIA's order, whatever the order in which the machine lists them, readable and writable, none twice."""
    got = allocated(
        "GPU-c", "GPU-a", nodes=(CHANNEL, *reversed(CONTROL[:3])), pass_device_specs=True, imex_channels=(0,)
    )
    paths = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia2", "/dev/nvidia0", CHANNEL]
    assert got.device_specs == tuple(
        DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in paths
    )


@pytest.mark.parametrize("root", ["/run/nvidia/driver", "/run/nvidia/driver/"])
def test_host_paths_lie_under_the_device_root(root: str) -> None:
    got = allocated("GPU-a", nodes=CONTROL, pass_device_specs=True, dev_root=root)
    assert [each.host_path for each in got.device_specs] == [
        f"/run/nvidia/driver{path}" for path in (*CONTROL, "/dev/nvidia0")
    ]
    assert [each.container_path for each in got.device_specs] == [*CONTROL, "/dev/nvidia0"]


def mig(slot: int) -> Unit:
    caps = (f"/dev/nvidia-caps/nvidia-cap{10 + slot}", f"/dev/nvidia-caps/nvidia-cap{20 + slot}")
    return Unit(id=f"MIG-{slot}", gpu="GPU-a", index=f"0:{slot}", model="A100", device_nodes=("/dev/nvidia0", *caps))


def test_mig_devices_of_one_gpu_share_its_node_and_bring_their_own() -> None:
    got = response_for_units((mig(1), mig(0)), Machine(), Settings(pass_device_specs=True), GPU)
    assert [each.host_path for each in got.device_specs] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap11",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap10",
        "/dev/nvidia-caps/nvidia-cap20",
    ]


def test_the_index_strategy_names_indices_in_the_order_of_the_request() -> None:
    got = allocated("GPU-c", "GPU-a", device_id_strategy="index", device_list_strategy=("envvar", "cdi-cri"))
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": "2,0"}
    assert got.cdi_devices == ("k8s.device-plugin.nvidia.com/gpu=2", "k8s.device-plugin.nvidia.com/gpu=0")


def test_the_index_of_a_mig_device_names_its_gpu_and_slot() -> None:
    settings = Settings(device_id_strategy="index", device_list_strategy=("volume-mounts",))
    got = response_for_units((mig(1), mig(0)), Machine(), settings, GPU)
    assert [each.container_path for each in got.mounts] == [
        "/var/run/nvidia-container-devices/0:1",
        "/var/run/nvidia-container-devices/0:0",
    ]


@pytest.mark.parametrize("strategies", GOLDEN, ids=lambda each: "+".join(sorted(each)))
def test_storage_and_network_switches_count_for_every_strategy(strategies: frozenset[str]) -> None:
    got = allocated("GPU-a", gds=True, mofed=True, gdrcopy=True, device_list_strategy=tuple(strategies))
    switches = {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}
    assert switches.items() <= got.env.items()
    named = [f"k8s.device-plugin.nvidia.com/{each}" for each in ("gpu=GPU-a", "gdrcopy=all", "gds=all", "mofed=all")]
    if "cdi-cri" in strategies:
        assert list(got.cdi_devices) == named
    if "cdi-annotations" in strategies:
        assert list(got.annotations.values()) == [",".join(named)]


@pytest.mark.parametrize(("switch", "name"), [("gds", "GDS"), ("mofed", "MOFED"), ("gdrcopy", "GDRCOPY")])
def test_each_switch_is_its_own(switch: str, name: str) -> None:
    settings: dict[str, Any] = {switch: True}
    got = allocated("GPU-a", device_list_strategy=("cdi-cri",), **settings)
    assert got.env == {f"NVIDIA_{name}": "enabled"}
    assert got.cdi_devices[1:] == (f"k8s.device-plugin.nvidia.com/{switch}=all",)


def test_imex_channels_go_to_every_gpu_container() -> None:
    strategies = ("volume-mounts", "envvar", "cdi-cri", "cdi-annotations")
    got = allocated("GPU-a", nodes=(CHANNEL,), imex_channels=(0,), device_list_strategy=strategies)
    assert got.env == {**VOLUMES, "NVIDIA_IMEX_CHANNELS": "0"}
    assert got.mounts[1:] == (Mount(container_path="/var/run/nvidia-container-devices/imex/0", host_path="/dev/null"),)
    assert got.cdi_devices[1:] == ("k8s.device-plugin.nvidia.com/imex-channel=0",)
    assert list(got.annotations.values()) == [",".join(got.cdi_devices)]


def test_an_imex_channel_that_does_not_exist_is_left_out() -> None:
    got = allocated("GPU-a", imex_channels=(0,), device_list_strategy=("envvar", "cdi-cri"), pass_device_specs=True)
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
    assert got.cdi_devices == ("k8s.device-plugin.nvidia.com/gpu=GPU-a",)
    assert [each.container_path for each in got.device_specs] == ["/dev/nvidia0"]


def test_an_imex_channel_that_is_required_and_missing_refuses_the_request() -> None:
    reason = refused(node(imex_channels=(0,), imex_required=True), "GPU-a")
    assert CHANNEL in reason
    assert "imex.required" in reason


def test_an_annotation_has_the_prefix_and_a_key_that_kubernetes_takes() -> None:
    """The same devices give the same key, other devices or another resource another."""
    settings = Settings(device_list_strategy=("cdi-annotations",), cdi_annotation_prefix="example.com/")
    (key,) = response_for_units((mig(0),), Machine(), settings, GPU).annotations
    prefix, _, name = key.partition("/")
    assert prefix == "example.com"
    assert name.startswith("nvidia-device-plugin_")
    assert len(name) == len("nvidia-device-plugin_") + 36 <= 63
    keys = [
        *response_for_units((mig(0),), Machine(), settings, GPU).annotations,
        *response_for_units((mig(1),), Machine(), settings, GPU).annotations,
        *response_for_units((mig(0),), Machine(), settings, "nvidia.com/other").annotations,
    ]
    assert keys[0] == key
    assert len(set(keys)) == 3


def test_an_id_asked_for_twice_is_given_once() -> None:
    assert allocated("GPU-a", "GPU-b", "GPU-a").env == {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}


def test_what_is_refused_names_the_device_and_the_reason() -> None:
    lost = C.but(faults=(Fault(code="gpu-lost", message="fell off the bus"),))
    snapshot = node(A, B, lost)
    assert "names no device" in refused(snapshot)
    assert "'GPU-x'" in refused(snapshot, "GPU-a", "GPU-x")
    assert "GPU-c" in (reason := refused(snapshot, "GPU-a", "GPU-c"))
    assert as_shown(lost.faults[0].message) in reason
    assert "nvidia.com/mig-1g.5gb" in refused(snapshot, "GPU-a", resource="nvidia.com/mig-1g.5gb")


def test_before_the_first_look_the_refusal_says_why() -> None:
    assert as_shown(offer(Snapshot()).waiting_reason) in refused(Snapshot(), "GPU-a")
    assert offer(Snapshot()).waiting_reason


def test_a_device_that_a_pod_holds_under_another_name_is_refused_with_the_pod() -> None:
    held = (Allocation(resource=GPU, devices=("GPU-a",), holder=PodRef.parse("default/train/main")),)
    snapshot = node(held=held, gpus=(NamingRule(pattern="*", name="nvidia.com/t4"),))
    assert "default/train" in refused(snapshot, "GPU-a", resource="nvidia.com/t4")
    assert allocate(snapshot, "nvidia.com/t4", ("GPU-b",)).env == {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}


@given(st.lists(st.text() | st.sampled_from(["GPU-a", "../../etc", "GPU-a/../x", "GPU-a::0", "all", "void"])))
def test_nothing_of_a_request_gets_into_an_answer(ids: list[str]) -> None:
    """Whatever is asked for: an answer is made of the machine's own names, or it is a refusal."""
    snapshot = node(device_list_strategy=("volume-mounts", "cdi-cri"), pass_device_specs=True)
    try:
        got = allocate(snapshot, GPU, ids)
    except RequestRefused:
        assert not ids or set(ids) - {"GPU-a", "GPU-b", "GPU-c"}
    else:
        assert {each.container_path.rpartition("/")[2] for each in got.mounts} == set(ids)
        assert set(ids) <= {"GPU-a", "GPU-b", "GPU-c"}


@pytest.mark.parametrize("refuses", [True, False])
def test_more_than_one_share_is_refused_where_the_configuration_says_so(refuses: bool) -> None:
    """Shares of one GPU name it once; the refusal says how many were asked for and by which key it is refused."""
    sharing = Sharing(
        replicated_resources=(ReplicatedResource(name=GPU, replicas=4),), fail_requests_greater_than_one=refuses
    )
    snapshot = node(sharing=sharing)
    assert allocate(snapshot, GPU, ("GPU-a::3",)).env == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
    ids = ("GPU-b::0", "GPU-a::1", "GPU-b::2")
    if refuses:
        reason = refused(snapshot, *ids)
        assert "3 shares" in reason
        assert "failRequestsGreaterThanOne" in reason
    else:
        assert allocate(snapshot, GPU, ids).env == {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"}


def test_whole_gpus_are_not_shares() -> None:
    sharing = Sharing(
        replicated_resources=(
            ReplicatedResource(name=GPU, replicas=2, devices=("0",), rename="nvidia.com/gpu.shared"),
        ),
        fail_requests_greater_than_one=True,
    )
    assert allocate(node(sharing=sharing), GPU, ("GPU-b", "GPU-c")).env == {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-c"}


def test_a_mig_device_brings_its_gpus_node_and_its_own() -> None:
    """As the whole way from the machine gives it."""
    caps = ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")
    devices = (MigDevice(uuid="MIG-1", profile="1g.5gb", gpu_instance=3, device_nodes=caps),)
    gpu = A.but(mig=Mig(enabled=True, devices=devices))
    snapshot = node(gpu, nodes=("/dev/nvidiactl",), mig_strategy="mixed", pass_device_specs=True)
    got = allocate(snapshot, "nvidia.com/mig-1g.5gb", ("MIG-1",))
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-1"}
    assert [each.host_path for each in got.device_specs] == ["/dev/nvidiactl", "/dev/nvidia0", *caps]
