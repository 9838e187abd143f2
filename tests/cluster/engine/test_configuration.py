"""A policy is chosen and weighted by a text; what is wrong with a configuration is said with its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.strict import InvalidInput
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.configuration import PlacementConfig, load_config
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import POLICIES, UnknownPolicy, make_policy, parse_policy
from gpuplane.cluster.engine.policies.fgd import Fgd
from gpuplane.cluster.engine.policies.weighted import Weighted
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Request

HALF = Request(1000, 0, (GpuRequest(milli=500),))
NODES = [Node(name, 8000, 1000, (Gpu(f"{name}-0"), Gpu(f"{name}-1"))) for name in "abc"]


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_is_a_policy(name: str) -> None:
    cluster = Cluster(NODES)

    assert Engine(cluster, make_policy(name)).choose(HALF) is not None


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("fgd", {"fgd": 1.0}),
        ("waste-price:2+spread:0.25", {"waste-price": 2.0, "spread": 0.25}),
        ("binpack+spread", {"binpack": 1.0, "spread": 1.0}),
    ],
)
def test_names_and_weights(text: str, weights: dict[str, float]) -> None:
    assert parse_policy(text) == weights


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no policy"),
        ("best", "'best' is no policy: there are binpack"),
        ("fgd+", "'' is no policy"),
        ("fgd+fgd:2", "has fgd twice"),
        ("fgd:0", "a weight is a number above 0"),
        ("fgd:-1", "a weight is a number above 0"),
        ("fgd:nan", "a weight is a number above 0"),
        ("fgd:", "a weight is a number above 0"),
        ("fgd:1e400", "a weight is a number above 0"),
        ("FGD", "'FGD' is no policy"),
    ],
)
def test_what_is_no_policy(text: str, says: str) -> None:
    with pytest.raises(UnknownPolicy, match=says):
        make_policy(text)


@given(st.text(max_size=30))
def test_any_text_is_a_policy_or_says_why_not(text: str) -> None:
    try:
        assert all(weight > 0 for weight in parse_policy(text).values())
    except UnknownPolicy as error:
        assert f"{error}"


def test_the_heavier_policy_decides() -> None:
    """Two that want the opposite; beside equal weights they cancel out, and the first node is taken."""

    def places(policy: str) -> set[str]:
        engine, found = Engine(Cluster(NODES), make_policy(policy)), set()
        for _ in range(3):
            placement = engine.choose(HALF)
            assert placement is not None
            engine.cluster.take(HALF, placement)
            found.add(placement.node)
        return found

    assert places("binpack:1+spread:0.5") == places("binpack") == {"a"}
    assert places("binpack:0.5+spread:1") == places("spread") == {"a", "b", "c"}
    assert places("waste-price:1000+spread:0.001") == places("waste-price")
    assert places("waste-price:0.001+spread:1000") == places("spread")


def test_a_sum_prices_anew_when_one_of_its_policies_does() -> None:
    cluster = Cluster(NODES)
    policy = make_policy("waste-price+fgd:0.5")
    assert isinstance(policy, Weighted)
    first = policy.refresh(cluster)
    assert policy.refresh(cluster) is first
    cluster.take(HALF, Engine(cluster, policy).choose(HALF))  # type: ignore[arg-type]
    assert policy.refresh(cluster) is first  # one pod is not enough to move prices
    for each in "bc":
        cluster.remove_node(each)
    assert policy.refresh(cluster) is not first


def test_one_policy_with_a_weight_is_that_policy() -> None:
    assert isinstance(make_policy("fgd:3"), Fgd)


def test_a_configuration_is_read() -> None:
    found = load_config(
        b"policy: fgd:2+spread:1\n"
        b"arrivals: 100\n"
        b"expected:\n"
        b"- {gpus: 2, milli: 500, cpuMilli: 4000, models: [A100], weight: 3}\n"
        b"- {memoryMiB: 2048}\n"
        b"- {gpus: 0, cpuMilli: 1000}\n"
        b"- {profile: 1g.10gb+me}\n"
        b"- {gpus: 8}\n",
        "p.yaml",
    )

    assert found.policy == "fgd:2+spread:1"
    assert [each.request() for each in found.expected] == [
        Request(4000, 0, (GpuRequest(2, 500, models=frozenset({"A100"})),)),
        Request(0, 0, (GpuRequest(memory_mib=2048),)),
        Request(1000),
        Request(0, 0, (GpuRequest(profile="1g.10gb+me"),)),
        Request(0, 0, (GpuRequest(8, MILLI_PER_GPU),)),
    ]
    frequency = found.workload().classes()
    assert sum(frequency.values()) == pytest.approx(1.0)
    assert max(frequency, key=lambda each: frequency[each]).gpus == 2


def test_nothing_configured_expects_whole_gpus() -> None:
    config = load_config(b"{}", "p.yaml")

    assert config == PlacementConfig()
    assert {each.gpus for each in config.workload().classes()} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("policy: best", "p.yaml:1: policy: 'best' is no policy"),
        ("polcy: fgd", "p.yaml:1: unknown key 'polcy'; did you mean 'policy'"),
        ("expected:\n- {gpus: 0, milli: 5}", "p.yaml:2: expected[0] asks for no GPU"),
        ("expected:\n- {gpus: 0}", "p.yaml:2: expected[0] asks for nothing"),
        ("expected:\n- {profile: 1g, milli: 5}", "p.yaml:2: expected[0]: a MIG device has a profile"),
        ("expected:\n- {gpus: 1, milli: 1001}", "p.yaml:2: expected[0].milli: must be a whole number from 0 to 1000"),
        ("expected:\n- {weight: 0}", "p.yaml:2: expected[0].weight: must be a number above 0"),
        ("expected:\n- {weight: .nan}", "p.yaml:2: expected[0].weight: must be a number above 0"),
        ("arrivals: -1", "p.yaml:1: arrivals: must be a number from 0"),
        ("expected:\n- gpus: 1\n  profile: 1g10gb", "p.yaml:3: expected[0].profile: '1g10gb' is not the name of a MIG"),
        ("expected:\n- {profile: 1g.10gb+mee}", "p.yaml:2: expected[0].profile: '1g.10gb+mee': no MIG profile has"),
        ("- fgd", "p.yaml:1:"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as invalid:
        load_config(text.encode(), "p.yaml")
    assert says in f"{invalid.value}"
