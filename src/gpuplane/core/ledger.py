"""What a restart remembers, and what a reboot makes untrue."""

import hashlib

import msgspec

from gpuplane.model.snapshot import Ledger, Snapshot


def carry(ledger: Ledger, boot_id: str) -> Ledger:
    """The ledger as it holds in this boot.

    Times count from the boot, and a reboot has made every client of the driver let go: a release ends with its boot.
    The name of the configuration last in force outlives it, and so does where held MIG devices were: UUIDs stay.
    """
    if ledger.boot_id == boot_id:
        return ledger
    return Ledger(boot_id=boot_id, config_name=ledger.config_name, homes=ledger.homes)


def digest(ledger: Ledger) -> str:
    """Which ledger this is, for saying which one the disk holds."""
    return hashlib.sha256(msgspec.json.encode(ledger, order="sorted")).hexdigest()[:16]


def stored(snapshot: Snapshot) -> bool:
    """Whether the disk holds all that the ledger says: only then may a promise be answered."""
    state = snapshot.conditions.get("state")
    return state is not None and state.standing == "ok" and state.detail == digest(snapshot.ledger)
