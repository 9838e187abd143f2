"""`gpuplane driver`: make the agent release the GPU driver, and resume it."""

import time
from pathlib import Path

import click

from gpuplane.base.text import clip
from gpuplane.base.value import Value
from gpuplane.cli.kit.agent import ask, fetch_node_state, state_dir
from gpuplane.cli.kit.durations import Duration, boottime, describe_duration, time_from_now
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import print_result
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.model.control import MAX_DRIVER_RELEASE_SECONDS, GetNodeState, ReleaseDriver, ResumeDriver
from gpuplane.node.model.status import DRIVER_PART, DriverStatus

RELEASE_TIMEOUT_SECONDS, POLL_SECONDS = 10.0, 0.1  # seconds: for the driver's process to end, and between two looks


class DriverRelease(Value):
    """What `--json` shows."""

    released: bool
    reason: str
    until: str | None
    was_released: bool  # before this


@click.group()
def command() -> None:
    """Release the driver for a GPU reset, a MIG mode change or a driver upgrade.

    While it is released, the agent has no /dev/nvidia* open, and withholds every device from new pods, with your
    reason. Running pods are not affected. The release survives a restart of the agent, and ends after its time.
    """


@command.command()
@click.option(
    "--for",
    "seconds",
    type=Duration(most=MAX_DRIVER_RELEASE_SECONDS),
    required=True,
    help="How long: 90s, 10m, 2h; at most 7d.",
)
@click.option("--why", required=True, help="The reason, for everybody to see.")
@json_option()
@state_dir
def release(seconds: float, why: str, as_json: bool, state_dir: Path) -> None:
    """Release the driver for a time. This replaces an earlier release.

    Returns when no device node is open any more.
    """
    node_state = fetch_node_state(state_dir)
    before = node_state.snapshot.ledger.release
    ask(state_dir, ReleaseDriver(requested_at=boottime(), seconds=seconds, reason=why))
    driver = _wait_for_release(state_dir)
    if not driver.released:
        raise click.ClickException(f"every device is withheld, but the driver is not released: {driver.text}")
    sentence = f"The driver is released for {describe_duration(seconds)}: {clip(why)}. No device node is open."
    was = (
        f" This replaces a release that had {describe_duration(before.until - node_state.now)} left: {before.reason}."
        if before
        else ""
    )
    found = DriverRelease(True, clip(why), time_from_now(seconds), before is not None)
    print_result(found, [sentence + was], as_json=as_json)


@command.command()
@json_option()
@state_dir
def resume(as_json: bool, state_dir: Path) -> None:
    """Resume the driver before the release ends."""
    away = driver_release_reason(fetch_node_state(state_dir).snapshot)
    ask(state_dir, ResumeDriver(requested_at=boottime()))
    sentence = "The driver is resumed." if away else "The driver was not released."
    print_result(DriverRelease(False, "", None, bool(away)), [sentence], as_json=as_json)


def _wait_for_release(directory: Path) -> DriverStatus:
    """The status of the driver once it is released, or after all patience."""
    driver = DriverStatus("failing", "the agent has not observed the machine yet")
    for _ in range(int(RELEASE_TIMEOUT_SECONDS / POLL_SECONDS)):
        node_state = ask(directory, GetNodeState()).state
        driver = (node_state.snapshot.statuses.of(DRIVER_PART) if node_state else None) or driver
        if driver.released:
            break
        time.sleep(POLL_SECONDS)
    return driver
