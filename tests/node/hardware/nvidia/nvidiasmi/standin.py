"""A driver root that has an nvidia-smi, which does what a test wants and tells what it was asked."""

from pathlib import Path
from shutil import copy2

SCRIPT = Path(__file__).with_name("nvidia-smi")
LENGTHS = {"0": "default", "1": "short", "2": "medium", "3": "long"}


class SmiStandIn:
    """nvidia-smi in `root`/usr/bin."""

    def __init__(self, root: Path) -> None:
        self.root, self._folder = root, root / "usr/bin"
        self._folder.mkdir(parents=True)
        Path(copy2(SCRIPT, self._folder)).chmod(0o755)

    def does(self, gpu: str, what: str) -> None:
        """What it does from now on when it is asked about a GPU; "" for what it should."""
        fresh = self._folder / "fresh"
        fresh.write_text(what)
        fresh.replace(self._folder / f"does.{gpu}")

    def forget(self, *gpus: str) -> None:
        """These GPUs have been reset."""
        for gpu in gpus:
            (self._folder / f"set.{gpu}").unlink(missing_ok=True)

    def lengths(self) -> dict[str, str]:
        """GPU → how long its time slices are, of those that were ever set."""
        found = ((path.name.removeprefix("set."), path.read_text().strip()) for path in self._folder.glob("set.*"))
        return {gpu: LENGTHS[number] for gpu, number in found if number}

    def runs(self) -> list[tuple[str, str]]:
        """(GPU, length) of each time that it was asked."""
        return [(gpu, LENGTHS[number]) for gpu, number, _ in self._runs()]

    def running(self) -> list[int]:
        """The processes of it that have not ended."""
        return [int(pid) for *_, pid in self._runs() if _alive(pid)]

    def _runs(self) -> list[list[str]]:
        path = self._folder / "runs"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
