"""Options that several `mig` commands have: names and variables are those of nvidia-mig-parted."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.strict import InvalidInput
from gpuplane.cli.kit.messages import os_error_text
from gpuplane.cli.kit.options import FILE_PATH, Machine, OneOf, usage_error
from gpuplane.node.core.partitions.generated import generated_configs
from gpuplane.node.core.partitions.migparted import parse_configs, select_config
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import MigConfigEntry

CommandFunction = Callable[..., Any]
EntriesOf = Callable[[tuple[Gpu, ...]], tuple[MigConfigEntry, ...]]
"""The entries of a configuration, for the GPUs of a machine."""

config_file = click.option(
    "-f",
    "--config-file",
    type=FILE_PATH,
    envvar="MIG_PARTED_CONFIG_FILE",
    metavar="FILE",
    help="The file with the configurations; - for standard input. Default: those of generate-config.",
)
selected_config = click.option(
    "-c",
    "--selected-config",
    default="",
    envvar="MIG_PARTED_SELECTED_CONFIG",
    metavar="NAME",
    help="The name of the configuration. Default: the only one in the file.",
)
mode_only = click.option(
    "-m",
    "--mode-only",
    is_flag=True,
    envvar="MIG_PARTED_MODE_CHANGE_ONLY",
    help="Only MIG mode, not the instances.",
)
checkpoint_file = click.option(
    "-f",
    "--checkpoint-file",
    type=FILE_PATH,
    required=True,
    envvar="MIG_PARTED_CHECKPOINT_FILE",
    metavar="FILE",
    help="The file with the saved partitions; - for standard output or input.",
)
machine = click.option(
    "--machine",
    type=Machine(nvml=True),
    help="Look at this machine: nvml, a machine file, or a profile. Default: ask the running agent, without one nvml.",
)


def output_format(*names: str) -> Callable[[CommandFunction], CommandFunction]:
    """The option that chooses YAML or JSON, by these names."""
    return click.option(
        *names,
        "form",
        type=OneOf(("yaml", "json")),
        default="yaml",
        show_default=True,
        envvar="MIG_PARTED_OUTPUT_FORMAT",
        help="The format of the output.",
    )


def read(path: Path) -> bytes:
    """A file, or standard input for `-`. Raises ClickException."""
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else files.read(path, MAX_BYTES)
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None


def selected_config_of(path: Path, name: str) -> tuple[str, tuple[MigConfigEntry, ...]]:
    """The name of the configuration that is meant, and its entries. Raises ClickException."""
    file = "standard input" if str(path) == "-" else str(path)
    try:
        return select_config(parse_configs(read(path), file), name, file)
    except InvalidInput as invalid:
        raise click.ClickException(str(invalid)) from None


def chosen_config(path: Path | None, name: str) -> tuple[str, EntriesOf]:
    """The name of the configuration that is meant, and its entries for some GPUs. Raises ClickException.

    Without a file it is one of those that are generated for the GPUs.
    """
    if path is not None:
        name, entries = selected_config_of(path, name)
        return name, lambda gpus: entries
    if not name:
        raise usage_error("Missing option '-f' / '--config-file', or '-c' / '--selected-config' of a generated one.")

    def generated(gpus: tuple[Gpu, ...]) -> tuple[MigConfigEntry, ...]:
        try:
            return select_config(generated_configs(gpus), name, "the generated configurations")[1]
        except InvalidInput as invalid:
            raise click.ClickException(str(invalid)) from None

    return name, generated
