"""Which node and which devices pods get. tests/cluster/test_claims_are_allocated.py holds it against kube-scheduler."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.sandbox.scheduler.objects import ClaimStatus, DeviceClass, ResourceClaim, ResourceSlice, from_object
from gpuplane.sandbox.scheduler.scheduling import Cluster, Placement, Unschedulable, decide, find_in_use

Json = dict[str, Any]
NODES = ("a", "b")
CLASS = from_object({"metadata": {"name": "gpu"}, "spec": {}}, DeviceClass)


def node(name: str, **labels: str) -> ApiNode:
    return from_object({"metadata": {"name": name, "labels": labels}}, ApiNode)


def slice_of(devices: int, on: str = "a", **device: Any) -> ResourceSlice:
    pool = {"name": on, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"gpu-{index}", **device} for index in range(devices)]
    spec = {"driver": "gpu.example.com", "pool": pool, "nodeName": on, "devices": listed}
    return from_object({"metadata": {"name": f"slice-{on}"}, "spec": spec}, ResourceSlice)


def claim(name: str = "c", requests: Iterable[Json] = ({},), **devices: Any) -> ResourceClaim:
    """A claim of requests r0, r1 ...; each a change of a request for one GPU, or one with alternatives."""
    listed = [
        {"name": f"r{index}", **({} if "firstAvailable" in each else {"exactly": {"deviceClassName": "gpu", **each}})}
        | {key: value for key, value in each.items() if key == "firstAvailable"}
        for index, each in enumerate(requests)
    ]
    spec = {"devices": {"requests": listed, **devices}}
    return from_object(
        {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec}, ResourceClaim
    )


def pod(*claims: str, **spec: Any) -> ApiPod:
    wanted = [{"name": each, "resourceClaimName": each} for each in claims]
    metadata = {"name": "p", "namespace": "default", "uid": "uid-p"}
    return from_object({"metadata": metadata, "spec": {"resourceClaims": wanted, **spec}}, ApiPod)


def cluster(
    slices: Iterable[ResourceSlice], *claims: ResourceClaim, classes: Iterable[DeviceClass] = (CLASS,), **more: Any
) -> Cluster:
    nodes = more.pop("nodes", tuple(map(node, NODES)))
    return Cluster(nodes, slices=tuple(slices), classes=tuple(classes), claims=claims, **more)


def placed(found: Cluster, pod: ApiPod) -> Placement:
    placement = decide(found, pod)
    assert placement is not None
    return placement


def devices(placement: Placement) -> list[str]:
    """ "request device" of all claims."""
    allocations = placement.allocations.values()
    return [f"{each.request} {each.device}" for one in allocations for each in one.devices.results]


def refused(found: Cluster, pod: ApiPod) -> str:
    with pytest.raises(Unschedulable) as why:
        decide(found, pod)
    return str(why.value)


def allocated(found: ResourceClaim, placement: Placement) -> ResourceClaim:
    return ResourceClaim(found.metadata, found.spec, ClaimStatus(placement.allocations[found.key]))


def test_a_request_gives_way_to_one_after_it() -> None:
    """The first alternative takes a device that the second request needs: the second alternative is taken."""
    alternatives = [{"name": "two", "deviceClassName": "gpu", "count": 2}, {"name": "one", "deviceClassName": "gpu"}]
    wanted = claim(requests=[{"firstAvailable": alternatives}, {}])
    assert devices(placed(cluster([slice_of(2)], wanted), pod("c"))) == ["r0/one gpu-0", "r1 gpu-1"]


def test_a_later_node_has_enough() -> None:
    assert placed(cluster([slice_of(1, "a"), slice_of(2, "b")], claim(requests=[{"count": 2}])), pod("c")).node == "b"


@pytest.mark.parametrize(
    "device",
    [
        {"taints": [{"key": "x", "effect": "NoSchedule"}]},
        {"allowMultipleAllocations": True},
        {"bindingConditions": ["attached"]},
        {"consumesCounters": [{"counterSet": "gpu", "counters": {}}]},
    ],
)
def test_devices_that_nobody_is_given(device: Json) -> None:
    """Tainted ones, and those of which not enough is known here."""
    said = refused(cluster([slice_of(1, **device)], claim()), pod("c"))
    assert said == "0/2 nodes are available: 2 cannot allocate all claims."


def test_who_tolerates_a_taint_is_given_the_device() -> None:
    tainted = slice_of(1, taints=[{"key": "x", "effect": "NoSchedule"}])
    wanted = claim(requests=[{"tolerations": [{"operator": "Exists"}]}])
    assert devices(placed(cluster([tainted], wanted), pod("c"))) == ["r0 gpu-0"]


def test_a_pool_that_is_being_updated_gives_nothing() -> None:
    """One of its slices is missing; a slice of an older generation does not count."""
    old = slice_of(2)
    spec = {"driver": "gpu.example.com", "nodeName": "a", "devices": [{"name": "new"}]}
    pool = {"name": "a", "generation": 2, "resourceSliceCount": 2}
    new = [
        from_object({"metadata": {"name": f"new-{n}"}, "spec": {**spec, "pool": pool}}, ResourceSlice) for n in range(2)
    ]
    assert "cannot allocate" in refused(cluster([old, new[0]], claim()), pod("c"))
    assert devices(placed(cluster([old, *new], claim()), pod("c"))) == ["r0 new"]


def test_a_claim_stays_where_its_devices_are() -> None:
    wanted = claim()
    first = placed(cluster([slice_of(1, "a")], wanted), pod("c"))
    elsewhere = (node("a"), node("b", on="b"))
    found = cluster([slice_of(1, "a")], allocated(wanted, first), nodes=elsewhere)
    assert placed(found, pod("c")) == Placement("a")
    assert "1 resourceclaim not available on the node" in refused(found, pod("c", nodeSelector={"on": "b"}))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeSelector": {"a": "b"}}, "node(s) didn't match Pod's node affinity/selector"),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "3"}}}]}, "Insufficient nvidia.com/gpu"),
        ({"containers": [{"resources": {"requests": {"cpu": "1501m"}}}]}, "Insufficient cpu"),
        ({"initContainers": [{"resources": {"requests": {"cpu": "3"}}}]}, "Insufficient cpu"),
        ({"tolerations": []}, "node(s) had untolerated taint(s)"),
    ],
)
def test_what_keeps_a_pod_from_a_node(spec: Json, why: str) -> None:
    """Beside a pod that has one GPU of three, and half a CPU of two."""
    status = {"allocatable": {"cpu": "2", "nvidia.com/gpu": "3", "pods": "9"}}
    taints = {"taints": [{"key": "x", "effect": "NoSchedule"}]}
    there = from_object({"metadata": {"name": "a"}, "spec": taints, "status": status}, ApiNode)
    takes = {"cpu": "500m", "nvidia.com/gpu": "1"}
    other = pod(nodeName="a", containers=[{"resources": {"limits": takes}}])
    found = cluster([], nodes=(there,), pods=(other,))
    tolerant: Json = {"tolerations": [{"operator": "Exists"}]}
    assert refused(found, pod(**tolerant | spec)) == f"0/1 nodes are available: 1 {why}."
    assert placed(found, pod(**tolerant, containers=[{"resources": {"limits": {"nvidia.com/gpu": "2"}}}])).node == "a"


def test_a_missing_class_is_named() -> None:
    assert "request r0: device class gpu does not exist" in refused(
        cluster([slice_of(1)], claim(), classes=()), pod("c")
    )


def test_a_pod_waits_for_its_claim() -> None:
    going = claim()
    going = ResourceClaim(
        from_object({**META, "deletionTimestamp": "2026-11-22T00:00:00Z"}, type(going.metadata)), going.spec
    )
    assert decide(cluster([slice_of(1)]), pod("c")) is None
    assert decide(cluster([slice_of(1)], going), pod("c")) is None


def test_a_claim_of_another_pod_of_that_name_is_not_taken() -> None:
    """The claim of a template belongs to the pod with the UID that its owner has."""
    metadata = from_object(
        {**META, "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "uid-old"}]}, type(claim().metadata)
    )
    made = {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "c"}]}
    spec = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}

    def of(uid: str) -> ApiPod:
        head = {"name": "p", "namespace": "default", "uid": uid}
        return from_object({"metadata": head, "spec": spec, "status": made}, ApiPod)

    found = cluster([slice_of(1)], ResourceClaim(metadata, claim().spec))
    assert decide(found, of("uid-new")) is None
    assert decide(found, of("uid-old")) is not None


META = {"name": "c", "namespace": "default", "uid": "uid-c"}
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(1, 3),
        "allocationMode": st.sampled_from(["ExactCount", "All"]),
        "adminAccess": st.booleans(),
        "tolerations": st.just([{"operator": "Exists"}]),
    },
)
CLAIMS = st.lists(st.lists(REQUEST, min_size=1, max_size=3), min_size=1, max_size=6)
TAINTS = st.sampled_from([[], [{"key": "x", "effect": "NoSchedule"}], [{"key": "x", "effect": "None"}]])


@given(claims=CLAIMS, count=st.integers(0, 5), taints=TAINTS)
def test_no_device_is_held_by_two_claims(claims: list[list[Json]], count: int, taints: list[Json]) -> None:
    """One pod after another, each with a claim of its own: but for admin access each device has one holder."""
    slices = [slice_of(count, "a", taints=taints), slice_of(2, "b")]
    done: list[ResourceClaim] = []
    for index, requests in enumerate(claims):
        wanted = claim(f"c{index}", requests)
        try:
            placement = placed(cluster(slices, *done, wanted), pod(f"c{index}"))
        except Unschedulable:
            continue
        before = find_in_use(done)
        done.append(allocated(wanted, placement))
        results = placement.allocations[wanted.key].devices.results
        assert len({each.id for each in results}) == len(results)
        assert not before & {each.id for each in results if not each.admin_access}
        assert all(each.pool == placement.node for each in results)
