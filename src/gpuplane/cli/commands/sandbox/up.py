"""`gpuplane sandbox up`: a cluster on this machine."""

from pathlib import Path

import click

from gpuplane.cli.kit.cluster import require_package
from gpuplane.cli.kit.options import FILE_PATH, json_option


@click.command()
@click.option(
    "--nodes", default="2×hgx-h100,t4", show_default=True, metavar="[COUNT×]MACHINE,…",
    help="The nodes to play: a profile or a machine file each, and how many of it.",
)  # fmt: skip
@click.option(
    "--control-plane", type=FILE_PATH, metavar="DIR",
    help="Where etcd and Kubernetes' programs are. Default: $GPUPLANE_CONTROL_PLANE, $KUBEBUILDER_ASSETS, or what "
    "`gpuplane sandbox fetch` has downloaded.",
)  # fmt: skip
@click.option(
    "--state-dir", type=FILE_PATH, metavar="DIR",
    help="Keep the cluster in this directory between runs. Default: it is gone when it ends.",
)  # fmt: skip
@click.option("--kubeconfig", type=FILE_PATH, metavar="FILE", help="Write the administrator's kubeconfig here too.")
@click.option("--merge", is_flag=True, help="Add a context to your own kubeconfig, and make it the current one.")
@click.option("--no-agents", is_flag=True, help="Run no agents on the nodes: you install them as on a cluster.")
@click.option("--detach", is_flag=True, help="Return once it runs; `gpuplane sandbox down` ends it.")
@json_option("One JSON document, once it runs.")
def command(
    nodes: str, control_plane: Path | None, state_dir: Path | None, kubeconfig: Path | None, merge: bool,
    no_agents: bool, detach: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a cluster on this machine: a real control plane, and played nodes with an agent each.

    It needs no GPU and no root. Pods of gpuplane's own image run; the containers of others are played. The nodes' GPUs
    are those of their machine files: edit one, and its GPUs fail. Ctrl-C ends all.
    """
    require_package("cryptography", "sandbox up", "sandbox")
    from gpuplane.cli.commands.sandbox import running

    options = running.Options(nodes, control_plane, state_dir, kubeconfig, merge, not no_agents)
    running.start_detached(options, as_json) if detach else running.run(options, as_json)
