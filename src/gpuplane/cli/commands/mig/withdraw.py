"""`gpuplane mig withdraw`: end what `apply` or `restore` has requested of the running agent."""

from pathlib import Path

import click

from gpuplane.base.value import Value
from gpuplane.cli.kit.agent import ask, fetch_node_state, state_dir
from gpuplane.cli.kit.durations import boottime
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import print_result
from gpuplane.node.model.control import WithdrawLayouts


class Withdrawn(Value, omit_defaults=False):
    """What `--json` shows. `config`: what was requested; "" where nothing was."""

    config: str


@click.command()
@json_option()
@state_dir
def command(as_json: bool, state_dir: Path) -> None:
    """End the layouts that were requested of the running agent by a command. The GPUs stay as they are."""
    before = fetch_node_state(state_dir).snapshot.ledger.layout_request
    ask(state_dir, WithdrawLayouts(requested_at=boottime()))
    withdrawn = Withdrawn(config=before.name if before is not None else "")
    sentence = (
        f"{before.name} is withdrawn; the GPUs stay as they are" if before is not None else "nothing was requested"
    )
    print_result(withdrawn, [sentence], as_json=as_json)
