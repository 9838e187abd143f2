"""A node as commands see it that ask no agent: with the machine of the driver, of a file or of a profile."""

import os
from pathlib import Path

import click

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.strict import InvalidInput
from gpuplane.cli.kit import signals
from gpuplane.cli.kit.machine import NVML, hardware
from gpuplane.cli.kit.messages import os_error_text
from gpuplane.node.core.config.resolve import resolve_with_sources
from gpuplane.node.core.step import step
from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.hardware.observeonce import NotObserved, observe_once
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.facts import DevicesObserved, MachineObserved
from gpuplane.node.model.machine import Machine as Seen
from gpuplane.node.model.machine import MachineFile
from gpuplane.node.model.snapshot import Snapshot

OBSERVE_TIMEOUT_SECONDS = 60.0
"""Seconds for one look by NVML; a call of it may take a third, so that a GPU that hangs leaves time for the others."""


def observed_snapshot(machine: str, config: Path | None, driver_root: Path) -> Snapshot:
    """A node with this machine and configuration. Raises ClickException."""
    try:
        settings = Settings()
        if config is not None:
            content = files.read(config, MAX_BYTES)
            settings = resolve_with_sources(content, str(config), {}, os.environ).settings
        seen = _observe(machine, driver_root)
    except InvalidInput as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None
    observed = step(Snapshot(config=Config(settings=settings), allocations=()), MachineObserved(seen), now=0.0)
    for kind, devices in (seen.lists_by_kind if isinstance(seen, MachineFile) else {}).items():
        observed = step(observed, DevicesObserved(kind, devices), now=0.0)
    return observed


def _observe(machine: str, driver_root: Path) -> Seen:
    """One look at the machine. Raises InvalidInput, OSError, ClickException."""
    if machine != NVML:
        described = find_machine_file(machine)
        return machinefile.read_machine(files.read(described, MAX_BYTES), str(described))

    async def seen() -> Seen:
        return await observe_once(
            hardware(NVML, driver_root=driver_root, deadline=OBSERVE_TIMEOUT_SECONDS / 3), OBSERVE_TIMEOUT_SECONDS
        )

    try:
        return signals.run(seen())
    except NotObserved as error:
        raise click.ClickException(str(error)) from None
