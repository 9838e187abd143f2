"""Traces that placement is measured on: those of openb, which are not a part of the repository (docs/simulate.md)."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from bench.row import Row
from gpuplane.cluster.simulation.pods import TracePod, class_of
from gpuplane.cluster.simulation.results import Run
from gpuplane.cluster.simulation.scenario import Scenario
from gpuplane.cluster.simulation.trace import read_nodes, read_pods
from gpuplane.cluster.simulation.workers import Ask, Trace, cores, workers

ROOT = Path(__file__).parents[1]
NODES = "openb_node_list_gpu_node.csv"
DEFAULT = "default"
OTHERS = ("cpu100", "gpushare40", "gpuspec20", "multigpu30")
SEEDS = range(42, 52)
"""Those of the FGD paper's artifact."""
FGD, OURS = "fgd", "waste-price"


def folder() -> Path:
    """Where they should be."""
    return Path(os.environ.get("GPUPLANE_OPENB") or ROOT.parent / "shared/data/openb")


def missing() -> list[Row]:
    """A row that is missed, where files of the traces are not there; else none."""
    absent = [name for name in (NODES, *map(_pods_of, (DEFAULT, *OTHERS))) if not (folder() / name).is_file()]
    if not absent:
        return []
    how = f"{folder()} lacks {', '.join(absent)}: set GPUPLANE_OPENB to where the traces of openb are"
    return [Row("traces that are not here", len(absent), 0, "files", how)]


def _pods_of(trace: str) -> str:
    return f"openb_pod_list_{trace}.csv"


@functools.cache
def read(trace: str) -> Trace:
    """A trace whose pods all have times. Some files have none: then those of the default trace's pods of the same
    names, which they are made of; and for clones of these, those of a pod of the same class, by chance."""
    nodes = read_nodes((folder() / NODES).read_bytes(), NODES)
    name = _pods_of(trace)
    pods = read_pods((folder() / name).read_bytes(), name, nodes)
    if all(each.lifetime is not None for each in pods):
        return Trace(nodes, pods)
    known, by_class, random = dict[str, float | None](), dict[str, list[TracePod]](), Random(trace)
    for each in read(DEFAULT).pods:
        known[each.name] = each.lifetime
        by_class.setdefault(class_of(each), []).append(each)
    return Trace(
        nodes,
        tuple(
            each.but(
                lifetime=known[each.name] if each.name in known else random.choice(by_class[class_of(each)]).lifetime
            )
            for each in pods
        ),
    )


def play(trace: str, scenario: Scenario) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The runs of FGD, and ours with the same seeds, on all cores."""
    with workers(read(trace), cores()) as them:
        asks = [Ask(policy, seed, scenario) for seed in SEEDS for policy in (FGD, OURS)]
        runs = [each.run for each in them.answers(asks) if each.run is not None]
    return _of(runs, FGD), _of(runs, OURS)


def _of(runs: Sequence[Run], policy: str) -> tuple[Run, ...]:
    return tuple(each for each in runs if each.policy == policy)
