"""Claims that are in doubt (`core/dra/checking.py`), asked of the API server: after a minute, then ever more rarely.

What the API server does not say stays as it is: while it is away nothing ends.
"""

from gpuplane.base.text import Text, join
from gpuplane.node.core.dra.checking import doubtful_claims, is_over
from gpuplane.node.core.dra.preparing import prepare_problem
from gpuplane.node.model.claims import ClaimName, ClaimUnavailable, FetchClaim
from gpuplane.node.model.facts import ClaimPrepareRequested, ClaimUnprepareRequested, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import CLAIMS_PART, Status

FIRST_CHECK, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds for which a claim has to be in doubt before it is asked of the API server, and between two questions at the
most; the pauses double."""

UNPROMISED_CHECK_PAUSE = 1.0
"""Seconds after which one is asked that kubelet lists and nobody promised: its devices may be given out again."""


async def check_claims(
    node: Node, fetch: FetchClaim, first: float = FIRST_CHECK, soon: float = UNPROMISED_CHECK_PAUSE
) -> None:
    """Ask about the claims that are in doubt, for ever."""
    checks = _Checks(node, fetch, first, soon)
    while True:
        seen = doubtful_claims(node.snapshot)
        await checks.round()
        due = checks.next_due()
        await node.wait_until(
            lambda snapshot, seen=seen: doubtful_claims(snapshot) is not seen,  # type: ignore[misc]
            None if due is None else max(0.0, due - node.now()),
        )


class _Checks:
    """When each claim in doubt is asked about next: by UID, or by name where that is not known."""

    def __init__(self, node: Node, fetch: FetchClaim, first: float, soon: float) -> None:
        self.node, self.fetch, self.first, self.soon = node, fetch, first, soon
        self._due: dict[str, tuple[float, float]] = {}  # → (when, the pause after that)
        self._problems: dict[str, Text] = {}

    def next_due(self) -> float | None:
        """When one is due; None for none."""
        return min((at for at, _ in self._due.values()), default=None)

    async def round(self) -> None:
        """Ask about those that are due now."""
        now, doubtful = self.node.now(), doubtful_claims(self.node.snapshot)
        asked = {uid: (claim, self.first) for uid, claim in doubtful.unlisted.items()}
        asked |= {str(claim): (claim, self.soon) for claim in doubtful.unpromised}
        self._due = {key: self._due.get(key, (now + pause, pause * 2)) for key, (_, pause) in asked.items()}
        self._problems = {key: text for key, text in self._problems.items() if key in asked}
        for key, (claim, _) in asked.items():
            at, pause = self._due[key]
            if at <= now:
                self._due[key] = now + pause, min(pause * 2, LONGEST_PAUSE)
                await (self._check_promised(key, claim) if claim.uid else self._promise(key, claim))
        self._report()

    async def _check_promised(self, uid: str, claim: ClaimName) -> None:
        try:
            found = await self.fetch(ClaimName(claim.namespace, claim.name, uid=""))
        except ClaimUnavailable as why:
            if why.reason.code == "claim-not-found":
                self._end(uid)
            else:
                self._problems[uid] = why.reason.text
            return
        self._problems.pop(uid, None)
        promised = (self.node.snapshot.ledger.claims or {}).get(uid)
        if promised is not None and is_over(promised, found):
            self._end(uid)

    def _end(self, uid: str) -> None:
        """The claim is over, and kubelet does not list it: not even now, after the answer came."""
        claim = doubtful_claims(self.node.snapshot).unlisted.get(uid)
        if claim is not None:
            self.node.apply(ClaimUnprepareRequested(claim))

    async def _promise(self, key: str, claim: ClaimName) -> None:
        try:
            found = await self.fetch(claim)
        except ClaimUnavailable as why:
            self._problems[key] = why.reason.text
            return
        problem = prepare_problem(self.node.snapshot, found)
        if problem is not None:
            self._problems[key] = problem.text
            return
        self._problems.pop(key, None)
        if claim in doubtful_claims(self.node.snapshot).unpromised:  # still, after the API server has answered
            self.node.apply(ClaimPrepareRequested(found))

    def _report(self) -> None:
        before = self.node.snapshot.statuses.of(CLAIMS_PART)
        if self._problems:
            text = f"the agent cannot check what containers use: {join('; ', self._problems.values())}"
            self.node.apply(StatusChanged(CLAIMS_PART, Status("failing", text)))
        elif before is not None:
            self.node.apply(StatusChanged(CLAIMS_PART, None))
