"""Which nodes have to be there, which need a link, and what is said where they are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.devicenodes import (
    MANAGED_NODE,
    DesiredNodes,
    DeviceNodeReconcileResult,
    desired_nodes,
    nodes_status,
)
from gpuplane.node.core.step import step
from gpuplane.node.model.facts import DriverReleaseRequested, MachineObserved
from gpuplane.node.model.machine import DeviceNodeStat, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import DriverRelease, Snapshot
from tests.golden import Golden

CONTROL = {
    "/dev/nvidiactl": DeviceNodeStat(195, 255),
    "/dev/nvidia-uvm": DeviceNodeStat(511, 0),
    "/dev/nvidia-uvm-tools": DeviceNodeStat(511, 1),
}
GPU = Gpu(index=0, uuid="GPU-0", device_nodes=("/dev/nvidia0",))
OTHERS = {
    "/dev/nvidia0": DeviceNodeStat(195, 0),
    "/dev/dri/card1": DeviceNodeStat(226, 1),
    "/dev/infiniband/uverbs0": DeviceNodeStat(231, 192),
    "/dev/gdrdrv": DeviceNodeStat(240, 0),
}
CAPS = tuple(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (30, 31))
CUT = GPU.but(mig=Mig(enabled=True, devices=(MigDevice("MIG-0", "1g.10gb", 3, device_nodes=CAPS),)))


def wished(*gpus: Gpu, numbers: dict[str, DeviceNodeStat]) -> DesiredNodes | None:
    return desired_nodes(Snapshot(machine=Machine(gpus=gpus or (GPU,), device_node_stats=numbers)))


def test_control_nodes_have_to_be_there_and_what_is_the_drivers_is_linked() -> None:
    """A GPU's own node is not made, and what udev takes care of is left to it."""
    found = wished(numbers=CONTROL | OTHERS)
    assert found is not None
    assert found.nodes == CONTROL
    assert set(found.linked_nodes) == {*CONTROL, "/dev/nvidia0", "/dev/gdrdrv"}


def test_what_computing_needs_is_wanted_though_nobody_knows_its_numbers() -> None:
    """Its module is not loaded; of modeset and the tools that is no loss."""
    found = wished(numbers={"/dev/nvidiactl": DeviceNodeStat(195, 255)})
    assert found is not None
    assert found.nodes == {"/dev/nvidiactl": DeviceNodeStat(195, 255), "/dev/nvidia-uvm": None}


def test_a_modeset_node_is_wanted_where_its_driver_is_loaded() -> None:
    found = wished(numbers=CONTROL | {"/dev/nvidia-modeset": DeviceNodeStat(195, 254)})
    assert found is not None
    assert "/dev/nvidia-modeset" in found.nodes


def test_mig_devices_want_their_capabilities_and_migs_own() -> None:
    """`config` for root alone, `monitor` for all to read, as nvidia-modprobe makes them."""
    numbers = {cap: DeviceNodeStat(508, int(cap[-2:]), 0o444) for cap in CAPS}
    found = wished(CUT, numbers=CONTROL | numbers)
    assert found is not None
    own = {
        "/dev/nvidia-caps/nvidia-cap1": DeviceNodeStat(508, 1, 0o400),
        "/dev/nvidia-caps/nvidia-cap2": DeviceNodeStat(508, 2, 0o444),
    }
    assert found.nodes == CONTROL | own | numbers
    assert set(found.linked_nodes) == set(found.nodes)


@pytest.mark.parametrize(
    "machine",
    [None, Machine(), Machine(gpus=()), Machine(gpus=(), device_node_stats=CONTROL), Machine(gpus=(GPU,)),
     Machine(gpus=(GPU,), device_node_stats={"/dev/dri/card1": DeviceNodeStat(226, 1)})],
)  # fmt: skip
def test_nothing_is_wanted_where_nothing_is_known_or_no_gpu_is_there(machine: Machine | None) -> None:
    assert desired_nodes(Snapshot(machine=machine)) is None


def test_a_driver_that_cannot_be_used_may_want_just_that_node() -> None:
    """Without /dev/nvidiactl the library counts no GPUs; the kernel's driver is there all the same."""
    found = desired_nodes(Snapshot(machine=Machine(device_node_stats=CONTROL)))
    assert found is not None
    assert "/dev/nvidiactl" in found.nodes


def test_nothing_is_wanted_while_the_driver_is_let_go_of() -> None:
    """It is being replaced, and what is made now may have another's numbers soon."""
    snapshot = step(Snapshot(), MachineObserved(Machine(gpus=(GPU,), device_node_stats=CONTROL)), 0.0)
    assert desired_nodes(snapshot) is not None
    assert (
        desired_nodes(step(snapshot, DriverReleaseRequested(DriverRelease(until=9.0, reason="upgrade")), 0.0)) is None
    )


ODD = ["/dev/nvidia0/../../etc/passwd", f"{CAPS[0]}/../x", "/dev/nvidia0\n", "/dev/nvidia\u0663", *CONTROL]
PATHS = st.text() | st.from_regex(r"/dev/[a-z0-9/.-]+", fullmatch=True) | st.sampled_from(ODD)


@given(st.dictionaries(PATHS, st.builds(DeviceNodeStat, st.integers(0, 4095), st.integers(0, 1 << 20)), max_size=6))
def test_nothing_but_names_of_the_table_is_ever_wanted(numbers: dict[str, DeviceNodeStat]) -> None:
    """Whatever a machine says that it has."""
    device = MigDevice("MIG-0", "1g.10gb", 3, device_nodes=tuple(numbers))
    found = wished(GPU.but(mig=Mig(enabled=True, devices=(device,))), numbers=numbers)
    for path in (*found.nodes, *found.linked_nodes) if found else ():
        assert MANAGED_NODE.fullmatch(path) and path.isascii() and ".." not in path


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        (DeviceNodeReconcileResult(), "ok"),
        (DeviceNodeReconcileResult(is_hidden=True), "ok"),
        (DeviceNodeReconcileResult(created=("/dev/nvidia-uvm",)), "ok"),
        (DeviceNodeReconcileResult(missing=("/dev/nvidia-modeset",), problem="no"), "ok"),
        (
            DeviceNodeReconcileResult(
                missing=("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"), problem="/dev/nvidia-uvm cannot be made: no"
            ),
            "failing",
        ),
        (DeviceNodeReconcileResult(missing=("/dev/nvidiactl",)), "failing"),
        (DeviceNodeReconcileResult(missing=CAPS), "failing"),
        (DeviceNodeReconcileResult(missing=("/dev/nvidia-caps/nvidia-cap1",)), "ok"),
        (
            DeviceNodeReconcileResult(without_char_link=tuple(f"/dev/nvidia{n}" for n in range(8))),
            "ok",
        ),
        (DeviceNodeReconcileResult(stale=("/dev/nvidia-uvm",)), "failing"),
    ],
    ids=[
        "all is well", "the host's /dev is hidden", "made", "no modeset", "no CUDA", "no control node",
        "no node of the MIG device", "a node of no MIG device", "no links", "numbers of another driver",
    ],
)  # fmt: skip
def test_the_condition_says_what_is_wrong_what_it_costs_and_what_to_do(
    found: DeviceNodeReconcileResult, standing: str, golden: Golden
) -> None:
    """What computing does not need is no failure, and neither is what costs something with some systemd or runc."""
    told = nodes_status(found)
    assert told.state == standing
    golden(told.text)
