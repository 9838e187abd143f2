"""What is asked for most often is known, of however many requests; and policies look at so many classes at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.policies.expected import MAX_CLASSES, fewest
from gpuplane.cluster.engine.policies.fgd import typical
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.workload import MAX_REQUESTS, RequestClass, Workload
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import NO_NODE_RULES, GpuRequest, NodeRules, Request

ANY = frozenset[str]()
T4 = frozenset({"T4"})
ZONE = NodeRules((("zone", "x"),))

MANY = st.dictionaries(
    st.builds(
        lambda cpu, gpus, milli, models, nodes: RequestClass(cpu, gpus, milli if gpus else 0, models, nodes),
        st.integers(0, 9),
        st.integers(0, 3),
        st.sampled_from([100, 500, 1000]),
        st.sampled_from([ANY, T4]),
        st.sampled_from([NO_NODE_RULES, ZONE]),
    ),
    st.integers(1, 20).map(float),
    min_size=1,
    max_size=60,
)


@given(MANY, st.integers(4, 20))
def test_the_most_frequent_classes_stay_and_all_count(frequency: dict[RequestClass, float], most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpuplane.cluster.engine.policies.expected.MAX_CLASSES", most)
        found = fewest(frequency)

    assert found.keys() <= frequency.keys()
    assert len(found) == min(most, len(frequency))
    assert all(found[each] >= frequency[each] for each in found)
    for gpus in range(4):  # no GPU is asked for that nobody wants, and none is forgotten
        assert sum(number for each, number in found.items() if each.gpus == gpus) == sum(
            number for each, number in frequency.items() if each.gpus == gpus
        )
    left_out = max((frequency[each] for each in frequency if each not in found), default=0.0)
    for each in found:
        if frequency[each] < left_out:
            assert frequency[each] == max(frequency[other] for other in frequency if other.gpus == each.gpus)


def test_a_rare_class_counts_as_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuplane.cluster.engine.policies.expected.MAX_CLASSES", 5)
    share, larger = RequestClass(1000, 1, 200, ANY), RequestClass(8000, 1, 600, ANY)
    t4, in_zone, two = RequestClass(1000, 1, 200, T4), RequestClass(1000, 1, 200, ANY, ZONE), RequestClass(1, 2, 9, ANY)
    rare = {
        RequestClass(1000, 1, 250, ANY): share,
        RequestClass(4000, 1, 500, ANY): larger,
        RequestClass(8000, 1, 600, T4): t4,
        RequestClass(8000, 1, 600, ANY, ZONE): in_zone,
        RequestClass(8000, 2, 600, T4, ZONE): two,
    }
    kept = dict.fromkeys([share, larger, t4, in_zone, two], 10.0)
    for each, nearest in rare.items():
        assert fewest({**kept, each: 1.0}) == {**kept, nearest: 11.0}


def test_a_workload_of_very_many_requests_remembers_the_frequent_ones() -> None:
    """As where each pod names its node: rules that are rare count as none, and what came once is forgotten first."""
    often, in_zone = Request(1000, 5, (GpuRequest(milli=500),)), Request(3000, 0, (GpuRequest(milli=1000),), ZONE)
    workload = Workload({})
    for number in range(3 * MAX_REQUESTS):
        workload.arrive(Request(2000, number, (GpuRequest(milli=200),), NodeRules((("job", str(number)),))))
        workload.arrive(often)
        workload.arrive(Request(number, 0, ()))
        workload.arrive(in_zone)
        assert len(workload._weights) <= MAX_REQUESTS
    classes = workload.classes()
    once = sum(number for each, number in classes.items() if not each.gpus)

    assert 0 < once < 0.25
    assert [classes[each] for each in (RequestClass(1000, 1, 500, ANY), RequestClass(3000, 1, 1000, ANY, ZONE))] == [
        pytest.approx((1 - once) / 3, rel=0.01)
    ] * 2
    assert classes[RequestClass(2000, 1, 200, ANY)] == pytest.approx((1 - once) / 3, rel=0.01)


def test_policies_look_at_a_bounded_number_of_classes() -> None:
    requests = {
        Request(round(100 * 1.2 ** (index % 40)), 0, (GpuRequest(milli=1 + index),)): 1.0 for index in range(999)
    }
    workload = Workload(requests)
    policy = WastePrice(workload)
    policy.refresh(Cluster([Node("a", 64000, 0, (Gpu("a"),) * 8)]))

    assert len(policy.frequency) == len(policy._slots.classes) == len(typical(workload.classes())) == MAX_CLASSES
    assert sum(policy.frequency.values()) == pytest.approx(1)
    assert sum(typical(workload.classes()).values()) == pytest.approx(1)
