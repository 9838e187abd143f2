"""A request of layouts is made and followed, until each GPU has its layout or it is known why not."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from gpuplane.base.text import Text, join
from gpuplane.base.value import Value
from gpuplane.cli.commands.mig.evict import Evictions
from gpuplane.cli.commands.mig.hooks import Hooks
from gpuplane.cli.commands.mig.site import Site
from gpuplane.cli.kit.messages import say
from gpuplane.node.agent.node import boottime
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.comparison import difference
from gpuplane.node.core.partitions.desired import requested_name
from gpuplane.node.core.partitions.progress import partitions_progress
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuLayout, GpuProgress, LayoutRequest, PartitionsProgress, ProgressState
from gpuplane.node.model.snapshot import Snapshot

MAX_RETRY_WAIT_SECONDS = 5.0
"""Seconds: a next try within that is waited for."""
MAX_SETTLE_SECONDS = 60.0
"""Seconds that a wait may take which ends by itself: for kubelet, or for a driver that is released for a moment."""
MAX_IDLE_SECONDS = 180.0
"""Seconds without any progress, after which none is expected. A reset may take a minute."""

Layouts = tuple[Mapping[str, GpuLayout], tuple[Text, ...]]


class FollowedGpu(Value, omit_defaults=False):
    """One GPU, as `--json` shows it."""

    index: int | None  # None: there is no such GPU now
    uuid: str
    state: ProgressState
    reason: Text
    code: str
    holders: tuple[str, ...]


class Followed(Value, omit_defaults=False):
    """What came of a request, as `--json` shows it. `problem`: why it could not be followed at all; "" where it could.
    `agent_continues`: the agent goes on with what is not done."""

    config: str
    done: bool
    agent_continues: bool
    problem: Text
    gpus: tuple[FollowedGpu, ...]


class WaitLimit(Value):
    """How long is waited for what holds devices, in seconds; and whether its pods are evicted, and by which file."""

    seconds: float
    evicts: bool = False
    kubeconfig: Path | None = None


async def wait_for_gpus(site: Site) -> Snapshot:
    """The first snapshot in which the GPUs are known. Raises ClickException."""
    until = boottime() + MAX_SETTLE_SECONDS
    while (snapshot := await site.look()).machine is None or snapshot.machine.gpus is None:
        if boottime() > until:
            faults = join("; ", (each.message for each in snapshot.machine.faults)) if snapshot.machine else ""
            raise click.ClickException(f"{faults or 'the GPUs are not known yet'}")
    return snapshot


async def resolve_layouts(
    site: Site, layouts_of: Callable[[tuple[Gpu, ...]], Layouts]
) -> tuple[Snapshot, Mapping[str, GpuLayout]]:
    """What there is, and the layouts that are requested of it. Raises ClickException where these are contradictory."""
    snapshot = await wait_for_gpus(site)
    layouts, problems = layouts_of(snapshot.gpus)
    if problems:
        raise click.ClickException("\n".join(f"{each}" for each in problems))
    return snapshot, layouts


async def request_and_follow(
    site: Site, snapshot: Snapshot, request: LayoutRequest, hooks: Hooks, patience: WaitLimit, *, debug: bool
) -> Followed:
    """Request layouts, with the hooks around that, and follow them. Raises ClickException.

    The hooks are run as nvidia-mig-parted runs them (cmd/…/apply/apply.go): `apply-exit` whatever came of it.
    """
    await hooks.run("apply-start")
    try:
        if _differs(snapshot, request.but(mode_only=True)):
            await hooks.run("pre-apply-mode")
        if not request.mode_only and _differs(snapshot, request):
            await hooks.run("pre-apply-config")
        await site.request(request)
        followed = await _follow(site, request, patience, debug=debug)
    except BaseException:
        try:
            await hooks.run("apply-exit")
        except click.ClickException as error:  # what came first is the error
            say(error.format_message(), err=True)
        raise
    await hooks.run("apply-exit")
    return followed


def _differs(snapshot: Snapshot, request: LayoutRequest) -> bool:
    return any(
        difference(gpu, request.layouts[gpu.uuid], profiles_of(gpu), mode_only=request.mode_only)
        for gpu in snapshot.gpus
        if gpu.uuid in request.layouts
    )


async def _follow(site: Site, request: LayoutRequest, patience: WaitLimit, *, debug: bool) -> Followed:
    began = changed = boottime()
    last_printed: dict[str, GpuProgress] = {}
    evictions = Evictions(patience.kubeconfig) if patience.evicts else None
    last: object = None
    while True:
        snapshot = await site.look()
        now, progress = boottime(), _own_progress(snapshot, request)
        if (there := (progress, snapshot.ledger.partitions)) != last:
            last, changed = there, now
        if progress is not None and progress.problem:
            return _followed(site, snapshot, request, progress)
        if progress is not None:
            final = {each.gpu for each in progress.gpus if _is_final(each, now, now - began, patience)}
            shown = [each for each in progress.gpus if each.gpu not in final or each.state == "done"]
            _print_progress(snapshot, shown, last_printed, debug=debug)
            if evictions is not None:
                await evictions.evict(pod for each in progress.gpus if each.code == "held" for pod in each.holders)
            if len(final) == len(progress.gpus) or now - changed > MAX_IDLE_SECONDS:
                return _followed(site, snapshot, request, progress)
        elif now - began > MAX_SETTLE_SECONDS:
            raise click.ClickException("it is not known yet what this node's GPUs are, and who holds them")


def _own_progress(snapshot: Snapshot, request: LayoutRequest) -> PartitionsProgress | None:
    """How the request stands. Raises ClickException where it is another's turn."""
    if label := requested_name(snapshot):
        raise click.ClickException(f"the Node's label nvidia.com/mig.config requests {label!r} now, instead of this")
    if snapshot.ledger.layout_request != request:
        raise click.ClickException("somebody has requested other layouts meanwhile, or has withdrawn these")
    return partitions_progress(snapshot)


def _is_final(gpu: GpuProgress, now: float, waited: float, patience: WaitLimit) -> bool:
    """Whether a GPU has its layout, or it is known why it has not."""
    match gpu.state:
        case "done":
            return True
        case "changing":
            return False
        case "failed":
            return gpu.next_try_at is None or gpu.next_try_at > now + MAX_RETRY_WAIT_SECONDS
        case "waiting":
            return waited > (patience.seconds if gpu.code in ("held", "in-use") else MAX_SETTLE_SECONDS)


def _print_progress(
    snapshot: Snapshot, gpus: Iterable[GpuProgress], last_printed: dict[str, GpuProgress], *, debug: bool
) -> None:
    """Say what is new. That a GPU waits for a moment, or has its layout from the beginning, is not worth a line."""
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    for each in gpus:
        before, last_printed[each.gpu] = last_printed.get(each.gpu), each.but(next_try_at=None)
        if last_printed[each.gpu] == before or (each.code == "allocatable" and not debug):
            continue
        if each.state == "done":
            if before is not None:
                say(f"GPU {indices.get(each.gpu, each.gpu)}: done", err=True)
        else:
            say(f"{each.reason}", err=True)


def _followed(site: Site, snapshot: Snapshot, request: LayoutRequest, progress: PartitionsProgress) -> Followed:
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    gpus = tuple(
        FollowedGpu(
            index=indices.get(each.gpu),
            uuid=each.gpu,
            state=each.state,
            reason=each.reason,
            code=each.code,
            holders=each.holders,
        )
        for each in progress.gpus
    )
    done = not progress.problem and all(each.state == "done" for each in gpus)
    return Followed(
        config=request.name,
        done=done,
        agent_continues=site.agent_continues and not done,
        problem=progress.problem,
        gpus=gpus,
    )
