"""The cluster that a command asks about: of an API server, or of a file that kubectl has written."""

import asyncio
from collections.abc import Callable, Container, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuplane.base import files
from gpuplane.base.strict import InvalidInput
from gpuplane.base.text import clip
from gpuplane.cli.kit import options
from gpuplane.cli.kit.messages import os_error_text, say
from gpuplane.cli.kit.options import FILE_PATH
from gpuplane.cli.kit.progress import spinner
from gpuplane.cluster.engine import configuration
from gpuplane.cluster.reading.notes import NOTE_TEXTS, Note

if TYPE_CHECKING:
    from gpuplane.cluster.reading.cluster import SeenCluster

CommandFunction = Callable[..., Any]
KUBECTL_CONFIG = Path(".kube/config")
"""Where kubectl looks, in the home directory."""

kubeconfig = options.kubeconfig(
    "How to reach the API server. Default: the first file of KUBECONFIG that is there, or ~/.kube/config, or what the "
    "pod may that it runs in."
)
saved = click.option(
    "--file",
    "saved",
    type=FILE_PATH,
    metavar="FILE",
    help="Read what `kubectl get nodes,pods,pdb --all-namespaces -o json` wrote, and no API server.",
)
config = click.option(
    "--config", type=FILE_PATH, metavar="FILE", help="The policy, and which requests are expected (docs/placement.md)."
)


def read(kubeconfig: Path | None, saved: Path | None) -> "SeenCluster":
    """The cluster, all of whose pods have places; on standard error, what is not as it should be. Raises
    ClickException."""
    require_package("numpy", "placement")
    from gpuplane.cluster.answers.assumed import assume_places

    return read_without_places(kubeconfig, saved, complete=assume_places)


def read_without_places(
    kubeconfig: Path | None,
    saved: Path | None,
    unsaid: Container[str] = (),
    complete: "Callable[[SeenCluster], SeenCluster]" = lambda seen: seen,
) -> "SeenCluster":
    """The same without the GPUs of which nobody says who has them, but for what `complete` adds. `unsaid`: codes of
    notes that do not matter to who reads it."""
    from gpuplane.cluster.reading.listing import MAX_BYTES, ClusterUnavailable, list_cluster, read_saved

    usual = Path.home() / KUBECTL_CONFIG
    try:
        with spinner("reading nodes and pods"):
            if saved is not None:
                found = read_saved(files.read(saved, MAX_BYTES), str(saved))
            else:
                found = asyncio.run(list_cluster(usual if kubeconfig is None and usual.is_file() else kubeconfig))
            found = complete(found)
    except (ClusterUnavailable, InvalidInput) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None
    _print_notes(each for each in found.notes if each.code not in unsaid)
    if not found.nodes:
        from_kubectl = ": write it with `kubectl get nodes,pods,pdb --all-namespaces -o json`"
        raise click.ClickException(f"{saved} has no nodes{from_kubectl}" if saved else "the cluster has no nodes")
    return found


def read_config(path: Path | None) -> configuration.PlacementConfig:
    """The configuration; the usual one without a file. Raises ClickException."""
    if path is None:
        return configuration.PlacementConfig()
    try:
        return configuration.load_config(files.read(path, configuration.MAX_BYTES), str(path))
    except InvalidInput as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None


def require_package(package: str, what: str, extra: str = "placement") -> None:
    """Raises ClickException where a package is not installed that something needs, and that an extra brings."""
    if find_spec(package) is None:
        raise click.ClickException(f"{what} needs {package}, which is not installed: pip install 'gpuplane[{extra}]'")


def _print_notes(notes: Iterable[Note]) -> None:
    """One line a kind of note, with the first of its subjects, and what is said of that."""
    by_code = dict[str, list[Note]]()
    for each in notes:
        by_code.setdefault(each.code, []).append(each)
    for code, alike in by_code.items():
        first, more = alike[0], f" and {len(alike) - 1} more" if alike[1:] else ""
        of_first = f"; {first.subject}" if more else ""
        detail = f"{of_first}: {clip(first.detail)}" if first.detail else ""
        say(f"{first.subject}{more}: {NOTE_TEXTS[first.code]} ({code}){detail}", err=True)
