"""What a restart remembers, and what a reboot makes untrue."""

from gpuplane.model.snapshot import Ledger


def carry(ledger: Ledger, boot_id: str) -> Ledger:
    """The ledger as it holds in this boot.

    Times count from the boot, and a reboot has made every client of the driver let go: a release ends with its boot.
    The name of the configuration last in force outlives it.
    """
    if ledger.boot_id == boot_id:
        return ledger
    return Ledger(boot_id=boot_id, config_name=ledger.config_name)
