"""`status.devices` of the claims that are prepared here, kept as the view says it: our entries, by server-side apply.

Written when what it says changes. What an agent before us wrote is read first, once for each claim, and stays where it
says the same, with its times. A claim that is unprepared is left as it is: its entries go with its allocation.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from gpuplane.base.text import Text
from gpuplane.kubernetes.claims import ApiClaim
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.node.apiserver.claims import NOT_FOUND, RIGHTS_ADVICE, ClaimReader, claim_path
from gpuplane.node.apiserver.retry import pause, timestamp
from gpuplane.node.core.dra.deviceconditions import ClaimConditions, DeviceCondition, claim_conditions
from gpuplane.node.model.claims import AllocatedDevice, ClaimName, ClaimUnavailable, PreparedClaim
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import CLAIM_STATUS_PART, Status

FIELD_MANAGER = "gpuplane-dra"
REFUSED = (403, 422)
"""What the API server answers to a writer that lacks rights (422 where it lacks those of `resourceclaims/driver`)."""
FIRST_WRITE_PAUSE = 0.2
"""Seconds until something is written: kubelet's answer comes first."""
WRITE_INTERVAL = 1.0
"""The fewest seconds between two rounds of writes."""

Times = Mapping[tuple[str, str, str, str], tuple[DeviceCondition, str]]
"""(pool, device, share, type) → a condition, and since when it stands."""


async def keep_claim_status(node: Node, reader: ClaimReader) -> None:
    """Keep the entries of our devices, for ever."""
    writer, pauses = _Writer(node, reader), RequestPauses()
    while True:
        await node.wait_until(writer.has_work, None)
        await asyncio.sleep(FIRST_WRITE_PAUSE)
        try:
            await writer.round()
        except ApiServerError as error:
            text = f"{error}{RIGHTS_ADVICE if error.code in REFUSED else ''}"
            node.apply(StatusChanged(CLAIM_STATUS_PART, Status("failing", text)))
            await pause(node, pauses.after_failure(error.code))
        except ClaimUnavailable as why:
            node.apply(StatusChanged(CLAIM_STATUS_PART, Status("failing", why.reason.text)))
            await asyncio.sleep(30 * WRITE_INTERVAL)
        else:
            pauses.reset()
            node.apply(StatusChanged(CLAIM_STATUS_PART, None))
            await asyncio.sleep(WRITE_INTERVAL)


class _Writer:
    """What the API server has of each claim, as far as we know."""

    def __init__(self, node: Node, reader: ClaimReader) -> None:
        self.node, self.reader = node, reader
        self._written: dict[str, Times] = {}

    def has_work(self, snapshot: Any) -> bool:
        """Whether a claim's entries are to be written."""
        wanted = claim_conditions(snapshot)
        return any(not _says(self._written.get(uid), each) for uid, each in wanted.items())

    async def round(self) -> None:
        """Write what differs. Raises ApiServerError, and ClaimUnavailable."""
        snapshot = self.node.snapshot
        wanted, claims = claim_conditions(snapshot), snapshot.ledger.claims or {}
        self._written = {uid: times for uid, times in self._written.items() if uid in wanted}
        for uid, conditions in wanted.items():
            claim = claims.get(uid)
            if claim is None or _says(self._written.get(uid), conditions):
                continue
            if uid not in self._written:
                self._written[uid] = await self._read(claim)
            if not _says(self._written[uid], conditions):
                await self._write(claim, conditions)

    async def _read(self, claim: PreparedClaim) -> Times:
        """What stands there of our driver; nothing of a claim that is gone."""
        try:
            found = await self.reader.read(claim.claim)
        except ClaimUnavailable as why:
            if why.reason.code == "claim-not-found":
                return {}
            raise
        return _times(found, claim.driver)

    async def _write(self, claim: PreparedClaim, conditions: ClaimConditions) -> None:
        times = _with_times(self._written[claim.claim.uid], conditions)
        path = f"{claim_path(claim.claim.namespace, claim.claim.name)}/status"
        try:
            body = _body(claim.claim, claim.driver, conditions, times)
            await (await self.reader.client()).apply(path, body, FIELD_MANAGER)
        except ApiServerError as error:
            if not error.code:
                await self.reader.close()
            if error.code not in (NOT_FOUND, 409):  # it is gone, or it is another claim: there is nothing to say
                raise
        self._written[claim.claim.uid] = times


def _says(written: Times | None, conditions: ClaimConditions) -> bool:
    if written is None:
        return False
    for device, wanted in conditions:
        for each in wanted:
            known = written.get((*_key(device), each.type))
            if known is None or not known[0].same_as(each):
                return False
    return True


def _key(device: AllocatedDevice) -> tuple[str, str, str]:
    return device.pool, device.device, device.share_id


def _with_times(before: Times, conditions: ClaimConditions) -> Times:
    """The conditions, each since its status became what it is."""
    now, found = timestamp(), dict[tuple[str, str, str, str], tuple[DeviceCondition, str]]()
    for device, wanted in conditions:
        for each in wanted:
            key = (*_key(device), each.type)
            known = before.get(key)
            found[key] = each, known[1] if known is not None and known[0].status == each.status else now
    return found


def _times(claim: ApiClaim, driver: str) -> Times:
    """What a claim says of our devices. What is not as we write it is written anew."""
    found = dict[tuple[str, str, str, str], tuple[DeviceCondition, str]]()
    for device in claim.status.devices or ():
        if device.get("driver") != driver:
            continue
        for each in device.get("conditions") or ():
            kind, status = each.get("type"), each.get("status")
            if kind in ("Ready", "Healthy") and status in ("True", "False", "Unknown"):
                condition = DeviceCondition(kind, status, str(each.get("reason", "")), str(each.get("message", "")))
                key = (str(device.get("pool")), str(device.get("device")), str(device.get("shareID", "")), kind)
                found[key] = condition, str(each.get("lastTransitionTime", ""))
    return found


def _body(claim: ClaimName, driver: str, conditions: ClaimConditions, times: Times) -> Mapping[str, Any]:
    """What we apply. The UID keeps it from another claim of the same name."""
    entries = {_key(device): (device, wanted) for device, wanted in conditions}.values()
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "status": {
            "devices": [
                {
                    "driver": driver,
                    "pool": device.pool,
                    "device": device.device,
                    **({"shareID": device.share_id} if device.share_id else {}),
                    "conditions": [_condition(each, times[(*_key(device), each.type)][1]) for each in wanted],
                }
                for device, wanted in entries
            ]
        },
    }


def _condition(condition: DeviceCondition, since: str) -> Mapping[str, Text]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": since,
    }
