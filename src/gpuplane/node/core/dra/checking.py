"""Which claims have to be looked at again, because kubelet and the ledger do not say the same of them.

- One that is promised and that kubelet does not list: its containers have not started yet, no container names it, or
  its pod is gone and nobody had it unprepared (kubelet lost what it knew, or the object is gone). It is asked of the
  API server, rarely; only where that says that the claim is over, the promise ends.
- One that kubelet lists and that is not promised: the state directory was lost. It is promised again, the same. One
  that was unprepared after kubelet was asked is none of these: an answer is as old as its question.
"""

from collections.abc import Mapping

from gpuplane.base.value import Value
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model.claims import AllocatedClaim, ClaimName, PreparedClaim
from gpuplane.node.model.snapshot import Allocation, Snapshot


class DoubtfulClaims(Value):
    """`unlisted`: UID → claims that are promised, and that kubelet does not list. `unpromised`: the other way round."""

    unlisted: Mapping[str, ClaimName] = {}
    unpromised: tuple[ClaimName, ...] = ()  # their UIDs are not known


@view
def doubtful_claims(snapshot: Snapshot) -> DoubtfulClaims:
    """The claims that have to be looked at; none before kubelet has listed."""
    settings = snapshot.config.settings
    if snapshot.allocations is None or settings is None:
        return DoubtfulClaims()
    driver = settings.dra.driver if settings.dra.enabled else ""
    promised, ended = snapshot.ledger.claims or {}, snapshot.ended_claims
    return _doubtful_claims.of(snapshot, promised, snapshot.allocations, driver, ended)


@part_view
def _doubtful_claims(
    claims: Mapping[str, PreparedClaim], allocations: tuple[Allocation, ...], driver: str, ended: Mapping[str, float]
) -> DoubtfulClaims:
    listed = {each.claim for each in allocations if each.claim and each.resource == driver}
    promised = {str(claim.claim) for claim in claims.values()}
    return DoubtfulClaims(
        unlisted={uid: claim.claim for uid, claim in claims.items() if str(claim.claim) not in listed},
        unpromised=tuple(
            ClaimName(namespace, name, uid="")
            for namespace, _, name in (each.partition("/") for each in sorted(listed - promised - ended.keys()))
        ),
    )


def is_over(promised: PreparedClaim, found: AllocatedClaim) -> bool:
    """Whether a claim, as the API server has it now, is no longer the one that was promised, or no longer allocated."""
    return promised.claim.uid != found.claim.uid or {each.allocated.device for each in promised.devices} != {
        each.device for each in found.devices
    }
