"""The machine that a `mig` command is about: as the running agent sees it, or as a look of our own shows it."""

from pathlib import Path

import click

from gpuplane.base.text import join
from gpuplane.cli.kit import signals
from gpuplane.cli.kit.agent import NoAgent, fetch_node_state
from gpuplane.cli.kit.machine import NVML, hardware
from gpuplane.node.hardware.described.profiles import UnknownMachine
from gpuplane.node.hardware.observeonce import NotObserved, observe_once
from gpuplane.node.model.machine import Gpu, Machine

OBSERVE_TIMEOUT_SECONDS = 60.0
"""Seconds that the driver may take; each of its calls a third of that."""


def observe_gpus(machine: str | None, state_dir: Path) -> tuple[Gpu, ...]:
    """The GPUs of the machine, by index. Raises ClickException where they cannot be seen."""
    found = _observe_machine(machine, state_dir)
    if found.gpus is None:
        raise click.ClickException(
            f"{join('; ', (each.message for each in found.faults)) or 'the driver shows no GPUs'}"
        )
    return tuple(sorted(found.gpus, key=lambda gpu: gpu.index))


def _observe_machine(machine: str | None, state_dir: Path) -> Machine:
    if machine is None:
        try:
            found = fetch_node_state(state_dir).snapshot.machine
        except NoAgent:
            machine = NVML
        else:
            if found is None:
                raise click.ClickException("the agent has not observed the machine yet: try again in a moment")
            return found

    async def looked() -> Machine:
        return await observe_once(
            hardware(machine or NVML, deadline=OBSERVE_TIMEOUT_SECONDS / 3), OBSERVE_TIMEOUT_SECONDS
        )

    try:
        return signals.run(looked())
    except (NotObserved, UnknownMachine) as error:
        raise click.ClickException(str(error)) from None
