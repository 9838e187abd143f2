"""`gpuplane runtime configure` on copies of files that look like those of real nodes."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from gpuplane.cli.commands.runtime import command

FILES = Path(__file__).parent / "files"


def run(runtime: str, *arguments: object) -> Result:
    """`gpuplane runtime configure --runtime RUNTIME …`; what it exits with and says."""
    nowhere = {"GPUPLANE_RUNTIME_STATE_DIR": "/dev/null/state"}
    return CliRunner(env=nowhere).invoke(command, ["configure", "--runtime", runtime, *map(str, arguments)])


def without_parser_words(output: str) -> str:
    """The output without what the standard library says of a mistake, which differs between versions of Python."""
    return re.sub(r"(is not (?:TOML|JSON): ).*", r"\1…", output)


def copied(name: str, folder: Path) -> Path:
    """A copy of one of the files."""
    return Path(shutil.copy(FILES / name, folder / name))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Nothing below the folder is another when this is over."""
    before = tree(folder)
    yield
    assert tree(folder) == before
