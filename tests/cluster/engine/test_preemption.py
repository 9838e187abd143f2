"""What has to end for a pod to fit: no more than that, nobody more important than has to, and nobody who may not."""

from itertools import chain, combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.preemption import Preemption, find_preemption, preempts
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Placement, Request, Share

BUDGETS = ("x", "y")


def node(name: str, gpus: int = 2, cpu: int = 8000) -> Node:
    return Node(name, cpu, 1024, tuple(Gpu(f"{name}-{index}") for index in range(gpus)))


def wants(count: int = 1, milli: int = MILLI_PER_GPU, cpu: int = 0) -> Request:
    return Request(cpu, 0, (GpuRequest(count, milli),))


def runs(name: str, on: str, *gpus: int, milli: int = MILLI_PER_GPU, priority: int = 0) -> Pod:
    shares = tuple(Share(gpu, milli) for gpu in gpus)
    return Pod(f"uid {name}", name, wants(len(gpus), milli), priority=priority, placement=Placement(on, (shares,)))


def cluster_of(nodes: list[Node], pods: list[Pod]) -> Cluster:
    cluster = Cluster(nodes)
    for each in pods:
        assert each.placement is not None
        cluster.take(each.request, each.placement)
    return cluster


def names(found: Preemption | None) -> list[str] | None:
    return None if found is None else sorted(each.name for each in found.ends)


def test_the_least_important_ends() -> None:
    pods = [runs("low", "a", 0, priority=1), runs("high", "a", 1, priority=5), runs("other", "b", 0, 1, priority=2)]
    cluster = cluster_of([node("a"), node("b")], pods)

    assert names(find_preemption(cluster, wants(), pods, preempts(Pod("", "", wants(), priority=9)))) == ["low"]
    assert names(find_preemption(cluster, wants(2), pods, preempts(Pod("", "", wants(), priority=9)))) == ["other"]
    assert names(find_preemption(cluster, wants(2), pods, preempts(Pod("", "", wants(), priority=2)))) is None
    assert names(find_preemption(cluster, wants(3), pods, lambda pod: True)) is None


def test_few_end_rather_than_many() -> None:
    """Of equal priority: one whole GPU's pod, not the five that share another."""
    pods = [runs("whole", "a", 0), *(runs(f"share {index}", "a", 1, milli=200) for index in range(5))]
    cluster = cluster_of([node("a")], pods)

    assert names(find_preemption(cluster, wants(), pods, lambda pod: True)) == ["whole"]
    assert names(find_preemption(cluster, wants(milli=200), pods, lambda pod: True)) == ["share 4"]


def test_who_makes_no_room_by_ending_does_not_end() -> None:
    static = runs("static", "a", 0).but(can_end=False)
    cluster = cluster_of([node("a", 1)], [static])

    assert find_preemption(cluster, wants(), [static], lambda pod: True) is None


def test_a_closed_node_is_left_alone() -> None:
    pods = [runs("low", "a", 0, 1)]
    cluster = cluster_of([node("a").but(is_schedulable=False)], pods)

    assert find_preemption(cluster, wants(), pods, lambda pod: True) is None


def ends(cluster: Cluster, request: Request, pods: list[Pod], **budgets: int) -> list[str] | None:
    """The names of those that end when `budgets` allow so many."""
    return names(find_preemption(cluster, request, pods, lambda pod: True, budgets))


def test_a_budget_of_disruption_is_exceeded_only_where_nothing_else_helps() -> None:
    """Rather does a more important pod end. Without another way it is exceeded all the same, as kube-scheduler does."""
    web = [runs(f"web {gpu}", "a", gpu).but(budgets=("web",)) for gpu in range(2)]
    pods = [*web, runs("high", "b", 0, priority=5), runs("higher", "b", 1, priority=6)]
    cluster = cluster_of([node("a"), node("b")], pods)

    assert ends(cluster, wants(), pods, web=0) == ["high"]
    assert ends(cluster, wants(), pods, web=1) in (["web 0"], ["web 1"])
    assert ends(cluster, wants(2), pods, web=1) == ["high", "higher"]
    assert ends(cluster, wants(2), pods, web=2) == ["web 0", "web 1"]
    assert ends(cluster, wants(2), web, web=1) == ["web 0", "web 1"]
    found = find_preemption(cluster, wants(2), web, lambda pod: True, {"web": 1})
    assert found is not None
    assert (found.exceeded({"web": 1}), found.exceeded({"web": 2}), found.cost({"web": 0})[0]) == (("web",), (), 2)


def test_on_one_node_those_end_whose_budget_allows_it() -> None:
    """Also where they are more important, or have more of a GPU."""
    few = runs("few", "a", 0, milli=500).but(budgets=("b",))
    pods = [few, runs("many", "a", 1, priority=3)]
    cluster = cluster_of([node("a")], pods)

    assert ends(cluster, wants(), pods, b=0) == ["many"]
    assert ends(cluster, wants(), pods, b=1) == ["few"]


@given(st.integers(0, 2**32), st.sampled_from([wants(1), wants(2), wants(1, 700), wants(2, 300, 3000)]))
def test_it_is_what_a_search_through_all_sets_would_find(seed: int, request: Request) -> None:
    """It fits then; none ends in vain; and no other choice has a less important most important victim."""
    random = Random(seed)
    cluster, pods = Cluster([node("a"), node("b", 3, 4000)]), list[Pod]()
    engine = Engine(cluster, make_policy("spread"))
    for index in range(random.randint(1, 8)):
        asked = wants(random.choice((1, 1, 2)), random.choice((300, 500, 1000)), random.choice((0, 500, 2000)))
        if (placement := engine.choose(asked)) is not None:
            cluster.take(asked, placement)
            budgets = tuple(name for name in BUDGETS if random.random() < 0.3)
            priority = random.randint(0, 3)
            pods.append(Pod(f"{index}", f"{index}", asked, priority=priority, placement=placement, budgets=budgets))
    most, allowed = random.randint(1, 4), {name: random.choice((0, 9)) for name in BUDGETS}

    before = cluster.milli_free.copy()
    found = find_preemption(cluster, request, pods, lambda pod: pod.priority < most, allowed)
    assert (cluster.milli_free == before).all()

    may_end = [each for each in pods if each.priority < most]
    sets = chain.from_iterable(combinations(may_end, count) for count in range(len(may_end) + 1))
    helping = [ends for ends in sets if fits_without(cluster, request, ends)]
    if () in helping:
        return  # it fits as it is
    assert (found is None) == (not helping)
    if found is None:
        return
    assert fits_without(cluster, request, found.ends)
    assert {each.placement.node for each in found.ends if each.placement} == {found.placement.node}
    for each in found.ends:
        assert not on_node(cluster, request, [other for other in found.ends if other is not each], found.placement.node)
    within = [ends for ends in helping if all(allowed[name] for each in ends for name in each.budgets)]
    assert bool(found.exceeded(allowed)) == (not within)
    if within:
        assert found.cost(allowed)[1] == min(max(each.priority for each in ends) for ends in within)


def fits_without(cluster: Cluster, request: Request, ends: tuple[Pod, ...]) -> bool:
    rest = cluster.copy()
    for each in ends:
        assert each.placement is not None
        rest.give_back(each.request, each.placement)
    return Engine(rest, make_policy("binpack")).choose(request) is not None


def on_node(cluster: Cluster, request: Request, ends: list[Pod], name: str) -> bool:
    """Whether it fits on this node without these."""
    rest = cluster.copy()
    for each in ends:
        assert each.placement is not None
        rest.give_back(each.request, each.placement)
    found = Engine(rest, make_policy("binpack")).choose(request)
    return found is not None and found.node == name
