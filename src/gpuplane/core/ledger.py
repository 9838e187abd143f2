"""What a restart remembers, and what a reboot makes untrue."""

import hashlib

import msgspec

from gpuplane.core.health.records import rebooted
from gpuplane.model.config import Asked
from gpuplane.model.snapshot import Ledger, Snapshot


def carry(ledger: Ledger, boot_id: str, wall: float, now: float) -> Ledger:
    """The ledger as it holds in this boot, at `wall` seconds since 1970 and `now` of CLOCK_BOOTTIME.

    Times count from the boot, and a reboot has made every client of the driver let go: a release ends with its boot,
    and so do verdicts (`records.rebooted`) and the lengths of time slices. The name of the configuration last in force
    outlives it, and so does where held MIG devices were and how held shares were cut: UUIDs stay. What a person wants
    drained stays drained, whoever was told. The container runtime is rather the same than an unknown one.
    """
    if ledger.boot_id == boot_id:
        return ledger
    health = None if ledger.health is None else rebooted(ledger.health, wall, now)
    before = ledger.asked or Asked()
    asked = Asked(runtime=before.runtime, drains=before.drains)
    return Ledger(
        boot_id=boot_id,
        asked=None if asked == Asked() else asked,
        config_name=ledger.config_name,
        homes=ledger.homes,
        cuts=ledger.cuts,
        health=health,
    )


def digest(ledger: Ledger) -> str:
    """Which ledger this is, for saying which one the disk holds."""
    return hashlib.sha256(msgspec.json.encode(ledger, order="sorted")).hexdigest()[:16]


def stored(snapshot: Snapshot) -> bool:
    """Whether the disk holds all that the ledger says: only then may a promise be answered."""
    state = snapshot.conditions.get("state")
    return state is not None and state.standing == "ok" and state.detail == digest(snapshot.ledger)
