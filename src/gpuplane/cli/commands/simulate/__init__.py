"""`gpuplane simulate`: what placement policies do with a cluster and its pods (docs/simulate.md).

The nodes and pods are those of a trace's files, or those of a cluster.
"""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from gpuplane.base import files
from gpuplane.base.strict import InvalidInput, did_you_mean
from gpuplane.base.text import format_count, join_first_names
from gpuplane.cli.kit.cluster import kubeconfig, read_without_places, require_package, saved
from gpuplane.cli.kit.messages import os_error_text, say
from gpuplane.cli.kit.options import FILE_PATH, OneOf, json_option, usage_error
from gpuplane.cli.kit.outputfiles import check_output, write_output
from gpuplane.cli.kit.presenter import print_result
from gpuplane.cli.kit.progress import progress_bar
from gpuplane.cluster.engine.policies import POLICIES, UnknownPolicy, parse_policy

if TYPE_CHECKING:
    from gpuplane.cluster.simulation.report import Report
    from gpuplane.cluster.simulation.scenario import Scenario
    from gpuplane.cluster.simulation.workers import Trace

QUEUE_NAMES = ("none", "fifo", "backfill")
PLOT_FILE_SUFFIXES = (".png", ".svg")
MAX_SEEDS = 1000
SEED_LIMIT = 2**32
EXTRA_NAME = "simulation"
NOTES_ON_HOLDERS = frozenset({"held-assumed", "device-gone", "budgets-unread"})
"""Notes on who has what now, and who may end: nodes are played empty."""


class Policies(click.ParamType[tuple[str, ...]]):
    """Policies, each once, separated by commas: names, or names with weights."""

    name = "policies"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Them. Raises BadParameter."""
        if isinstance(value, tuple):
            return value
        found = dict[str, dict[str, float]]()  # text → the part of each policy; together 1
        for each in str(value).split(","):
            try:
                weights = parse_policy(each)
            except UnknownPolicy as error:
                self.fail(f"{error}.{did_you_mean(error.name, POLICIES)}", param, ctx)
            parts = {name: weight / sum(weights.values()) for name, weight in weights.items()}
            if same := next((text for text, others in found.items() if others == parts), None):
                self.fail(f"{each!r} is there twice" + f": {same!r} is the same" * (same != each), param, ctx)
            found[each] = parts
        return tuple(found)


class Seeds(click.ParamType[tuple[int, ...]]):
    """Numbers, each once: "7", "1,2,5", "42-51"."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Them. Raises BadParameter."""
        if isinstance(value, tuple):
            return value
        found = dict[int, None]()
        for each in str(value).split(","):
            parts = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", each, re.ASCII)
            if parts is None:
                self.fail(f"{each!r} is not a seed: write 7, 1,2,5 or 42-51", param, ctx)
            first, last = int(parts[1]), int(parts[2] or parts[1])
            if last < first or last >= SEED_LIMIT:
                self.fail(f"{each!r}: seeds go from a number to a larger one, below {SEED_LIMIT}", param, ctx)
            if last - first >= MAX_SEEDS or len(found) > MAX_SEEDS:
                self.fail(f"{value!r} has too many seeds: at most {MAX_SEEDS}", param, ctx)
            found.update(dict.fromkeys(range(first, last + 1)))
        return tuple(found)


@click.command()
@click.option("--nodes", type=FILE_PATH, help="The nodes, as CSV: sn, cpu_milli, memory_mib, gpu, model.")
@click.option(
    "--pods",
    type=FILE_PATH,
    help="The pods, as CSV: name, cpu_milli, memory_mib, num_gpu, gpu_milli; also gpu_spec, creation_time and "
    "deletion_time.",
)
@click.option("--from-cluster", is_flag=True, help="Instead: the nodes of a cluster, and the pods that it has.")
@kubeconfig
@saved
@click.option(
    "--policy",
    "policies",
    type=Policies(),
    metavar="NAME[,NAME…]",
    default="waste-price",
    show_default=True,
    help=f"{', '.join([*POLICIES][:-1])} or {[*POLICIES][-1]}; or several with weights, as waste-price:1+spread:0.1. "
    "Others are compared with the first.",
)
@click.option(
    "--seeds",
    type=Seeds(),
    metavar="SEEDS",
    default="42-51",
    show_default=True,
    help="Each is one run of each policy: the order of the pods, and what ties are broken by.",
)
@click.option(
    "--demand",
    type=click.IntRange(1, 1000),
    metavar="PERCENT",
    default=130,
    show_default=True,
    help="How many GPUs all pods that arrive ask for, in % of the cluster's GPUs.",
)
@click.option("--departures", is_flag=True, help="Pods depart after the time that they have run in the trace.")
@click.option(
    "--queue",
    type=OneOf(QUEUE_NAMES),
    default="none",
    show_default=True,
    help="With --departures, what becomes of a pod that has no room: it is refused; or it waits and holds up all "
    "behind it (fifo), or nobody (backfill).",
)
@click.option(
    "--fewer", is_flag=True, help="Find how many GPUs fewer suffice for what the first policy allocates on all."
)
@json_option("One JSON document, with each run.")
@click.option("--csv", "as_csv", type=FILE_PATH, metavar="FILE", help="Write each run's figures to this file.")
@click.option("--plot", "plot_file", type=FILE_PATH, metavar="FILE", help="Draw them: FILE.png or FILE.svg.")
@click.option("--processes", type=click.IntRange(1, 1024), metavar="N", help="Default: one for each core.")
def command(
    nodes: Path | None,
    pods: Path | None,
    from_cluster: bool,
    kubeconfig: Path | None,
    saved: Path | None,
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    demand: int,
    departures: bool,
    queue: str,
    fewer: bool,
    as_json: bool,
    as_csv: Path | None,
    plot_file: Path | None,
    processes: int | None,
) -> None:
    """Show how much of a cluster's GPUs placement policies allocate, and which pods they have no room for.

    Nodes and pods are those of two files, or with --from-cluster or --file those of a cluster, which is only read. The
    pods arrive on empty nodes in random orders, by the method of the FGD paper (USENIX ATC'23). Without a terminal
    the output has one figure on each line, and tabs between columns.
    """
    if bool(nodes) != bool(pods) or sum((bool(nodes), from_cluster, bool(saved))) != 1:
        raise usage_error("give --nodes and --pods, or --from-cluster, or --file")
    if fewer and len(policies) < 2:
        raise usage_error("--fewer needs two policies or more: the first is what you have")
    if queue != "none" and not departures:
        raise usage_error(f"--queue {queue} needs --departures: a pod can only wait for one that departs")
    if departures and not nodes:
        raise usage_error("--departures needs --nodes and --pods: a cluster does not say how long its pods stay")
    if plot_file is not None and plot_file.suffix not in PLOT_FILE_SUFFIXES:
        raise usage_error(f"--plot {plot_file} has to end in .png or .svg")
    require_package("numpy", "simulate", EXTRA_NAME)
    if plot_file is not None:
        require_package("matplotlib", "--plot", EXTRA_NAME)
    for out in (as_csv, plot_file):
        if out is not None:
            check_output(out, nodes, pods, saved, kubeconfig, plot_file if out is as_csv else None)

    from gpuplane.cluster.simulation.scenario import Queue, Scenario

    assert queue in get_args(Queue)
    scenario = Scenario(demand, departures, queue)  # type: ignore[arg-type]
    trace = read_trace(nodes, pods) if nodes and pods else read_cluster(kubeconfig, saved)
    simulate(trace, scenario, policies, seeds, fewer, processes, as_json, as_csv, plot_file)


def read_trace(nodes: Path, pods: Path) -> "Trace":
    """Nodes and pods of two files. Raises ClickException."""
    from gpuplane.cluster.simulation import trace
    from gpuplane.cluster.simulation.workers import Trace

    try:
        found = trace.read_nodes(files.read(nodes, trace.MAX_BYTES), str(nodes))
        return Trace(found, trace.read_pods(files.read(pods, trace.MAX_BYTES), str(pods), found))
    except InvalidInput as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None


def read_cluster(kubeconfig: Path | None, saved: Path | None) -> "Trace":
    """Nodes and pods of a cluster. Raises ClickException."""
    seen = read_without_places(kubeconfig, saved, unsaid=NOTES_ON_HOLDERS)
    from gpuplane.cluster.simulation.clusters import trace_of, without_impossible

    trace = trace_of(seen)
    played = without_impossible(trace)
    there, fits = [each for node in trace.nodes for each in node.gpus], {each.name for each in played.pods}
    if count := sum(each.is_partitioned for each in there):
        say(f"{format_count(count, 'GPU')} with MIG left out: MIG devices are not simulated", err=True)
    _say_left_out(
        [each.name for each in (*seen.pods, *seen.waiting) if each.uid and each.request.asks_for_mig],
        "MIG devices are not simulated",
    )
    _say_left_out([each.name for each in trace.pods if each.name not in fits], "no node has room even when empty")
    return played


def _say_left_out(pods: list[str], why: str) -> None:
    if pods:
        say(f"{format_count(len(pods), 'pod')} left out ({join_first_names(pods, 3)}): {why}", err=True)


def simulate(
    trace: "Trace",
    scenario: "Scenario",
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    fewer: bool,
    processes: int | None,
    as_json: bool,
    as_csv: Path | None,
    plot_file: Path | None,
) -> None:
    """Play all runs, and print and write what they show. Raises ClickException."""
    from gpuplane.cli.commands.simulate import output
    from gpuplane.cluster.simulation.scenario import Impossible
    from gpuplane.cluster.simulation.workers import WorkerEnded

    try:
        report = play(trace, scenario, policies, seeds, fewer, processes)
    except Impossible as error:
        raise click.ClickException(str(error)) from None
    except WorkerEnded as error:
        is_killed = error.status == -signal.SIGKILL
        advice = ". The kernel may have done so for want of memory: --processes 1 takes less" if is_killed else ""
        raise click.ClickException(f"{error}{advice}") from None
    problem = _write_files(report, as_csv, plot_file)
    print_result(report, output.lines(report), output.page(report), as_json=as_json)
    if problem is not None:
        raise problem


def _write_files(report: "Report", as_csv: Path | None, plot_file: Path | None) -> click.ClickException | None:
    """What is wrong with one of them: minutes of work are not thrown away for that."""
    from gpuplane.cli.commands.simulate import output

    problem = None
    try:
        if as_csv is not None:
            write_output(as_csv, output.csv_of(report))
        if plot_file is not None:
            from gpuplane.cluster.simulation.plot import plot

            write_output(plot_file, plot(report, plot_file.suffix))
    except click.ClickException as error:
        problem = error
    return problem


def play(
    trace: "Trace",
    scenario: "Scenario",
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    fewer: bool,
    processes: int | None = None,
) -> "Report":
    """All runs, on all cores. Raises Impossible, WorkerEnded."""
    from gpuplane.cluster.simulation.replay import capacity_milli
    from gpuplane.cluster.simulation.report import report
    from gpuplane.cluster.simulation.scenario import arrivals
    from gpuplane.cluster.simulation.workers import Ask, cores, workers

    capacity = capacity_milli(trace.nodes)
    arrivals(trace.pods, capacity, scenario, seeds[0])  # raises what each run would
    asks = [Ask(policy, seed, scenario) for policy in policies for seed in seeds]
    searches = len(seeds) * (len(policies) - 1) if fewer else 0
    count = min(processes or cores(), len(asks))
    with progress_bar("runs", len(asks) + searches) as done, workers(trace, count) as them:
        runs = [each.run for each in them.answers(asks, done) if each.run is not None]
        found = dict[str, list[float | None]]()
        if fewer:
            needed = {run.seed: run.allocated * capacity / 100 for run in runs[: len(seeds)]}
            asks = [Ask(policy, seed, scenario, needed[seed]) for policy in policies[1:] for seed in seeds]
            for ask, each in zip(asks, them.answers(asks, done), strict=True):
                found.setdefault(ask.policy, []).append(each.fewer)
    return report(trace.nodes, trace.pods, scenario, runs, found if fewer else None)
