"""Which shares to take: ids that share GPUs, as time slices and MIG devices do.

Shares are spread or packed, and where that leaves a choice of GPUs, the best set of them is taken (`tables`):
- distributed: as many GPUs as possible, so that each next id of one GPU comes after a first of every other; then the
  least used; then the GPUs that lie best.
- packed: as few GPUs as possible; then the most used, each filled up before the next; then those that lie best.
- topology, numa: as many GPUs as possible; then those that lie best, with what the request has already; then the
  least used.
Where that leaves a choice still, the lowest position.

NVIDIA's plugin (internal/rm/allocate.go) knows the first two, and looks at how much is used before it looks at the
request, at links not at all: with theirs a packed request that one GPU could serve may be cut in two.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, groupby

from gpuplane.core.choice.question import Question
from gpuplane.core.choice.topology import Policy
from gpuplane.model.value import Value

Best = Callable[[Question], Sequence[int]]
"""The best set of GPUs."""


class Stock(Value):
    """What there is of one GPU for one request."""

    gpu: int  # its position in the machine's list
    used: int  # ids that other containers hold
    taken: int  # ids that the request has already
    free: Sequence[str]


def choose(stocks: Sequence[Stock], size: int, policy: Policy, best: Best) -> list[str]:
    """At most `size` free ids, by the policy."""
    there = [stock for stock in stocks if stock.free]
    have = frozenset(stock.gpu for stock in stocks if stock.taken)
    if policy == "packed":
        return _pack(there, have, size, best)
    return _spread(there, have, size, best, use_first=policy == "distributed")


def fit(stocks: Sequence[Stock], size: int) -> list[str]:
    """All of one stock: where the request has some already, else where the least is left over. None, if none has room.

    So large requests find room for longest, and the first that fits as well is taken.
    """
    have = [stock for stock in stocks if stock.taken] or stocks
    room = [stock for stock in have if len(stock.free) >= size]
    return list(min(room, key=lambda stock: len(stock.free)).free[:size]) if room else []


def _spread(stocks: Sequence[Stock], have: frozenset[int], size: int, best: Best, *, use_first: bool) -> list[str]:
    """An id's rank is how many the request has of its GPU by then, and how used that is.

    Rank by rank is taken whole. Only the last one may be too large, and leave a choice.
    """
    ranks: dict[tuple[int, int], list[tuple[Stock, str]]] = {}
    for stock in stocks:
        for nth, id in enumerate(stock.free[:size], stock.taken):
            ranks.setdefault((nth, stock.used if use_first else 0), []).append((stock, id))
    found: list[tuple[Stock, str]] = []
    for nth, used in sorted(ranks):
        rank, missing = ranks[nth, used], size - len(found)
        if missing < len(rank) and nth == 0:
            sure = have | {stock.gpu for stock, _ in found}
            chosen = _best(best, (stock for stock, _ in rank), sure, missing)
            rank = [(stock, id) for stock, id in rank if stock.gpu in chosen]
        found += sorted(rank, key=lambda each: each[0].used)[:missing]
        if len(found) >= size:
            break
    return [id for _, id in found]


def _pack(stocks: Sequence[Stock], have: frozenset[int], size: int, best: Best) -> list[str]:
    """What is left of the GPUs that the request has already, then of as few others as possible."""
    order = sorted(stocks, key=lambda stock: (stock.gpu not in have, -stock.used - stock.taken, len(stock.free)))
    others = [stock for stock in order if stock.gpu not in have]
    few = _fewest(others, size - sum(len(stock.free) for stock in order if stock.gpu in have))
    chosen = have
    for _, alike in groupby(others, key=lambda stock: (stock.used, len(stock.free))):
        tied = list(alike)
        chosen = _best(best, tied, chosen, sum(stock.gpu in few for stock in tied))
    return [id for stock in order if stock.gpu in chosen for id in stock.free][:size]


def _fewest(stocks: Sequence[Stock], size: int) -> Collection[int]:
    """As few GPUs of these as have so many ids, of such sets that with the foremost; all, where all have too few."""
    frees = [len(stock.free) for stock in stocks]
    if sum(frees) <= size:
        return {stock.gpu for stock in stocks}
    slots = bisect_left(list(accumulate(sorted(frees, reverse=True))), size) + 1 if size > 0 else 0
    found = set[int]()
    for n, stock in enumerate(stocks):
        if slots and frees[n] + sum(sorted(frees[n + 1 :], reverse=True)[: slots - 1]) >= size:
            found.add(stock.gpu)
            slots, size = slots - 1, size - frees[n]
    return found


def _best(best: Best, stocks: Iterable[Stock], have: frozenset[int], count: int) -> frozenset[int]:
    """The GPUs that the request has, and so many more of these, the best; used ones are left alone."""
    costs = {stock.gpu: stock.used for stock in stocks}
    if count in (0, len(costs)):
        return have | costs.keys() if count else have
    question = Question(frozenset(costs), have, len(have) + count, costs, leaves=False)
    return frozenset(best(question))
