"""Why these devices: the answer to one question with what it is worth, what it leaves, and what else there was.

For `gpuplane choose`: it asks the very function that answers kubelet.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import combinations

from gpuplane.core import mps
from gpuplane.core.advertising import offer
from gpuplane.core.allocate.answers import allocate
from gpuplane.core.choice.prefer import pairs_of, policy_of, prefer, stocks, weak
from gpuplane.core.choice.question import Question
from gpuplane.core.choice.search import bound
from gpuplane.core.choice.sets import AHEAD, Sets
from gpuplane.core.choice.tables import prepare, prepared
from gpuplane.core.choice.topology import Policy, Worths, worth
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.value import Value
from gpuplane.model.views import Refused, Resource

SHOWN = 5
"""How many kinds of sets are shown."""

BY_POLICY: dict[Policy, str] = {
    "distributed": "as many GPUs as there are, the least used first",
    "packed": "as few GPUs as there can be, the most used first",
    "topology": "as many GPUs as there are, those that lie best",
    "numa": "as many GPUs as there are, the most pairs of them on one NUMA node",
}


def rule(resource: Resource, policy: Policy, said: str = "") -> str:
    """How shares of a resource are chosen. `said`: where the policy was."""
    if resource.share_mib:
        return "all of the one device where the least is left over"
    return f"{BY_POLICY[policy]}{said}{'; one of each GPU' * resource.distinct_gpus}"


class Kind(Value):
    """All sets of whole GPUs that are worth the same and leave the same."""

    worth: int
    leaves: tuple[int | None, ...]  # the worth of the best 8, 4 and 2 of what is left; None where too few are
    sets: int  # how many there are
    gpus: tuple[int, ...]  # the indices of the lowest


class Choice(Value):
    """One answer."""

    resource: str
    policy: Policy
    ids: tuple[str, ...]
    gpus: dict[int, int]  # index of a GPU → how many ids are of it
    worth: int  # of the GPUs, each with each
    bound: int | None  # where whole GPUs were searched: what no set can be worth more than
    leaves: tuple[int | None, ...]  # as in Kind; () for shares, and where no table is made of so many GPUs
    kinds: tuple[Kind, ...]  # of whole GPUs, the best first; () as for `leaves`
    why: str
    note: str  # what the answer supposes; "" for nothing
    refused: str  # why a container that asks for so many would not be started all the same; "" if it would be


def explain(
    snapshot: Snapshot,
    resource: str,
    available: Collection[str] | None,
    required: Collection[str],
    size: int,
    policy: Policy | None = None,
) -> Choice:
    """What `prefer` answers, and why, as if all MPS daemons served. `available`: None for all that is healthy."""
    snapshot, policy = mps.served(snapshot), policy or policy_of(snapshot)
    kind = offer(snapshot).resource(resource) or Resource(name=resource, devices=())
    if available is None:
        available = [device.id for device in kind.devices if not device.reasons]
    pairs = pairs_of(snapshot, policy)
    prepare(pairs)
    ids = prefer(snapshot, resource, available, required, size, policy)
    gpus = snapshot.gpus
    places = _places(snapshot, kind)
    counts = {place: sum(places[id] == place for id in ids) for place in sorted({places[id] for id in ids})}
    whole = len({*places.values()}) == len(places) and not kind.share_mib
    question = _question(snapshot, resource, available, required, size)
    table = prepared(pairs) if whole and question.possible else None
    of_kind = tuple(_kinds(table, question, pairs)) if table is not None else ()
    return Choice(
        resource=resource,
        policy=policy,
        ids=ids,
        gpus={gpus[place].index: count for place, count in counts.items()},
        worth=worth(pairs, tuple(counts)),
        bound=bound(pairs, question) if whole and question.possible and table is None else None,
        leaves=_leaves(table, question.there - counts.keys()) if table is not None else (),
        kinds=tuple(kind.but(gpus=tuple(gpus[place].index for place in kind.gpus)) for kind in of_kind[:SHOWN]),
        why=_why(question, of_kind) if whole else f"shares: {_why_shares(kind, policy, len(ids) < size)}",
        note=mps.AS_IF if kind.mps else "",
        refused=_refused(snapshot, kind, frozenset(available), ids, size),
    )


def _places(snapshot: Snapshot, resource: Resource) -> dict[str, int]:
    """id → its GPU's position in the machine's list."""
    gpus = {gpu.uuid: n for n, gpu in enumerate(snapshot.gpus)}
    return {device.id: gpus[device.unit.gpu] for device in resource.devices}


def _refused(snapshot: Snapshot, resource: Resource, available: Set[str], ids: Sequence[str], size: int) -> str:
    """Why this advice leads to nothing. What it lacks kubelet takes from the available; others hold all else."""
    rest = (device.id for device in resource.devices if device.id in available and device.id not in ids)
    got = (*ids, *rest)[:size]
    if len(got) < size:
        return f"{resource.name}: {size} requested, {len(got)} available: kubelet does not admit the pod"
    held = (device.id for device in resource.devices if device.id not in available and device.id not in got)
    try:
        allocate(
            snapshot.but(allocations=(Allocation(resource=resource.name, devices=tuple(held)),)), resource.name, got
        )
    except Refused as refused:
        return str(refused)
    return ""


def _question(
    snapshot: Snapshot, resource: str, available: Collection[str], required: Collection[str], size: int
) -> Question:
    found = stocks(snapshot, resource, available, frozenset(required))
    return Question(
        available=frozenset(stock.gpu for stock in found if stock.free),
        required=frozenset(stock.gpu for stock in found if stock.taken),
        size=size,
        costs=weak(snapshot),
    )


def _kinds(table: Sets, question: Question, pairs: Worths) -> Iterator[Kind]:
    """The sets that there are, the best first, as `sets` puts them in order."""
    found: dict[tuple[int, tuple[int | None, ...]], list[tuple[int, ...]]] = {}
    for chosen in combinations(sorted(question.there), question.size):
        if question.required <= {*chosen}:
            key = worth(pairs, chosen), _leaves(table, question.there.difference(chosen))
            found.setdefault(key, []).append(chosen)
    for (points, leaves), sets in sorted(found.items(), key=lambda each: _rank(*each[0]), reverse=True):
        yield Kind(worth=points, leaves=leaves, sets=len(sets), gpus=min(sets))


def _rank(points: int, leaves: Iterable[int | None]) -> tuple[int, ...]:
    return points, *(-1 if left is None else left for left in leaves)


def _leaves(table: Sets, gpus: Collection[int]) -> tuple[int | None, ...]:
    return tuple(table.left(size, gpus) for size in AHEAD)


def _why_shares(resource: Resource, policy: Policy, few: bool) -> str:
    return "no device has so many" if resource.share_mib and few else rule(resource, policy)


def _why(question: Question, kinds: tuple[Kind, ...]) -> str:
    if len(question.there) <= question.size:
        return "these are all that there are"
    if not question.possible:
        return "more are required than are asked for"
    if not kinds:
        return "the best that a search found: there are too many GPUs to look at all sets"
    best, count = kinds[0], sum(kind.sets for kind in kinds if kind.worth == kinds[0].worth)
    if count == 1:
        return "no other set is worth as much"
    if best.sets == 1:
        return f"of the {count} sets that are worth most it leaves most"
    last = "the one with the fewest degraded GPUs" if question.costs else "the lowest"
    if best.sets == count:
        return f"{count} sets are worth as much and leave as much: {last}"
    return f"of the {count} sets that are worth most {best.sets} leave most: {last}"
