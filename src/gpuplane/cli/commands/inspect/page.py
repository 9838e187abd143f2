"""An inspection for people, on a terminal of any width."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gpuplane.base.text import clip, format_count
from gpuplane.cli.commands.inspect.rows import (
    Cause,
    Row,
    causes,
    duration_since,
    ending,
    format_bytes,
    names,
    offered_twice,
    release_duration,
    rows,
    state,
    uncounted_beside_waiting,
)
from gpuplane.cli.kit.presenter import Table
from gpuplane.cli.kit.tables import paragraph, table_lines
from gpuplane.node.core.commands import INSPECT_HEALTH, command_line, unusual_state_dir
from gpuplane.node.core.devicenames import describe_part_of
from gpuplane.node.core.dra.twice import OFFERED_TWICE_TEXT
from gpuplane.node.core.health.absence import is_for_guests
from gpuplane.node.model.inspection import Inspection, Resource
from gpuplane.node.model.machine import NVIDIA_GPU

Lines = Iterator[Text]
Write = Callable[[Inspection, int], Lines]


class Page:
    """What rich prints, and prints anew when the terminal has another width.

    `note`: what is to be said above it. An id that is wider than the terminal makes its line wider; where the page is
    `redrawn` it is folded, for the lines have to be counted.
    """

    def __init__(self, write: Write, whole: Inspection, note: str = "", *, redrawn: bool = False) -> None:
        self.write, self.whole, self.note, self.redrawn = write, whole, note, redrawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.note:
            yield from _styled(paragraph(self.note, options.max_width), "red")
        for each in self.write(self.whole, options.max_width):
            each.no_wrap, each.overflow = not self.redrawn, "fold" if self.redrawn else "ignore"
            yield each


def page(whole: Inspection, width: int, state_dir: str = "") -> Lines:
    """The node: its agent, its devices and who holds them, what is wrong, its resources and its parts.

    `state_dir`: the agent's, where it is not the usual one.
    """
    yield from _agent_lines(whole, width)
    if whole.devices:
        yield Text()
        yield from table_lines(
            Table(DEVICE_HEADINGS, tuple(map(_device_row, rows(whole))), DEVICE_GIVE_WAY, "HELD BY"), width
        )
    if found := list(causes(whole)):
        yield Text()
        for cause in found:
            yield from _cause(cause, width)
            if cause.state == "drained" and cause.clear_when_text:
                yield from paragraph(f"It ends {ending(whole, cause.clear_when_text, cause.until)}", width, 2, 4)
    if any(cause.clear_when_text or cause.advice for cause in found):
        yield from _styled(paragraph(f"How to repair it: {command_line(INSPECT_HEALTH, state_dir)}", width), "dim")
    if whole.resources:
        yield Text()
        yield from table_lines(
            Table(RESOURCE_HEADINGS, tuple(map(_resource_row, whole.resources)), ("OF", "SHARED")), width
        )
    if whole.parts:
        yield Text()
        yield from table_lines(Table(PART_HEADINGS, tuple(_part_rows(whole)), loose="REASON"), width)


def node_page(directory: Path) -> Write:
    """What draws a node whose agent has this state directory."""
    return partial(page, state_dir=unusual_state_dir(str(directory)))


def health_page(whole: Inspection, width: int) -> Lines:
    """How the devices stand, since when and why, what ends that and what to do."""
    yield from _notes(whole, width)
    if whole.devices:
        yield from table_lines(Table(HEALTH_HEADINGS, tuple(_health_rows(whole)), ("ID",)), width)
    for cause in causes(whole):
        yield Text()
        yield from _cause(cause, width, duration_since(whole, cause.since))
        if ends := ending(whole, cause.clear_when_text, cause.until):
            yield from paragraph(f"It ends {ends}", width, 2, 4)
        if cause.advice:
            yield from paragraph(f"What to do: {cause.advice}", width, 2, 4)


DEVICE_HEADINGS = "GPU", "MODEL", "MEMORY", "RESOURCE", "STATE", "ID", "HELD BY"
DEVICE_GIVE_WAY = "ID", "HELD BY", "RESOURCE", "MODEL", "MEMORY"
RESOURCE_HEADINGS = "RESOURCE", "DEVICES", "HEALTHY", "HELD", "SHARED", "OF"
PART_HEADINGS = "PART", "STATE", "FOR", "REASON"
STAND_INS_TEXT = "Stand-ins: containers get /dev/null by the name of each device node; no program can use a GPU."
PART_STATE_ORDER = "failing", "waiting", "ok"
HEALTH_HEADINGS = "GPU", "STATE", "FOR", "ID"


def _agent_lines(whole: Inspection, width: int) -> Lines:
    agent, node = whole.agent, whole.node.name
    where = f" on node {node}" if node else ""
    runs = f", running for {duration_since(whole, agent.started)}" if agent.started else ""
    yield from _styled(paragraph(f"Agent {agent.version}{where}{runs}, {_readiness(whole)}", width), "bold")
    yield from paragraph(", ".join(_machine_facts(whole)), width)
    if (strategy := whole.device_list_strategy) is not None:
        why = f": {strategy.reason}" if strategy.reason else ", as configured"
        yield from paragraph(f"deviceListStrategy: {', '.join(strategy.strategies)}{why}", width)
        if strategy.stand_ins:
            yield from paragraph(STAND_INS_TEXT, width)
    yield from _notes(whole, width)


def _machine_facts(whole: Inspection) -> Iterator[str]:
    gpus = sum(not each.mig_profile and bool(each.index) for each in whole.devices)
    if gpus or not whole.waiting_reason:
        yield format_count(gpus, "GPU")
    for kind in whole.kinds:
        if kind.name != NVIDIA_GPU:
            yield format_count(kind.devices, f"{kind.name} device")
    if whole.driver is not None and whole.driver.version:
        yield f"driver {whole.driver.version}"
    if whole.driver is not None and whole.driver.cuda:
        yield f"CUDA {whole.driver.cuda}"


def _readiness(whole: Inspection) -> str:
    stands = "in standby, " if whole.agent.mode == "standby" else ""
    if whole.ready:
        return f"{stands}ready{_not_given_out(whole)}"
    if whole.waiting_reason and whole.agent.mode == "serving":  # nothing is advertised, for the same reason
        return f"{stands}not ready"
    codes = {reason.code for device in whole.devices for reason in device.reasons}
    said_below = whole.not_ready_code in codes or whole.not_ready_code == "no-device-available"
    return f"{stands}not ready: {whole.not_ready_code if said_below else whole.not_ready_reason}"


def _not_given_out(whole: Inspection) -> str:
    """How many devices are not, for the agent may be ready while none is; "" where all are."""
    units = [each for each in whole.devices if each.resource or each.reasons]
    away = [(each.uuid, each.index) for each in units if each.reasons]
    return f"; {describe_part_of(away, [(each.uuid, each.index) for each in units])} not given out" if away else ""


def _notes(whole: Inspection, width: int) -> Lines:
    """What is to be known before anything else."""
    if whole.waiting_reason:
        of_node = whole.node.code and whole.node.code == whole.waiting_code  # which is said of the node
        why = "" if of_node else f": {whole.waiting_reason}"
        yield from _styled(paragraph(f"Nothing is advertised yet{why}", width), "yellow")
    for kind in uncounted_beside_waiting(whole):
        yield from _styled(paragraph(f"{kind.name} devices are not counted: {kind.reason}", width), "yellow")
    for pci, driver in whole.unlisted.items():
        if is_for_guests(driver):
            yield from _styled(
                paragraph(f"The kernel driver {clip(driver)} keeps the GPU at {pci} for guests", width), "dim"
            )
    if whole.release is not None:
        release = whole.release
        lasts = release_duration(whole, release)
        note = f"The driver is released {lasts}: {release.reason}. To end this: {release.withdraw}"
        yield from _styled(paragraph(note, width), "yellow")
    if twice := offered_twice(whole):
        are = "are" if len(whole.offered_twice) > 1 else "is"
        yield from _styled(paragraph(f"{twice} {are} {OFFERED_TWICE_TEXT}", width), "yellow")
    if whole.layouts is not None:
        asked = whole.layouts
        why = f": {asked.reason}" if asked.reason else ""
        note = f"MIG configuration {asked.config} is requested ({asked.state}){why}. To end this: {asked.withdraw}"
        yield from _styled(paragraph(note, width), "dim" if asked.state == "success" else "yellow")


def _styled(lines: Lines, style: str) -> Lines:
    for each in lines:
        each.style = style
        yield each


def _device_row(row: Row) -> tuple[str, ...]:
    return row.index, row.model, row.memory, row.resource, row.state, row.device, row.held_by


def _cause(cause: Cause, width: int, lasts: str = "") -> Lines:
    """A sentence on one cause."""
    are = "are" if len(cause.devices) > 1 else "is"
    stands = f"{names(cause)} {are} {cause.state}{f' for {lasts}' if lasts else ''}"
    yield from paragraph(stands + f": {cause.reason}" * bool(cause.reason), width)


def _resource_row(each: Resource) -> tuple[str, ...]:
    held = "unknown" if each.held is None else str(each.held)
    shared = "" if each.sharing == "none" else each.sharing
    return each.name, str(each.devices), str(each.healthy), held, shared, format_bytes(each.share_memory_bytes)


def _part_rows(whole: Inspection) -> Iterator[tuple[str, ...]]:
    """What fails comes first."""
    for part in sorted(whole.parts, key=lambda part: PART_STATE_ORDER.index(part.state)):
        yield part.name, part.state, duration_since(whole, part.since), f"{part.reason}"


def _health_rows(whole: Inspection) -> Iterator[tuple[str, ...]]:
    for device in whole.devices:
        yield device.index or "-", state(device), duration_since(whole, device.since), device.uuid
