"""The decisions that no recording has, and what holds for all of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.kubernetes.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuplane.sandbox.scheduler.claims import ClaimStatus, ResourceClaim
from gpuplane.sandbox.scheduler.nodeselection import matches_node
from gpuplane.sandbox.scheduler.objects import from_object
from gpuplane.sandbox.scheduler.scheduling import Cluster, Decision, decide, find_in_use
from gpuplane.sandbox.scheduler.slices import DeviceClass, ResourceSlice

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
    slices: Iterable[ResourceSlice], *claims: ResourceClaim, classes: Iterable[DeviceClass] = (CLASS,)
) -> Cluster:
    return Cluster(tuple(map(node, NODES)), tuple(slices), tuple(classes), claims)


def devices(decision: Decision) -> Mapping[str, list[str]]:
    """Claim → "request device"."""
    return {
        name: [f"{each.request} {each.device}" for each in allocation.devices.results]
        for name, allocation in decision.allocations.items()
    }


def allocated(found: ResourceClaim, decision: Decision, *reserved: Any) -> ResourceClaim:
    return ResourceClaim(found.metadata, found.spec, ClaimStatus(decision.allocations[found.metadata.name], reserved))


def test_a_request_gives_way_to_one_after_it() -> None:
    """The first alternative takes a device that the second request needs: the second alternative is taken."""
    alternatives = [{"name": "two", "deviceClassName": "gpu", "count": 2}, {"name": "one", "deviceClassName": "gpu"}]
    wanted = claim(requests=[{"firstAvailable": alternatives}, {}])

    decision = decide(cluster([slice_of(2)], wanted), pod("c"))

    assert devices(decision) == {"c": ["r0/one gpu-0", "r1 gpu-1"]}


def test_an_alternative_that_is_too_large_for_a_claim_is_passed_over() -> None:
    alternatives = [{"name": "most", "deviceClassName": "gpu", "count": 32}, {"name": "one", "deviceClassName": "gpu"}]
    wanted = claim(requests=[{}, {"firstAvailable": alternatives}])

    decision = decide(cluster([slice_of(40)], wanted), pod("c"))

    assert devices(decision) == {"c": ["r0 gpu-0", "r1/one gpu-1"]}


def test_a_node_with_the_better_alternative_is_taken() -> None:
    alternatives = [{"name": "two", "deviceClassName": "gpu", "count": 2}, {"name": "one", "deviceClassName": "gpu"}]
    wanted = claim(requests=[{"firstAvailable": alternatives}])

    assert decide(cluster([slice_of(1, "a"), slice_of(2, "b")], wanted), pod("c")).node == "b"


def test_nodes_that_are_as_good_are_named() -> None:
    decision = decide(cluster([slice_of(1, "a"), slice_of(1, "b")], claim()), pod("c"))

    assert (decision.node, decision.as_good) == ("a", ("b",))


def test_a_configuration_for_two_requests_is_there_twice() -> None:
    """As kube-scheduler copies it. One that names a request of an alternative that was not taken is left out."""
    opaque = {"driver": "gpu.example.com", "parameters": {"kind": "X"}}
    config = [{"requests": ["r0", "r1"], "opaque": opaque}, {"requests": ["r1/other"], "opaque": opaque}]

    decision = decide(cluster([slice_of(2)], claim(requests=[{}, {}], config=config)), pod("c"))

    assert [each.requests for each in decision.allocations["c"].devices.config] == [("r0", "r1")] * 2


def test_a_missing_class_is_named() -> None:
    decision = decide(cluster([slice_of(1)], claim(), classes=()), pod("c"))

    assert decision.outcome == "unschedulable"
    assert "request r0: device class gpu does not exist" in decision.message


def test_a_pod_waits_for_its_claim() -> None:
    going = claim()
    going = ResourceClaim(
        from_object({**META, "deletionTimestamp": "2026-11-22T00:00:00Z"}, type(going.metadata)), going.spec
    )

    assert decide(cluster([slice_of(1)]), pod("c")).outcome == "waiting"
    assert decide(cluster([slice_of(1)], going), pod("c")).outcome == "waiting"


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
    assert decide(found, of("uid-new")).outcome == "waiting"
    assert decide(found, of("uid-old")).outcome == "scheduled"


def test_an_unused_allocation_on_a_wrong_node_is_dropped() -> None:
    wanted = claim()
    first = decide(cluster([slice_of(1, "a")], wanted), pod("c"))

    decision = decide(cluster([slice_of(1, "a")], allocated(wanted, first)), pod("c", nodeSelector={"on": "b"}))

    assert decision.outcome == "unschedulable"
    assert decision.deallocate == ""  # no node suits the pod itself
    elsewhere = from_object({"metadata": {"name": "b", "labels": {"on": "b"}}}, ApiNode)
    found = Cluster((node("a"), elsewhere), (slice_of(1, "a"),), (CLASS,), (allocated(wanted, first),))
    assert decide(found, pod("c", nodeSelector={"on": "b"})).deallocate == "c"


def test_a_slice_is_for_the_nodes_that_its_selector_matches() -> None:
    """What matches is held in tests/node/core/test_nodeselection.py."""
    selector = NodeSelector((NodeSelectorTerm((Requirement("n", "In", ("5",)),)),))

    assert matches_node(selector, node("a", n="5"))
    assert not matches_node(selector, node("a", n="6"))


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
        decision = decide(cluster(slices, *done, wanted), pod(f"c{index}"))
        if decision.outcome == "scheduled":
            before = find_in_use(done).devices
            done.append(allocated(wanted, decision))
            results = done[-1].status.allocation.devices.results  # type: ignore[union-attr]
            assert len({each.id for each in results}) == len(results)
            assert not before & {each.id for each in results if not each.admin_access}
            assert all(each.pool == decision.node for each in results)
