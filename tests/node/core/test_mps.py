"""Which daemons a node wants, when a unit shared by MPS may be given out, and what its containers get."""

from typing import Any

import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.mps import SUPERVISOR_TIMEOUT_S, desired_daemons, not_ready_reason, part_statuses
from gpuplane.node.core.reports.readiness import not_ready_reason as whole_unready
from gpuplane.node.core.step import step
from gpuplane.node.model.config import MemorySharedResource, MpsDaemonSettings, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons
from gpuplane.node.model.snapshot import Allocation, DriverRelease, Snapshot
from gpuplane.node.model.status import MPS_SUPERVISOR_PART, MpsDaemonStatus, Status, mps_daemon_part, plugin_part
from gpuplane.node.model.views import Mount, RequestRefused
from tests.golden import Golden
from tests.texts import as_shown

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
POD, OTHER = PodRef("n", "p"), PodRef("n", "q")
MIGS = tuple(
    MigDevice(uuid=f"MIG-{n}", profile="1g.5gb", gpu_instance=n, mig_index=n, memory_mib=4864) for n in range(2)
)
A = Gpu(index=0, uuid="GPU-a", model="A100", memory_mib=40960, compute_capability="8.0")
B = Gpu(index=1, uuid="GPU-b", model="A100", memory_mib=20480, compute_capability="8.0")
M = Gpu(index=2, uuid="GPU-m", model="A100", memory_mib=40960, mig=Mig(enabled=True, devices=MIGS))


def node(*facts: Fact, sharing: Sharing, gpus: tuple[Gpu, ...] = (A, B), **settings: Any) -> Snapshot:
    """A node that kubelet has told of, and these facts after that."""
    snapshot = Snapshot()
    first = (
        MachineObserved(Machine(gpus=gpus)),
        ConfigLoaded(Settings(sharing=sharing, **settings)),
        AllocationsListed((), 0.0),
    )
    for fact in (*first, *facts):
        snapshot = step(snapshot, fact, 10.0)
    return snapshot


def by_mps(*entries: ReplicatedResource, **how: Any) -> Sharing:
    """Sharing by MPS, each device into four where nothing else is said."""
    return Sharing(strategy="mps", replicated_resources=entries or (ReplicatedResource(GPU, 4),), **how)


def served(*names: str, devices: tuple[str, ...] = ("GPU-a", "GPU-b")) -> tuple[Fact, ...]:
    """A supervisor that is there, and daemons that are well."""
    well = SupervisorStatus(
        at=10.0, pid=7, daemons=tuple(DaemonStatus(name, "ok", "control daemon 1", devices, 1) for name in names)
    )
    heard = part_statuses(WantedDaemons(daemons=(MpsDaemon("x", {}),)), well, "/run/mps", 10.0)
    return tuple(StatusChanged(part, status) for part, status in heard.items())


def daemons(snapshot: Snapshot) -> tuple[MpsDaemon, ...]:
    """Those that are wanted."""
    wishes = desired_daemons(snapshot)
    assert wishes is not None
    return wishes.daemons


def troubles(snapshot: Snapshot) -> set[str]:
    """Why devices are not available: kind and part of each reason; "" for those that are."""
    devices = (device for resource in offer(snapshot).resources for device in resource.devices)
    return {"; ".join(f"{each.kind} {each.part}" for each in device.reasons) for device in devices}


def texts(snapshot: Snapshot) -> list[str]:
    """The same, for people."""
    return sorted(
        {as_shown(device.unavailable_reason) for resource in offer(snapshot).resources for device in resource.devices}
    )


def test_a_daemon_for_each_resource_with_fair_parts() -> None:
    """A quarter of each GPU's memory and of its threads for each of four clients."""
    [daemon] = daemons(node(sharing=by_mps()))
    assert daemon == MpsDaemon(
        name=GPU,
        client_memory_mib_by_device={"GPU-a": 10240, "GPU-b": 5120},
        active_thread_percentage=25,
        exclusive_compute_mode=True,
    )


def test_how_daemons_are_set_up_can_be_said() -> None:
    """Threads, users and compute mode."""
    how = MpsDaemonSettings(compute_mode="leave", multi_user=True, active_thread_percentage=60)
    [daemon] = daemons(node(sharing=by_mps(mps=how)))
    assert (daemon.exclusive_compute_mode, daemon.multi_user, daemon.active_thread_percentage) == (False, True, 60)


def test_a_mig_device_has_a_daemon_of_its_own() -> None:
    """Its memory is what is parted, and the compute mode of its GPU is left alone."""
    snapshot = node(sharing=by_mps(ReplicatedResource(SMALL, 2)), gpus=(A, M), mig_strategy="mixed")
    assert daemons(snapshot) == tuple(
        MpsDaemon(name=uuid, client_memory_mib_by_device={uuid: 2432}, active_thread_percentage=50)
        for uuid in ("MIG-0", "MIG-1")
    )


def test_what_is_shared_otherwise_wants_no_daemon() -> None:
    """Time slices, and a single replica."""
    assert daemons(node(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 4),)))) == ()
    assert daemons(node(sharing=by_mps(ReplicatedResource(GPU, 1)))) == ()


def test_shares_of_memory_have_their_limits_with_them() -> None:
    """The daemon limits nobody; each container's environment does."""
    memory = (MemorySharedResource(GPU, "nvidia.com/gpu-memory", 1024),)
    snapshot = node(
        *served("nvidia.com/gpu-memory"),
        sharing=Sharing(memory_resources=memory, mps_limits_memory=True, memory_unit="GiB"),
    )
    assert daemons(snapshot) == (
        MpsDaemon("nvidia.com/gpu-memory", {"GPU-a": 0, "GPU-b": 0}, exclusive_compute_mode=True),
    )
    got = allocate(snapshot, "nvidia.com/gpu-memory", ["GPU-a::0", "GPU-a::1", "GPU-a::2"])
    assert got.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"


def test_nothing_is_wanted_before_enough_is_known() -> None:
    """No look, no configuration, or no word of kubelet's: the last wish stands."""
    snapshot = Snapshot()
    for fact in (MachineObserved(Machine(gpus=(A, B))), ConfigLoaded(Settings(sharing=by_mps()))):
        assert desired_daemons(snapshot) is None
        snapshot = step(snapshot, fact, 10.0)
    assert desired_daemons(snapshot) is None
    assert desired_daemons(step(snapshot, AllocationsListed((), 0.0), 10.0))


def test_what_containers_hold_is_held_also_when_it_is_not_wanted() -> None:
    """By shares alone: a whole GPU of the same name makes nobody a client."""
    held = (
        Allocation(GPU, ("GPU-a::1",), POD),
        Allocation(SMALL, ("MIG-1::0",), OTHER),
        Allocation("x", ("GPU-b",)),
    )
    wishes = desired_daemons(node(AllocationsListed(held, 0.0), sharing=Sharing()))
    assert wishes == WantedDaemons(daemons_in_use=("MIG-1", GPU))


def test_shares_of_another_kind_hold_no_daemon() -> None:
    """The same ids may be time slices now; how a unit was cut when a container got it is remembered."""
    held = AllocationsListed((Allocation(GPU, ("GPU-a::1",), POD),), 0.0)
    assert (
        desired_daemons(node(held, sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 4),))))
        == WantedDaemons()
    )
    was = node(held, sharing=by_mps())
    now = step(was, ConfigLoaded(Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 4),)))), 20.0)
    assert desired_daemons(now) == WantedDaemons(daemons_in_use=(GPU,))


def test_a_gpu_waits_until_its_compute_mode_is_restored(golden: Golden) -> None:
    """One whose mode nobody changed does not; that is so too where the supervisor has gone amid it."""
    status = SupervisorStatus(at=10.0, pid=7, exclusive_gpus=("GPU-a",), problem="nvidia-smi: no permission")
    for now in (10.0, 100.0):
        heard = part_statuses(WantedDaemons(), status, "/run/mps", now)
        snapshot = node(*(StatusChanged(part, status) for part, status in heard.items()), sharing=Sharing())
        assert troubles(snapshot) == {"problem mps compute modes", ""}
        golden(texts(snapshot))
    assert part_statuses(WantedDaemons(), status, "/run/mps", 9.0) == {}, "the boot in which that was so is over"


def test_a_device_in_trouble_is_left_out() -> None:
    """A server that cannot open one of its devices serves none of them."""
    drained = node(DrainRequested("GPU-a", Drain(reason="noise", since=1.0)), sharing=by_mps())
    assert [daemon.client_memory_mib_by_device for daemon in daemons(drained)] == [{"GPU-b": 5120}]
    released = node(DriverReleaseRequested(DriverRelease(until=99.0, reason="new driver")), sharing=by_mps())
    assert daemons(released) == ()


def test_a_device_that_a_container_holds_otherwise_is_left_out() -> None:
    """No server would get it, and its compute mode is not changed under that container: the daemon has the others."""
    holders = (
        (Settings(), Allocation(GPU, ("GPU-a",), POD)),
        (
            Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 4),))),
            Allocation(GPU, ("GPU-a::1",), POD),
        ),
        (
            Settings(sharing=by_mps(ReplicatedResource(GPU, 4, "nvidia.com/old"))),
            Allocation("nvidia.com/old", ("GPU-a::1",)),
        ),
    )
    for before, held in holders:
        was = step(node(AllocationsListed((held,), 0.0), sharing=before.sharing), ConfigLoaded(before), 10.0)
        now = step(was, ConfigLoaded(Settings(sharing=by_mps())), 20.0)
        assert [daemon.client_memory_mib_by_device for daemon in daemons(now)] == [{"GPU-b": 5120}]
        troubled = {
            device.unavailable_reason for device in offer(now).resources[0].devices if device.unit.id == "GPU-a"
        }
        assert all(f"as {held.resource}" in as_shown(why) for why in troubled)
        assert [
            len(daemon.client_memory_mib_by_device) for daemon in daemons(step(now, AllocationsListed((), 30.0), 30.0))
        ] == [2]


def test_a_device_that_its_clients_hold_in_other_parts_stays() -> None:
    """Their daemon is told of other limits, and not to do without it."""
    was = node(AllocationsListed((Allocation(GPU, ("GPU-a::1",), POD),), 0.0), sharing=by_mps())
    now = step(was, ConfigLoaded(Settings(sharing=by_mps(ReplicatedResource(GPU, 2)))), 20.0)
    assert [daemon.client_memory_mib_by_device for daemon in daemons(now)] == [{"GPU-a": 20480, "GPU-b": 10240}]


def test_a_mig_device_in_trouble_takes_no_sibling_with_it() -> None:
    """Each has a daemon of its own."""
    ill = FaultOccurred(code="xid-94", gpu="GPU-m", message="", at=10.0, gpu_instance=0)
    snapshot = node(ill, sharing=by_mps(ReplicatedResource(SMALL, 2)), gpus=(A, M), mig_strategy="mixed")
    assert [daemon.name for daemon in daemons(snapshot)] == ["MIG-1"]


def test_a_unit_is_given_out_only_while_its_daemon_serves_it(golden: Golden) -> None:
    """No supervisor, no daemon, a daemon that fails, or one without this device: unhealthy, with the reason."""
    sharing, broken = (
        by_mps(),
        StatusChanged(mps_daemon_part(GPU), MpsDaemonStatus(state="failing", text="no such file")),
    )
    cases = {
        "no supervisor": (node(sharing=sharing), {"waiting mps supervisor"}),
        "no daemon": (node(*served(), sharing=sharing), {f"waiting mps/{GPU}"}),
        "all is served": (node(*served(GPU), sharing=sharing), {""}),
        "one is served": (node(*served(GPU, devices=("GPU-a",)), sharing=sharing), {"", f"held mps/{GPU}"}),
        "a daemon fails": (node(*served(GPU), broken, sharing=sharing), {f"problem mps/{GPU}"}),
    }
    for case, (snapshot, reasons) in cases.items():
        assert troubles(snapshot) == reasons
        golden(texts(snapshot), case)


def test_readiness_says_which_daemon_does_not_serve() -> None:
    """Of those that are wanted."""
    broken = StatusChanged(mps_daemon_part(GPU), MpsDaemonStatus("failing", "no such file"))
    snapshot = node(*served(GPU), broken, StatusChanged(plugin_part(GPU), Status("ok")), sharing=by_mps())
    why = whole_unready(snapshot)
    assert why is not None
    assert (why.kind, why.code, why.part) == ("problem", "mps-not-serving", mps_daemon_part(GPU).name)
    assert GPU in as_shown(why.text)
    assert "no such file" in as_shown(why.text)
    assert not_ready_reason(node(broken, sharing=Sharing())) is None


def test_a_supervisor_that_is_silent_says_nothing_about_its_daemons() -> None:
    """After a while nobody knows how they stand."""
    wishes = WantedDaemons(daemons=(MpsDaemon(GPU, {"GPU-a": 0}),))
    status = SupervisorStatus(at=10.0, pid=7, daemons=(DaemonStatus(GPU, "ok", "control daemon 1", ("GPU-a",), 1),))
    assert part_statuses(wishes, status, "/run/mps", 10.0 + SUPERVISOR_TIMEOUT_S).keys() == {
        MPS_SUPERVISOR_PART,
        mps_daemon_part(GPU),
    }
    silent = part_statuses(wishes, status, "/run/mps", 10.1 + SUPERVISOR_TIMEOUT_S)
    assert silent.keys() == {MPS_SUPERVISOR_PART}
    assert silent[MPS_SUPERVISOR_PART].state == "failing"
    assert "gpuplane mps" in as_shown(silent[MPS_SUPERVISOR_PART].text)
    assert part_statuses(WantedDaemons(), None, "/run/mps", 0.0) == {}


def test_a_container_gets_what_nvidias_plugin_gives_but_for_shared_memory() -> None:
    """/dev/shm is the resource's, where theirs is one for all."""
    got = allocate(node(*served(GPU), sharing=by_mps()), GPU, ["GPU-a::0"])
    assert got.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}
    assert got.mounts == (
        Mount(container_path="/mps/nvidia.com/gpu/pipe", host_path="/run/nvidia/mps/nvidia.com/gpu/pipe"),
        Mount(container_path="/dev/shm", host_path="/run/nvidia/mps/nvidia.com/gpu/shm"),
    )


def test_a_container_is_a_client_of_one_daemon() -> None:
    """The pipe is that of its MIG device, under its resource's name; shares of two are refused with the reason."""
    sharing, facts = by_mps(ReplicatedResource(SMALL, 2)), served("MIG-0", "MIG-1", devices=("MIG-0", "MIG-1"))
    snapshot = node(*facts, sharing=sharing, gpus=(A, M), mig_strategy="mixed", mps_root="/mps-root/")
    got = allocate(snapshot, SMALL, ["MIG-1::0"])
    assert got.env["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/mig-1g.5gb/pipe"
    assert got.mounts[0] == Mount(container_path="/mps/nvidia.com/mig-1g.5gb/pipe", host_path="/mps-root/MIG-1/pipe")
    with pytest.raises(RequestRefused, match=r"MIG-0.*MIG-1.*MPS"):
        allocate(snapshot, SMALL, ["MIG-0::0", "MIG-1::0"])
