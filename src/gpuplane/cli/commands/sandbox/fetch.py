"""`gpuplane sandbox fetch`: the programs of a control plane, downloaded once."""

import os
from pathlib import Path

import click

from gpuplane.cli.kit.messages import os_error_text, say
from gpuplane.cli.kit.options import FILE_PATH, OneOf, json_option
from gpuplane.cli.kit.presenter import print_result, rows_as_lines
from gpuplane.cli.kit.progress import download_bars
from gpuplane.sandbox.controlplane.programs import NAMES, fetched_root, own_architecture, parse_version
from gpuplane.sandbox.controlplane.releases import ELF_MACHINES, ETCD_VERSION, KUBERNETES_VERSION, Download, downloads


@click.command()
@click.option("--version", default=KUBERNETES_VERSION, show_default=True, metavar="VERSION", help="Of Kubernetes.")
@click.option(
    "--arch", "architecture", type=OneOf(ELF_MACHINES), default=own_architecture, help="Default: this machine's."
)
@click.option(
    "--mirror", default="", metavar="URL", help="A site that has the same paths as dl.k8s.io and github.com have them."
)
@click.option("--directory", type=FILE_PATH, metavar="DIR", help="Where to put them. Default: in the cache directory.")
@json_option()
def command(version: str, architecture: str, mirror: str, directory: Path | None, as_json: bool) -> None:
    """Download etcd, kube-apiserver, kube-controller-manager and kube-scheduler, the official releases for Linux.

    They come from dl.k8s.io and github.com (about 250 MB), are checked, and are kept in ~/.cache/gpuplane, where
    `sandbox up` finds them. What is there is not downloaded again. A download that was cut off goes on where it ended.
    """
    version = _checked_version(version)
    if mirror and not mirror.startswith(("https://", "http://")):
        raise click.BadParameter(f"{mirror!r} is no address of a site: https://HOST/PATH", param_hint="--mirror")
    directory = (directory or fetched_root(os.environ) / f"{version}-linux-{architecture}").absolute()
    wanted = downloads(version, architecture, mirror)
    was_there = all((directory / name).is_file() for name in NAMES)
    if not was_there:
        say(f"Kubernetes {version} and etcd {ETCD_VERSION} for linux/{architecture}:", err=True)
        for each in wanted:
            say(f"  {each.url}", err=True)
        _fetch(wanted, directory, architecture)
    sizes = {name: (directory / name).stat().st_size for name in NAMES}
    document = {
        "directory": str(directory),
        "kubernetes": version,
        "etcd": ETCD_VERSION,
        "architecture": architecture,
        "downloaded": not was_there,
        "programs": [{"name": name, "bytes": size} for name, size in sizes.items()],
    }
    lines = rows_as_lines((str(directory / name), f"{size / 1e6:.0f} MB") for name, size in sizes.items())
    print_result(document, lines, as_json=as_json)


def _fetch(wanted: list[Download], directory: Path, architecture: str) -> None:
    """Raises ClickException."""
    from gpuplane.sandbox.controlplane.fetch import FetchError, fetch

    try:
        with download_bars() as show:
            fetch(wanted, directory, architecture, show)
    except FetchError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        where = "" if error.filename else f"{directory.parent}: "  # a full disk names no file
        raise click.ClickException(f"{where}{os_error_text(error)}. What is downloaded is kept: try again") from None


def _checked_version(text: str) -> str:
    """Without a "v". Raises BadParameter."""
    try:
        version = ".".join(map(str, parse_version(text)))
    except ValueError:
        version = ""
    if text.removeprefix("v") != version:
        raise click.BadParameter(f"{text!r} is no version such as {KUBERNETES_VERSION}", param_hint="--version")
    return version
