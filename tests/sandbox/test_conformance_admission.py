"""Admission of pods and the health of what they hold, as kubelet 1.36.2 was observed to handle them, on real sockets.

What was not observed follows kubelet's source (pkg/kubelet/cm/devicemanager) and says so.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from gpuplane.sandbox.kubelet.endpoint import PRE_START_TIMEOUT

from .plugin import DEV, SIX, calls, device, given, node, wants

# admission


async def test_the_order_of_admission(root: Path) -> None:
    """One preference and one Allocate for each container, with one container request; PreStartContainer for each, when
    all are admitted."""
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        pod = Pod("a", (Container("x", {DEV: 2}), Container("y", {DEV: 1}), Container("z")))
        await kubelet.run(pod)
        await kubelet.until(lambda: kubelet.pods[pod.key].started == {"x", "y", "z"})

        assert calls(kubelet)[3:] == ["GetPreferredAllocation", "Allocate"] * 2 + ["PreStartContainer"] * 2
        assert [len(each.container_requests) for each in plugin.asked("Allocate")] == [1, 1]
        held = [given(kubelet, pod, "x"), given(kubelet, pod, "y")]
        assert [set(each.container_requests[0].devices_ids) for each in plugin.asked("Allocate")] == held
        assert [set(each.devices_ids) for each in plugin.asked("PreStartContainer")] == held


async def test_what_the_plugin_does_not_announce_is_not_called(root: Path) -> None:
    async with node(root, *SIX, prefers=False) as (kubelet, _):
        await kubelet.run(wants("a"))
        assert calls(kubelet)[3:] == ["Allocate"]


async def test_a_preference_is_asked_for_every_allocation(root: Path) -> None:
    """Of size 1 too, and of all that there is; the available ids in random order, and nothing that must be included."""
    orders = set()
    for seed in range(5):
        async with node(root, *SIX, seed=seed) as (kubelet, plugin):
            await kubelet.run(wants("one", 1))
            (one,) = plugin.asked("GetPreferredAllocation")[0].container_requests
            await kubelet.run(wants("rest", 5))
            (rest,) = plugin.asked("GetPreferredAllocation")[1].container_requests

            assert sorted(one.available_deviceIDs) == sorted(SIX)
            assert (list(one.must_include_deviceIDs), one.allocation_size) == ([], 1)
            assert set(rest.available_deviceIDs) == set(SIX) - given(kubelet, kubelet.pods["default/one"].pod)
            assert (list(rest.must_include_deviceIDs), rest.allocation_size) == ([], 5)
            orders.add(tuple(one.available_deviceIDs))
        shutil.rmtree(root / "device-plugins")
    assert len(orders) == 5
    assert SIX not in orders


@pytest.mark.parametrize(
    ("advice", "sure", "count"),
    [
        (["d5", "d2"], {"d5", "d2"}, 2),
        (["d5"], {"d5"}, 2),
        ([], set(), 2),
        (["d5", "none-such", "d5"], {"d5"}, 2),
        (["d5", "d2", "d6"], set(), 2),
    ],
)
async def test_a_preference_is_filled_up(root: Path, advice: list[str], sure: set[str], count: int) -> None:
    """Fewer ids, none, or ids that are not available. Of more than were asked for, any (by the source: it is a set)."""
    async with node(root, *SIX) as (kubelet, plugin):
        plugin.advice = advice
        pod = wants("a", count)
        await kubelet.run(pod)
        held = given(kubelet, pod)
        assert sure <= held <= set(SIX)
        assert len(held) == count
        if len(set(advice) & set(SIX)) > count:
            assert held <= set(advice)


async def test_allocate_gets_the_ids_in_no_order(root: Path) -> None:
    """Not sorted, not in the order of the preference, and another one in PreStartContainer."""
    orders, again = set(), set()
    for seed in range(8):
        async with node(root, *SIX, starts=True, seed=seed) as (kubelet, plugin):
            plugin.advice = ["d6", "d1", "d4", "d2"]
            await kubelet.run(wants("a", 4))
            await plugin.until_asked("PreStartContainer")
            ids = tuple(plugin.asked("Allocate")[0].container_requests[0].devices_ids)
            assert sorted(ids) == ["d1", "d2", "d4", "d6"]
            orders.add(ids)
            again.add(tuple(plugin.asked("PreStartContainer")[0].devices_ids) == ids)
        shutil.rmtree(root / "device-plugins")
    assert len(orders - {("d1", "d2", "d4", "d6"), ("d6", "d1", "d4", "d2")}) > 1
    assert False in again


@pytest.mark.parametrize(
    ("method", "before"),
    [("GetPreferredAllocation", "device plugin GetPreferredAllocation rpc failed with err: "), ("Allocate", "")],
)
async def test_an_error_rejects_the_pod(root: Path, method: str, before: str) -> None:
    """For ever, and with these words. The ids are free again."""
    async with node(root, *SIX) as (kubelet, plugin):
        plugin.errors[method] = "no such luck"
        with pytest.raises(PodRejected) as rejected:
            await kubelet.run(wants("a", 6))
        problem = f"Allocate failed due to {before}rpc error: code = Internal desc = no such luck, which is unexpected"

        assert rejected.value.reason == "UnexpectedAdmissionError"
        assert rejected.value.message == f"Pod was rejected: {problem}"
        assert kubelet.rejected_pods["default/a"] is rejected.value
        assert not kubelet.pods

        del plugin.errors[method]
        await kubelet.run(wants("b", 6))
        assert list(kubelet.rejected_pods) == ["default/a"]

        await kubelet.restart()
        assert kubelet.rejected_pods["default/a"].reason == "ContainerStatusUnknown"


async def test_more_than_there_is_free_is_rejected(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, _):
        await kubelet.run(wants("a", 4))
        with pytest.raises(PodRejected) as rejected:
            await kubelet.run(wants("b", 3))
        numbers = "Requested: 3, Available: 2"
        problem = f"requested number of devices unavailable for {DEV}. {numbers}"
        assert rejected.value.message == f"Pod was rejected: Allocate failed due to {problem}, which is unexpected"


async def test_a_resource_that_the_node_never_had_is_refused(root: Path) -> None:
    """As the scheduler would: it is no matter of the device manager."""
    async with Kubelet(root) as kubelet:
        assert kubelet.insufficient_resources(wants("a")) == [f"Insufficient {DEV}"]
        with pytest.raises(PodRejected) as rejected:
            await kubelet.run(wants("a"))
        assert rejected.value.reason == f"OutOf{DEV}"


async def test_a_request_for_nothing_is_no_request(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, plugin):
        await kubelet.run(wants("a", 0))
        assert not plugin.asked("Allocate")


async def test_a_pod_that_is_there_is_not_run_again(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, _):
        await kubelet.run(wants("a"))
        with pytest.raises(ValueError, match="pod default/a already exists"):
            await kubelet.run(wants("a"))
        assert len(kubelet.devices.held_ids(DEV)) == 1


async def test_only_pre_start_container_has_a_deadline(root: Path) -> None:
    """30 s; Allocate and GetPreferredAllocation may take as long as they like."""
    assert PRE_START_TIMEOUT == 30.0
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        await kubelet.run(wants("a"))
        await plugin.until_asked("PreStartContainer")
        left = {method: seconds for method, _, seconds in plugin.calls}
        assert left["GetPreferredAllocation"] is None
        assert left["Allocate"] is None
        assert left["PreStartContainer"] is not None
        assert 20 < left["PreStartContainer"] < 40


async def test_pre_start_container_that_takes_too_long(root: Path) -> None:
    async with node(root, *SIX, starts=True, pre_start_timeout=0.1) as (kubelet, plugin):
        plugin.gates["PreStartContainer"] = asyncio.Event()
        running = await kubelet.run(wants("a"))
        await kubelet.until(lambda: "main" in running.waiting_reasons)
        problem = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        said = f"device plugin PreStartContainer rpc failed with err: {problem}"
        assert running.waiting_reasons == {"main": ("CreateContainerConfigError", said)}


async def test_an_error_of_pre_start_container_is_tried_again(root: Path) -> None:
    """At once, and then with pauses. The pod keeps its devices, and runs when it succeeds."""
    async with node(root, *SIX, starts=True, retry_interval=0.05) as (kubelet, plugin):
        plugin.errors["PreStartContainer"] = "not yet"
        pod = wants("a", 2)
        running = await kubelet.run(pod)
        await plugin.until_asked("PreStartContainer", times=3)
        problem = "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = not yet"
        assert running.waiting_reasons == {"main": ("CreateContainerConfigError", problem)}
        assert len(given(kubelet, pod)) == 2

        del plugin.errors["PreStartContainer"]
        await kubelet.until(lambda: running.started == {"main"})
        assert running.waiting_reasons == {}
        assert len(plugin.asked("Allocate")) == 1


async def test_a_container_that_is_created_anew_is_prepared_again_with_the_same_ids(root: Path) -> None:
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        pod = wants("a", 3)
        running = await kubelet.run(pod)
        await kubelet.until(lambda: running.started == {"main"})
        kubelet.crash(pod.key)
        await plugin.until_asked("PreStartContainer", times=2)
        assert {frozenset(each.devices_ids) for each in plugin.asked("PreStartContainer")} == {
            frozenset(given(kubelet, pod))
        }
        assert len(plugin.asked("Allocate")) == 1


async def test_containers_reuse_what_init_containers_had(root: Path) -> None:
    """Each has an Allocate of its own. What was reused must be included in a preference (by the source)."""
    async with node(root, *SIX) as (kubelet, plugin):
        containers = Container("x", {DEV: 1}), Container("y", {DEV: 3})
        pod = Pod("a", containers, init=(Container("first", {DEV: 2}), Container("second", {DEV: 1})))
        await kubelet.run(pod)
        first, second, x, y = (given(kubelet, pod, name) for name in ("first", "second", "x", "y"))

        assert len(plugin.asked("Allocate")) == 4
        assert second < first
        assert x < first
        assert x | y > first
        assert not x & y
        asked = [each.container_requests[0] for each in plugin.asked("GetPreferredAllocation")]
        assert [(set(each.must_include_deviceIDs), each.allocation_size) for each in asked] == [
            (set(), 2),
            (first - x, 3),
        ]
        assert len(kubelet.devices.held_ids(DEV)) == 4


async def test_what_a_side_car_has_is_not_reused(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, _):
        init = Container("first", {DEV: 2}), Container("side-car", {DEV: 1})
        pod = Pod("a", (Container("x", {DEV: 2}),), init=init, sidecars=frozenset({"side-car"}))
        await kubelet.run(pod)
        first, sidecar, x = (given(kubelet, pod, name) for name in ("first", "side-car", "x"))
        assert sidecar < first
        assert x & first == first - sidecar
        assert not x & sidecar


async def test_devices_of_one_numa_node_come_first_where_the_topology_manager_says_so(root: Path) -> None:
    """Policy best-effort (policy none asks about all that is available, see above)."""
    async with node(root, *SIX, align_numa=True) as (kubelet, plugin):
        plugin.send(*(device(id, "Healthy", int(id in ("d3", "d4", "d5"))) for id in SIX))
        await kubelet.until(lambda: kubelet.devices.resources[DEV].numa_nodes["d3"] == (1,))
        await kubelet.run(wants("a", 2))
        assert set(plugin.asked("GetPreferredAllocation")[0].container_requests[0].available_deviceIDs) == {
            "d1",
            "d2",
            "d6",
        }
        b = wants("b", 3)
        await kubelet.run(b)
        assert given(kubelet, b) == {"d3", "d4", "d5"}
        assert len(plugin.asked("GetPreferredAllocation")) == 1


# the health of what pods hold


async def test_a_pod_shows_the_health_of_its_devices_and_runs_on(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, plugin):
        await kubelet.run(wants("a", 6))
        plugin.send(*(device(id, "Unhealthy" if id == "d6" else "Healthy") for id in SIX))
        await kubelet.until_capacity(DEV, 6, 5)
        expected = sorted((id, "Unhealthy" if id == "d6" else "Healthy") for id in SIX)
        assert sorted(kubelet.pod_health("default/a")["main"][DEV]) == expected
        assert list(kubelet.pods) == ["default/a"]


async def test_a_lost_stream_and_a_device_that_is_gone_change_nothing_in_a_pod(root: Path) -> None:
    """By the source: UpdateAllocatedResourcesStatus knows the last list, and takes what it lacks for healthy."""
    async with node(root, "d1") as (kubelet, plugin):
        await kubelet.run(wants("a"))
        plugin.send()
        await kubelet.until_capacity(DEV, 0, 0)
        assert kubelet.pod_health("default/a") == {"main": {DEV: [("d1", "Healthy")]}}
        plugin.send(device("d1"))
        await kubelet.until_capacity(DEV, 1, 1)
        await plugin.stop()
        await kubelet.until_capacity(DEV, 1, 0)
        assert kubelet.pod_health("default/a") == {"main": {DEV: [("d1", "Healthy")]}}
