"""`gpuplane cdi validate`: is a specification good."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click
import msgspec

from gpuplane.base.document import MAX_BYTES
from gpuplane.base.strict import InvalidInput
from gpuplane.base.text import format_count
from gpuplane.base.value import Value
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import FILE_PATH, json_option
from gpuplane.cli.kit.presenter import print_json
from gpuplane.node.core.containers.cdi.validation import all_spec_problems, parse_spec, runtime_refusal_problems
from gpuplane.node.core.containers.cdi.version import lowest_version
from gpuplane.node.host.specfiles import read_spec_file


class CheckedSpec(Value):
    """How a file stands, as `--json` shows it. What it holds is told of a good one only."""

    file: str
    state: Literal["good", "wrong", "unreadable"]
    errors: tuple[str, ...] = ()
    refused: bool = False  # by container runtimes: none of its devices can be used
    kind: str = ""
    devices: int = 0
    version: str = ""
    sufficient_version: str = ""  # the version that would be enough


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE_PATH)
@json_option("One JSON document, with the mistakes of each file.")
def command(files: tuple[Path, ...], as_json: bool) -> None:
    """Check CDI specifications, YAML or JSON, against the rules of CDI; - is standard input.

    Every error is printed with file and line, on standard error: those for which container runtimes refuse a whole
    file, and those that they accept until a container fails to start. Exit status: 0 if all files are good, 1 if one
    is wrong or cannot be read.
    """
    judged = [_check_spec(file) for file in files]
    if as_json:
        document = {"files": [msgspec.structs.asdict(each) for each in judged]}  # every key is always there
        print_json(document)
    else:
        for each in judged:
            for line in _lines(each):
                say(line, err=each.state != "good")
    raise SystemExit(int(any(each.state != "good" for each in judged)))


def _check_spec(file: Path) -> CheckedSpec:
    name = str(file)
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if name == "-" else read_spec_file(file)
    if isinstance(data, OSError):
        return CheckedSpec(name, "unreadable", (f"{name}: {data.strerror or data}",))
    try:
        spec = parse_spec(data, name, all_spec_problems)
    except InvalidInput as invalid:
        return CheckedSpec(name, "wrong", tuple(invalid.errors), _is_refused(data, name))
    return CheckedSpec(
        name,
        "good",
        kind=spec.kind,
        devices=len(spec.devices),
        version=spec.cdi_version,
        sufficient_version=lowest_version(spec),
    )


def _is_refused(data: bytes, name: str) -> bool:
    try:
        parse_spec(data, name, runtime_refusal_problems)
    except InvalidInput:
        return True
    return False


def _lines(judged: CheckedSpec) -> Iterator[str]:
    """For a person, and for programs that read lines."""
    yield from judged.errors
    if judged.state == "good":
        devices = f"{format_count(judged.devices, 'device')} of {judged.kind}"
        enough = "" if judged.sufficient_version == judged.version else f"; {judged.sufficient_version} would be enough"
        yield f"{judged.file}: good: {devices}, version {judged.version}{enough}"
    elif judged.state == "wrong":
        yield (
            f"{judged.file}: container runtimes refuse it, so none of its devices can be used"
            if judged.refused
            else f"{judged.file}: container runtimes accept it nevertheless, but starting a container may fail"
        )
