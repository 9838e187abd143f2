"""`gpuplane health`: take a GPU out of service by hand, and give it back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from gpuplane.base.text import Text, clip
from gpuplane.base.value import Value
from gpuplane.cli.kit.agent import ask, fetch_node_state, state_dir
from gpuplane.cli.kit.durations import Duration, boottime, describe_duration, time_from_now
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import print_json, print_result
from gpuplane.cli.kit.progress import spinner
from gpuplane.kubernetes.podref import ADMITTED_TEXT
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.commands import INSPECT_HEALTH, command_line
from gpuplane.node.core.devicenames import describe_devices
from gpuplane.node.core.faults.cataloguetable import catalogue_table
from gpuplane.node.core.health.context import holders_of
from gpuplane.node.core.health.devicehealth import health_with_parents
from gpuplane.node.core.kinds.nvidia.gpu import GPU
from gpuplane.node.core.kinds.table import kind_of
from gpuplane.node.core.lookup import find_device
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.config import Settings
from gpuplane.node.model.control import MAX_DRAIN_SECONDS, DrainDevice, NodeState, RestoreDevice
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceHealth, DeviceRecord, HealthRecords
from gpuplane.node.model.status import plugin_part

MAX_LOOK_SECONDS = 3.0
"""Seconds within which looks show what was mended just before."""
MAX_PROBE_SECONDS = 60.0
"""Seconds that a recovery probe may take, beside the time for which the device has to be calm before."""
POLL_SECONDS = 0.2
"""Seconds between two questions."""

Progress = Callable[[str], None]


class Drained(Value):
    """What `drain --json` shows."""

    device: str  # its UUID; "" for the node
    index: str
    state: str
    reason: str
    until: str | None  # None: until it is restored
    held_by: tuple[str, ...] | None  # None: kubelet has not said it yet
    resources_read_later: tuple[str, ...]  # which resources of it kubelet reads only later, and why


class Restored(Value):
    """What `restore --json` shows."""

    device: str
    index: str
    state: str  # "gone" where there is no such device
    reason: Text
    recovered: bool
    result: Text


device_argument = click.argument("device", metavar="DEVICE")


@click.group()
def command() -> None:
    """Drain a device, and restore it.

    DEVICE is a GPU's index (0; 0:1 for MIG device 1 of GPU 0), UUID or PCI address (3b:00.0), or the id of a device of
    another kind. gpuplane inspect health shows the state of all devices.
    """


@command.command(name="drain")
@device_argument
@click.option(
    "--for",
    "seconds",
    type=Duration(most=MAX_DRAIN_SECONDS),
    help="For how long: 90m, 2h, 14d. Default: until it is restored.",
)
@click.option("--why", required=True, help="The reason, for everybody to see.")
@json_option()
@state_dir
def drain_device(device: str, seconds: float | None, why: str, as_json: bool, state_dir: Path) -> None:
    """Drain a device: no new container gets it. Running containers keep it.

    The drain is for the UUID of a GPU, even if its index changes, and survives restarts of the agent and of the
    machine. Returns when the drain is stored and kubelet sees the device as unhealthy, or the output says why kubelet
    does not see it yet.
    """
    ask(state_dir, DrainDevice(requested_at=boottime(), device=device, seconds=seconds, reason=why))
    node_state = fetch_node_state(state_dir)
    uuid = _find_uuid(node_state, device)
    until = f"for {describe_duration(seconds)}" if seconds is not None else "until it is restored"
    sentence = f"{_device_name(node_state, uuid)} is drained {until}: {clip(why)}."
    unheard = tuple(_not_received_sentences(node_state, uuid))
    ends, holders = None if seconds is None else time_from_now(seconds), _holders(node_state, uuid)
    drained = Drained(uuid, _index(node_state, uuid), "drained", clip(why), ends, holders, unheard)
    print_result(drained, [" ".join([sentence, _holders_sentence(holders), *unheard])], as_json=as_json)


@command.command(name="restore")
@device_argument
@json_option()
@state_dir
def restore_device(device: str, as_json: bool, state_dir: Path) -> None:
    """End a drain, and regard the device as repaired.

    Its faults no longer wait for a reset or an operator. If it had a fault, the GPU is probed before it is given out
    again. Returns when it is healthy, or with exit status 1 when it is known why it is not. A GPU that the driver lists
    no more was taken out: the agent forgets it.
    """
    before = fetch_node_state(state_dir)
    uuid = _find_uuid(before, device)
    ended = ". Its drain has ended" if _record(before, uuid).drain is not None else ""
    ask(state_dir, RestoreDevice(requested_at=boottime(), device=device))
    with spinner("restoring") as progress:
        outcome = _wait_for_restore(state_dir, uuid, progress, ended)
    if outcome.recovered:
        print_result(outcome, [outcome.result], as_json=as_json)
        return
    if as_json:
        print_json(outcome)
    raise click.ClickException(f"{outcome.result}")


@command.command(name="reference")
def print_reference() -> None:
    """Print the fault catalogue as a table in Markdown."""
    click.echo(catalogue_table(), nl=False)


def _holders_sentence(holders: tuple[str, ...] | None) -> str:
    """Who holds a device, in a sentence."""
    if holders is None:
        return "It is not known yet which containers hold it."
    return f"Still held by {', '.join(holders)}." if holders else "No container holds it."


def _holders(node_state: NodeState, uuid: str) -> tuple[str, ...] | None:
    """Who holds a device; None where kubelet has not said it yet."""
    allocations = held_allocations(node_state.snapshot)
    if allocations is None:
        return None
    machine, remembered = node_state.snapshot.machine, node_state.snapshot.ledger.mig_parents or {}
    parents = {**(machine.mig_parents if machine else {}), **remembered}

    def held(id: str) -> bool:
        return uuid in (NODE_RECORD_KEY, unit_of(id), parents.get(unit_of(id)))

    mine = [each for each in allocations if any(map(held, each.devices))]
    admitted = any(not each.holder.identifies_pod for each in mine)
    return (*sorted(map(str, holders_of(mine))), *((ADMITTED_TEXT,) if admitted else ()))


def _not_received_sentences(node_state: NodeState, uuid: str) -> Iterator[str]:
    """A sentence for each resource of a device of which kubelet is told only later."""
    for resource in node_state.offer.resources:
        status = node_state.snapshot.statuses.of(plugin_part(resource.name))
        mine = any(uuid in (NODE_RECORD_KEY, each.unit.id, each.unit.gpu) for each in resource.devices)
        if mine and (status is None or status.state != "ok"):
            reason = status.text if status else "not registered yet"
            yield (
                "Kubelet has not received this change yet, because kubelet does not read the device list of "
                f"{resource.name}: {reason}."
            )


def _wait_for_restore(directory: Path, uuid: str, progress: Progress, ended: str) -> Restored:
    """What came of a restore, once it is known; where it is not well, with what `ended`."""
    began = time.monotonic()
    while True:
        node_state = fetch_node_state(directory)
        stands = next((each for each in health_with_parents(node_state.snapshot) if each.device == uuid), None)
        name, waited = _device_name(node_state, uuid), time.monotonic() - began
        if stands is None:
            sentence = f"{name} is absent. The agent has forgotten it, with its faults and its drain."
            return Restored(uuid, "", "gone", "", True, sentence)
        if stands.state in ("healthy", "suspect", "degraded"):
            why = f"{': ' * bool(stands.reason)}{stands.reason}"
            sentence = f"{name} is {stands.state}{why}.{_withheld_sentences(node_state, uuid)}"
            return Restored(uuid, stands.index, stands.state, stands.reason, True, sentence)
        if problem := _restore_problem(node_state, stands, waited):
            return Restored(uuid, stands.index, stands.state, stands.reason, False, f"{name} {problem}{ended}")
        progress(f"{name} is {stands.state}: {stands.reason}")
        time.sleep(POLL_SECONDS)


def _restore_problem(node_state: NodeState, stands: DeviceHealth, waited: float) -> str:
    """Why a device is not given out again, and will not be soon; "" while that is open."""
    settings, record = node_state.snapshot.config.settings or Settings(), _record(node_state, stands.device)
    if stands.state == "drained":
        return f"is still drained: {stands.reason}" + (
            f". It ends {stands.clear_when_text}" if stands.clear_when_text else ""
        )
    if record.probe is not None and record.probe.failure:
        return f"is not healthy: the probe failed: {record.probe.failure}. It will be probed again"
    if stands.state == "probing":
        if waited <= settings.probe_period + MAX_PROBE_SECONDS:
            return ""
        look = command_line(INSPECT_HEALTH, node_state.snapshot.state_dir)
        return f"had no probe within {describe_duration(waited)}: {stands.reason}; see {look}"
    if waited < MAX_LOOK_SECONDS:
        return ""
    if away := driver_release_reason(node_state.snapshot):
        return f"cannot be probed while the driver is released: {away}"
    shown = any(each.confirmed and not each.is_event and each.last_seen is None for each in record.findings)
    who = "the driver still reports" if kind_of(stands.device) is GPU else "the agent still observes"
    why = f"{who} " if shown else ""
    return f"is not healthy: {why}{stands.reason}. {_sentence(stands.advice)}".rstrip()


def _record(node_state: NodeState, uuid: str) -> DeviceRecord:
    return (node_state.snapshot.ledger.health or HealthRecords()).devices.get(uuid, DeviceRecord())


def _withheld_sentences(node_state: NodeState, uuid: str) -> str:
    """Sentences on what of a device that is well is not given out all the same."""
    offered = (each for resource in node_state.offer.resources for each in resource.devices)
    mine = (
        each for each in offered if each.unavailable_reason and uuid in (NODE_RECORD_KEY, each.unit.id, each.unit.gpu)
    )
    troubles = {each.unit: each.unavailable_reason for each in mine}
    device_argument = (
        (describe_devices([("", unit.index)]) if unit.id != uuid else "It", why) for unit, why in troubles.items()
    )
    return "".join(f" {name} is still withheld: {why}." for name, why in device_argument)


def _find_uuid(node_state: NodeState, name: str) -> str:
    """The UUID of a device by its name, NODE for all of them; the name itself where it is nobody's."""
    uuid = find_device(node_state.snapshot, name)
    return name if uuid is None else uuid


def _index(node_state: NodeState, uuid: str) -> str:
    return next((each.index for each in health_with_parents(node_state.snapshot) if each.device == uuid), "")


def _device_name(node_state: NodeState, uuid: str) -> str:
    return "The node" if uuid == NODE_RECORD_KEY else describe_devices([(uuid, _index(node_state, uuid))])


def _sentence(text: Text) -> Text:
    sentence = f"{text}"
    return sentence[:1].upper() + sentence[1:]
