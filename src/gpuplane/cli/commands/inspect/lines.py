"""An inspection for programs that read lines: a word for what a line is, then cells, apart by tabs.

docs/inspect.md has the cells. One may come to be added at the end of a line; empty ones at the end are left out.
"""

from collections.abc import Iterator

from gpuplane.base.text import Text, tab_separated
from gpuplane.cli.commands.inspect.rows import (
    HELD_STATE,
    duration_since,
    ending,
    format_bytes,
    held_by,
    held_otherwise,
    holders,
    model,
    release_duration,
    state,
    uncounted_beside_waiting,
)
from gpuplane.node.core.dra.twice import OFFERED_TWICE_TEXT
from gpuplane.node.model.inspection import Device, Inspection, Node


def node_lines(whole: Inspection) -> Iterator[str]:
    """A line a thing; of devices one for each id that kubelet is told."""
    agent, driver, strategy = whole.agent, whole.driver, whole.device_list_strategy
    runs, ready = duration_since(whole, agent.started), "ready" if whole.ready else "not ready"
    yield _line("agent", agent.version, agent.mode, whole.node.name, runs, ready, whole.not_ready_reason)
    if whole.node.state != "healthy":
        yield _line("node", whole.node.state, whole.node.reason)
    if driver is not None:
        yield _line("driver", driver.version, driver.cuda)
    if whole.waiting_reason:
        yield _line("waiting", whole.waiting_reason)
    if whole.release is not None:
        yield _line("release", release_duration(whole, whole.release), whole.release.reason, whole.release.withdraw)
    if whole.layouts is not None:
        yield _line("layouts", whole.layouts.config, whole.layouts.state, whole.layouts.reason, whole.layouts.withdraw)
    if strategy is not None:
        yield _line("strategy", ",".join(strategy.strategies), strategy.reason, "stand-ins" * strategy.stand_ins)
    for kind in uncounted_beside_waiting(whole):
        yield _line("kind", kind.name, "not counted", kind.reason)
    if whole.offered_twice:
        yield _line("twice", ",".join(whole.offered_twice), OFFERED_TWICE_TEXT)
    for device in whole.devices:
        yield from _device(device)
    for part in whole.parts:
        yield _line("part", part.name, part.state, duration_since(whole, part.since), part.reason)


def _device(device: Device) -> Iterator[str]:
    known, names = (device.index, model(device), format_bytes(device.memory_bytes)), holders(device)
    stands = state(device)
    for id in device.ids:
        yield _line("device", id.id, device.resource, stands, device.reason, names.get(id.id, ""), *known)
    for holder, left in held_otherwise(device) if device.ids else ():
        for held_id in left:
            yield _line("device", held_id, holder.resource, HELD_STATE, "", held_by(holder), *known)
    if not device.ids and stands != "healthy":
        held = ", ".join(dict.fromkeys(map(held_by, device.holders or ())))
        name = device.uuid or f"GPU {device.index}"
        yield _line("device", name, "-", stands, device.reason or device.not_offered, held, *known)


def health_lines(whole: Inspection) -> Iterator[str]:
    """A line a device, the node first where something is wrong with it: index, UUID, state, for how long, reason, what
    ends it, what to do."""
    if whole.waiting_reason and not whole.devices:
        yield _line("waiting", whole.waiting_reason)
    if whole.node.state != "healthy":
        yield _line("node", "-", *_stands(whole, whole.node))
    for device in whole.devices:
        yield _line(device.index or "-", device.uuid, *_stands(whole, device))


def _stands(whole: Inspection, each: Device | Node) -> tuple[Text, ...]:
    since, ends = duration_since(whole, each.since), ending(whole, each.clear_when_text, each.until)
    return each.state, since, each.reason, ends, each.advice


def _line(*cells: Text) -> str:
    return tab_separated(*cells).rstrip("\t")
