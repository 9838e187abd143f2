"""`gpuplane demo`: the main job on screen, without a GPU, a cluster or root."""

import time
from typing import TYPE_CHECKING

import click
import msgspec

from gpuplane.base import files
from gpuplane.base.strict import InvalidInput
from gpuplane.cli.kit import signals
from gpuplane.cli.kit.options import Machine, json_option
from gpuplane.cli.kit.presenter import is_terminal
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.sandbox.demo.play import Demo
from gpuplane.sandbox.demo.stage import Scene, SceneFailed
from gpuplane.sandbox.kubelet import PodRejected

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option(
    "--profile", default="dgx-a100", show_default=True, type=Machine(), help="A profile's name, or a machine file."
)
@json_option("One JSON document for each scene.")
def command(profile: str, as_json: bool) -> None:
    """Show the main job: a node serves kubelet by its own protocol, and survives what happens to nodes.

    The machine needs at least two GPUs that are not in MIG mode and have 4 GiB or more.
    """
    try:
        source = find_machine_file(profile)
        content = files.read(source)
        demo = Demo(source.name, content, read_machine(content, source.name))
        signals.run(_play(demo, as_json), demo.scratch.remove)
    except (SceneFailed, PodRejected, InvalidInput) as error:
        raise click.ClickException(str(error)) from None


async def _play(demo: Demo, as_json: bool) -> None:
    began = time.monotonic()
    number = 0
    try:
        async for scene in demo.scenes():
            number += 1
            _print_json(number, scene) if as_json else _print(number, scene)
    except SceneFailed as failure:
        if as_json:
            print(msgspec.json.encode({"scene": number + 1, "broken": str(failure)}).decode(), flush=True)
        raise click.ClickException(f"scene {number + 1} failed: {failure}") from None
    if not as_json:
        _console().print(f"\n[bold green]All {number} scenes passed[/bold green], in {time.monotonic() - began:.1f} s.")


def _print_json(number: int, scene: Scene) -> None:
    print(msgspec.json.encode({"scene": number, **msgspec.structs.asdict(scene)}).decode(), flush=True)


def _print(number: int, scene: Scene) -> None:
    from rich.markup import escape

    console = _console()
    console.print(f"\n[bold]{number}. {escape(scene.title)}[/bold]")
    width = max(map(len, scene.lines), default=0)
    for name, value in scene.lines.items():
        console.print(f"   [dim]{escape(name):<{width}}[/dim]  {escape(value)}")


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, emoji=False, soft_wrap=not is_terminal())
