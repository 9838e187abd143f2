"""The claims that kubelet has us prepare and unprepare: DRAPlugin v1 and v1beta1.

Prepare records a request and waits until the promise for the claim can be used (`core.dra.preparing`); the answer is
what the ledger says. So it is the same each time, byte for byte, whatever was restarted meanwhile, as long as the claim
is allocated the same devices. A claim that is prepared is answered also while the API server is away.

Each claim of a request has an answer of its own, and waits for none of the others. Kubelet waits 45 s for all of them
(pkg/kubelet/cm/dra/plugin/dra_plugin.go), so each is answered before that, with an error if need be: it asks again.
Unprepare gets nothing but names, for the claim may not exist any more: one that we do not know is done.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.text import clip
from gpuplane.node.core.dra.names import KUBERNETES_UID
from gpuplane.node.core.dra.preparing import (
    claim_problem,
    has_valid_names,
    is_claim_gone,
    is_prepared,
    prepare_problem,
    unprepare_problem,
)
from gpuplane.node.kubelet.protocols import dra_v1_pb2 as v1
from gpuplane.node.kubelet.protocols import dra_v1beta1_pb2 as v1beta1
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import DRAPluginServicer as V1Servicer
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import add_DRAPluginServicer_to_server as add_v1
from gpuplane.node.kubelet.protocols.dra_v1beta1_pb2_grpc import DRAPluginServicer as V1Beta1Servicer
from gpuplane.node.kubelet.protocols.dra_v1beta1_pb2_grpc import add_DRAPluginServicer_to_server as add_v1beta1
from gpuplane.node.model.claims import ClaimName, ClaimUnavailable, FetchClaim, PreparedDevice
from gpuplane.node.model.facts import ClaimPrepareRequested, ClaimUnprepareRequested, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.reasons import Reason, ReasonCode
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CLAIM_REQUESTS_PART, DRA_PLUGIN_PART, ClaimRequestsStatus, RefusedClaim

DEADLINE = 40.0  # seconds until a claim is answered; kubelet waits 45 s
HELD_PATIENCE = 12.0
"""Seconds that a claim waits for a device that a container holds by the device plugin. What kubelet lists may be 10 s
old (`kubelet.podresources`), and kubelet asks again only after 70 to 90 s (observed on kubelet 1.36.2)."""
PROMISED_PATIENCE = 5.0
"""Seconds that the API server may take to say that a claim was allocated anew, where something is promised for it."""
MOST_CLAIMS = 128
"""Claims of one request. Kubelet asks for those of one pod (pkg/kubelet/cm/dra/manager.go)."""
LONGEST_ERROR = 1000  # characters
MOST_REFUSED = 64  # claims that are remembered as refused
REFUSED_CLAIM_KEPT_SECONDS = 600.0  # seconds; kubelet asks again after 70 to 90 s (observed on kubelet 1.36.2)
SUBJECT = LogSubject(part=DRA_PLUGIN_PART.name)
log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
A = TypeVar("A")
Devices: TypeAlias = tuple[PreparedDevice, ...]


def add_plugin(claims: "Claims", server: grpc.aio.Server) -> None:
    """Serve both versions of DRAPlugin."""
    add_v1(PluginV1(claims), server)
    add_v1beta1(PluginV1Beta1(claims), server)


class Claims:
    """Prepares and unprepares claims. An answer is a Reason where it is an error."""

    def __init__(
        self, node: Node, fetch: FetchClaim, deadline: float = DEADLINE, held_patience: float = HELD_PATIENCE
    ) -> None:
        self.node, self.fetch, self.deadline, self.held_patience = node, fetch, deadline, held_patience

    async def prepare(self, claims: Iterable[ClaimName]) -> Mapping[str, Devices | Reason]:
        """UID → what each claim gets."""
        asked = [*claims]
        answers = await self._answer_each("Prepare", "claim-not-prepared", asked, self._prepare)
        now, by_uid = self.node.now(), {each.uid: each for each in asked if has_valid_names(each)}
        refused = {uid: why for uid, why in answers.items() if isinstance(why, Reason) and uid in by_uid}
        self._report_refused(
            answers.keys(),
            {
                uid: RefusedClaim(by_uid[uid].namespace, by_uid[uid].name, why.code, clip(why.text, LONGEST_ERROR), now)
                for uid, why in refused.items()
            },
        )
        return answers

    async def unprepare(self, claims: Iterable[ClaimName]) -> Mapping[str, Reason | None]:
        """UID → why a claim is not unprepared; None if it is."""
        answers = await self._answer_each("Unprepare", "claim-cleanup-failed", claims, self._unprepare)
        self._report_refused(answers.keys(), {})
        return answers

    def _report_refused(self, answered: Collection[str], refused: Mapping[str, RefusedClaim]) -> None:
        """Report which claims kubelet asks for in vain: these, of those that were just answered."""
        status = self.node.snapshot.statuses.of(CLAIM_REQUESTS_PART)
        before = status.refused if status is not None else {}
        oldest = self.node.now() - REFUSED_CLAIM_KEPT_SECONDS
        kept = {uid: each for uid, each in before.items() if uid not in answered and each.asked_at > oldest}
        left = dict([*kept.items(), *refused.items()][-MOST_REFUSED:])
        if left != before:
            shown = ClaimRequestsStatus(
                "ok", "kubelet asks for claims that are refused: see gpuplane claims", refused=left
            )
            self.node.apply(StatusChanged(CLAIM_REQUESTS_PART, shown if left else None))

    def forget_refused(self) -> None:
        """Report none: kubelet's requests are answered no more."""
        self.node.apply(StatusChanged(CLAIM_REQUESTS_PART, None))

    async def _answer_each(
        self, method: str, failure: ReasonCode, claims: Iterable[ClaimName], answer: Callable[[ClaimName], Awaitable[A]]
    ) -> Mapping[str, A | Reason]:
        """UID → answer, all at once. Whatever goes wrong with one claim is its answer; `failure`: its code."""
        by_uid = {each.uid: each for each in claims}
        found = await asyncio.gather(*map(answer, by_uid.values()), return_exceptions=True)
        answers: dict[str, A | Reason] = {}
        for claim, each in zip(by_uid.values(), found, strict=True):
            if isinstance(each, BaseException):
                log.error("%s of claim %s failed", method, _describe(claim), exc_info=each, extra=SUBJECT.extra)
                answers[claim.uid] = _problem(failure, f"{type(each).__name__}: {each}")
                continue
            answers[claim.uid] = each
            if isinstance(each, Reason):
                about = SUBJECT.but(code=each.code)
                log.warning("%s of claim %s refused: %s", method, _describe(claim), error_text(each), extra=about.extra)
        return answers

    async def _prepare(self, claim: ClaimName) -> Devices | Reason:
        if not has_valid_names(claim):
            return _problem("claim-malformed", "the claim has no valid namespace, name and UID")
        until = self.node.now() + self.deadline
        if why := await self._request(claim, until):
            return why
        if why := await self._settle(partial(claim_problem, uid=claim.uid), until):
            return why
        promised = (self.node.snapshot.ledger.claims or {})[claim.uid]
        if promised.claim != claim:
            return _problem("claim-duplicate-uid", f"the UID {claim.uid} is that of claim {promised.claim}")
        return promised.devices

    async def _request(self, claim: ClaimName, until: float) -> Reason | None:
        """Have a claim prepared as the API server tells it; why it cannot be, or None.

        What was promised counts where the API server does not answer, or has forgotten the claim.
        """
        is_promised, patience = is_prepared(self.node.snapshot, claim.uid), until - self.node.now()
        try:
            async with asyncio.timeout(min(patience / 4, PROMISED_PATIENCE) if is_promised else patience):
                told = await self.fetch(claim)
        except ClaimUnavailable as error:
            return None if is_promised else error.reason
        except TimeoutError:
            late = _problem("claim-not-fetched", "the API server has not answered in time")
            return None if is_promised else late
        if told.claim != claim:
            text = f"the API server has another claim of this name, with the UID {clip(told.claim.uid)}"
            return _problem("claim-not-found", text)
        problem = partial(prepare_problem, claim=told)
        why = await self._settle(problem, until)
        if why is not None and why.kind == "held":
            await self.node.wait_until(partial(_is_not_held, problem), min(self.held_patience, until - self.node.now()))
            why = await self._settle(problem, until)
        if why is None:  # of this very snapshot: no other claim comes between
            self.node.apply(ClaimPrepareRequested(told))
        return why

    async def _unprepare(self, claim: ClaimName) -> Reason | None:
        if not KUBERNETES_UID.fullmatch(claim.uid):
            return None  # no such claim was ever prepared
        if is_prepared(self.node.snapshot, claim.uid) or has_valid_names(claim):
            self.node.apply(ClaimUnprepareRequested(claim))
        return await self._settle(partial(_removal_problem, uid=claim.uid), self.node.now() + self.deadline)

    async def _settle(self, problem: Callable[[Snapshot], Reason | None], until: float) -> Reason | None:
        """The problem, once it is none or one that waiting does not end, or at `until`."""
        await self.node.wait_until(partial(_is_settled, problem), max(0.0, until - self.node.now()))
        return problem(self.node.snapshot)


def _is_settled(problem: Callable[[Snapshot], Reason | None], snapshot: Snapshot) -> bool:
    why = problem(snapshot)
    return why is None or why.kind != "waiting"


def _is_not_held(problem: Callable[[Snapshot], Reason | None], snapshot: Snapshot) -> bool:
    why = problem(snapshot)
    return why is None or why.kind != "held"


def _removal_problem(snapshot: Snapshot, uid: str) -> Reason | None:
    """Why something is left of a claim; None if nothing is."""
    if is_claim_gone(snapshot, uid):
        return None
    text = "what is left of the claim is being removed"
    return unprepare_problem(snapshot, uid) or Reason(kind="waiting", text=text, code="claim-cleanup-failed")


def _problem(code: ReasonCode, text: str) -> Reason:
    return Reason(kind="problem", text=text, code=code)


def _describe(claim: ClaimName) -> str:
    return clip(f"{claim} ({claim.uid})")


def error_text(reason: Reason) -> str:
    """The error of one claim, which people read in an event of the pod."""
    return clip(f"{reason.code}: {reason.text}", LONGEST_ERROR)


class _Plugin:
    """The service. `pb`: the messages of its version."""

    pb: Any
    has_share_ids = False

    def __init__(self, claims: Claims) -> None:
        self.claims = claims

    async def NodePrepareResources(self, request: Any, context: Context) -> Any:
        response = self.pb.NodePrepareResourcesResponse()
        for uid, answer in (await self.claims.prepare(await _claim_names(request, context))).items():
            entry = response.claims[uid]
            if isinstance(answer, Reason):
                entry.error = error_text(answer)
            else:
                entry.devices.extend(map(self._device, answer))
        return response

    async def NodeUnprepareResources(self, request: Any, context: Context) -> Any:
        response = self.pb.NodeUnprepareResourcesResponse()
        for uid, why in (await self.claims.unprepare(await _claim_names(request, context))).items():
            response.claims[uid].error = error_text(why) if why is not None else ""
        return response

    def _device(self, device: PreparedDevice) -> Any:
        """What kubelet is told of a device. It knows requests by their main name."""
        allocated = device.allocated
        message = self.pb.Device(
            request_names=(allocated.main_request,),
            pool_name=allocated.pool,
            device_name=allocated.device,
            cdi_device_ids=(device.cdi_id,),
        )
        if self.has_share_ids and allocated.share_id:
            message.share_id = allocated.share_id
        return message


class PluginV1(_Plugin, V1Servicer):
    """DRAPlugin v1."""

    pb = v1
    has_share_ids = True


class PluginV1Beta1(_Plugin, V1Beta1Servicer):
    """DRAPlugin v1beta1."""

    pb = v1beta1


async def _claim_names(request: Any, context: Context) -> list[ClaimName]:
    """The claims of a request. It is refused as a whole where no pod has so many."""
    if len(request.claims) > MOST_CLAIMS:
        reason = f"the request has {len(request.claims)} claims; {MOST_CLAIMS} are allowed"
        log.warning("%s", reason, extra=SUBJECT.extra)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
    return [ClaimName(namespace=each.namespace, name=each.name, uid=each.uid) for each in request.claims]
