"""A part of the agent is kept running, and its status says when it fails. What else the status says stays."""

from collections.abc import Awaitable, Callable

from gpuplane.node.agent.node import Node
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.status import AnyPart
from gpuplane.service.restart import RESTART_BACKOFF, STEADY_AFTER, keep_running


async def keep_part_running(
    node: Node,
    part: AnyPart,
    run: Callable[[], Awaitable[None]],
    backoff: tuple[float, float] = RESTART_BACKOFF,
    steady: float = STEADY_AFTER,
) -> None:
    """Run a part for ever; it fails by its status from when it raises until it has worked again for a while."""

    def report_failed(reason: str) -> None:
        known = node.snapshot.statuses.of(part) or part.status_type("failing")
        node.apply(StatusChanged(part, known.but(state="failing", text=reason, code="", warns=False)))

    def report_well(last_reason: str) -> None:
        status = node.snapshot.statuses.of(part)
        if status is not None and (status.state, status.text) == ("failing", last_reason):
            node.apply(StatusChanged(part, None))

    await keep_running(part.name, run, report_failed, report_well, backoff, steady)
