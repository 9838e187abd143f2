"""`gpuplane placement explain`: where pods go that wait, why, and what would have to end for the others."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuplane.base.text import format_count
from gpuplane.cli.kit.cluster import config, kubeconfig, read, read_config, saved
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import print_result, rows_as_lines, wrapped
from gpuplane.cli.kit.progress import progress_bar
from gpuplane.cluster.engine.reasons import TEXTS_OF_GPUS, TEXTS_OF_NODES

if TYPE_CHECKING:
    from gpuplane.cluster.answers.explain import EndShown, PodShown

MAX_NAMED_NODES = 5
"""Nodes of one reason that are named; --json has all."""


@click.command()
@click.argument("pod", metavar="[NAMESPACE/POD]", default="")
@click.option("--node", metavar="NODE", default="", help="Why it gets each GPU of this node, or does not.")
@config
@kubeconfig
@saved
@json_option()
def command(
    pod: str, node: str, config: Path | None, kubeconfig: Path | None, saved: Path | None, as_json: bool
) -> None:
    """Show where pods go that wait for GPUs, why there, and what would have to end for those without a place.

    Pods are decided one after the other, the highest priority first. With NAMESPACE/POD only about that one; if it
    runs, as if it came now. Nothing is bound and nothing ends. Without a terminal each line is a pod and where it is
    (now) or would go (place), with node and GPUs; or a reason: pod, code, how many nodes, and their names.
    """
    configured = read_config(config)
    seen = read(kubeconfig, saved)
    from gpuplane.cluster.answers.explain import PodUnknown, show_waiting

    if node and node not in {each.name for each in seen.nodes}:
        raise click.ClickException(f"there is no node {node!r}")
    try:
        with progress_bar("pods", len(seen.waiting)) as done:
            shown = show_waiting(seen, configured, pod, node, done)
    except PodUnknown:
        raise click.ClickException(f"pod {pod!r} is neither running nor waiting: write NAMESPACE/POD") from None
    print_result(
        {"pods": shown, "notes": seen.notes},
        rows_as_lines(row for each in shown for row in _rows(each, node)),
        (wrapped(line) for each in shown for line in _sentences(each, node)),
        as_json=as_json,
        nothing_found="" if shown else "no pod waits",
    )


def _rows(shown: "PodShown", node: str) -> Iterator[tuple[str, ...]]:
    for what, place in (("now", shown.now), ("place", shown.place)):
        if place is not None:
            yield shown.pod, what, place.node, ",".join(place.gpus)
    for code in shown.counts:
        yield shown.pod, code, str(shown.counts[code]), ",".join(_names(shown, code))
    for what, end in (("preemption", shown.preemption), ("ending", shown.ending)):
        if end is not None:
            yield shown.pod, what, str(len(end.pods)), end.node, ",".join(end.pods), ",".join(end.budgets)
    for each in shown.gpus if node else ():
        yield shown.pod, "gpu", each.id, each.code, "" if each.free is None else str(each.free), ",".join(each.pods)


def _sentences(shown: "PodShown", node: str) -> Iterator[str]:
    if shown.now is not None:
        yield f"{shown.pod} (priority {shown.priority}) runs on {shown.now.node} {','.join(shown.now.gpus)}"
    elif shown.place is None:
        yield f"{shown.pod} (priority {shown.priority}) fits nowhere"
    else:
        yield f"{shown.pod} (priority {shown.priority}) has a place"
    if shown.place is not None:
        yield f"  it would go to {shown.place.node}"
        for each in shown.gpus:
            if each.code == "chosen":
                yield f"    {each.id}" + (
                    "" if each.free is None else f": of its {each.free} free milli-GPU, {each.left} would be left"
                )
    for code, count in shown.counts.items():
        if code != "chosen":
            names = _names(shown, code)
            more = f" and {count - MAX_NAMED_NODES} more" if count > MAX_NAMED_NODES else ""
            yield f"  {format_count(count, 'node')} {TEXTS_OF_NODES[code]}: {', '.join(names[:MAX_NAMED_NODES])}{more}"
    if node:
        [code] = [each.code for each in shown.nodes if each.node == node]
        yield f"  node {node} ({code}):"
        for each in shown.gpus:
            free = "" if each.free is None else f", {each.free} milli-GPU free"
            pods = f"; {', '.join(each.pods)}" if each.pods else ""
            is_enough = each.code == "fits" and code in ("chosen", "worse")
            yield f"    {each.id} {TEXTS_OF_NODES['worse'] if is_enough else TEXTS_OF_GPUS[each.code]}{free}{pods}"
    if shown.preemption is not None:
        yield f"  with its priority it would get {_preemption_text(shown.preemption)}"
    elif shown.ending is not None:
        yield f"  no pod of lower priority makes room for it; it would fit {_preemption_text(shown.ending)}"
    elif shown.place is None:
        yield "  whichever pods end, it does not fit"


def _preemption_text(end: "EndShown") -> str:
    pods = [
        f"{name} (priority {priority}{', which waits before it' if name in end.waiting else ''})"
        for name, priority in end.pods.items()
    ]
    more = f" and {len(pods) - MAX_NAMED_NODES} more" if len(pods) > MAX_NAMED_NODES else ""
    beyond = f", which exceeds the budget {', '.join(end.budgets)}" if end.budgets else ""
    return f"onto {end.node} when {', '.join(pods[:MAX_NAMED_NODES])}{more} end{'' if len(pods) > 1 else 's'}{beyond}"


def _names(shown: "PodShown", code: str) -> list[str]:
    return [each.node for each in shown.nodes if each.code == code]
