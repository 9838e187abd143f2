"""What the engine asks of a policy."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpuplane.placement.cluster import Booleans, Cluster, Integers
from gpuplane.placement.requests import Request

Floats = npt.NDArray[np.float64]


class Scores(NamedTuple):
    """Of each row that was asked for: how good it is (−inf: the request does not fit), and on which GPUs it goes there
    (rows × the request's count, in the order of their places; where it does not fit they mean nothing)."""

    values: Floats
    gpus: Integers


class Policy(Protocol):
    """How good a node and its GPUs are for a request. The scores of nodes that have not changed are kept."""

    def refresh(self, cluster: Cluster) -> int:
        """Look at the whole cluster, before each decision. Scores compare as long as the answer is the same."""

    def score(self, cluster: Cluster, request: Request, rows: Integers) -> Scores:
        """How good these rows are for a request with GPUs of one container at most."""


def pick_gpus(fits: Booleans, preference: Floats, count: int) -> tuple[Booleans, Integers]:
    """(whether a row has so many GPUs that fit, which ones): of those that fit, the ones that are preferred most.

    `fits`, `preference`: rows × GPUs. Among equals the first ones; the answer is in the order of their places.
    """
    order = np.argsort(np.where(fits, -preference, np.inf), axis=1, kind="stable")[:, :count]
    if order.shape[1] < count:
        return np.zeros(len(fits), np.bool_), np.zeros((len(fits), count), np.int64)
    return fits.sum(axis=1) >= count, np.sort(order, axis=1)
