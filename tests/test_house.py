"""The house stands as it is drawn: who may import whom, and what is generated is current."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.golden import HEAD, read

ROOT = Path(__file__).parents[1]


def test_every_room_imports_only_what_it_may() -> None:
    """The contracts of pyproject.toml hold."""
    linter = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert found.returncode == 0, found.stdout


def test_what_is_generated_is_current(tmp_path: Path) -> None:
    """`make protocols` would change nothing."""
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python")]
    protos = sorted(str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/gpuplane").rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out]
    subprocess.run([*command, *protos], cwd=ROOT / "src", timeout=60, check=True)

    assert protos
    for fresh in tmp_path.rglob("*.py"):
        assert fresh.read_text() == (ROOT / "src" / fresh.relative_to(tmp_path)).read_text(), fresh.name


OPENS = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "fdopen", "copyfile", "copy", "copy2"}
"""Names of calls that open a file to read or write it: they wait for a FIFO, or know no bound, or follow a link."""

ALLOWED = {
    "base/files.py": "the one that does it for all",
    "cli/__init__.py": "opens /dev/null",
    "node/hardware/nvidia/devicenodes.py": "opens directories alone, with O_DIRECTORY, as a FIFO or device cannot be",
    "node/hardware/nvidia/driver/tree.py": "asks before what it is, and follows no link: its root is another system's",
    "node/hardware/nvidia/driver/driverfiles.py": "opens by the tree",
    "node/host/runtimes/memories.py": "the new file that it makes, with the owner and labels of the old; and its lock",
    "node/host/lock.py": "opens the directory with O_DIRECTORY, and in it the lock: without waiting, and no link",
    "node/host/mps": "of its own directory",
    "node/kubelet/lock.py": "opens directories alone, with O_DIRECTORY, to lock them",
    "sandbox": "what it has made itself, in a directory of its own",
}
"""Where such calls are all the same, below src/gpuplane, and why that is safe."""


def test_files_that_are_not_ours_alone_are_opened_by_one_function() -> None:
    """`gpuplane.base.files` opens them: whoever opens a file otherwise stands here with a reason."""
    source = ROOT / "src/gpuplane"
    excused, others = set(), dict[str, list[int]]()
    for path in sorted(source.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
        if lines := [call.lineno for call in calls if _opens(call)]:
            inside = path.relative_to(source)
            if reasons := ALLOWED.keys() & {str(each) for each in (inside, *inside.parents)}:
                excused |= reasons
            else:
                others[str(inside)] = lines

    assert others == {}, "open these by gpuplane.base.files"
    assert excused == ALLOWED.keys(), "these need no exception any more"


def _opens(call: ast.Call) -> bool:
    """Whether a call opens a file: by a name of `OPENS`, of a module, a path or none; copies are those of shutil."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "open"
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in OPENS:
        return False
    return "copy" not in call.func.attr or (isinstance(call.func.value, ast.Name) and call.func.value.id == "shutil")


def test_each_golden_text_has_a_test() -> None:
    """A text whose test has gone or has another name is nobody's: delete it."""
    files = [file for file in (ROOT / "tests").glob("*/golden/*.txt") if file.read_text().startswith(HEAD)]
    for file in files:
        module = ast.parse((file.parents[1] / f"test_{file.stem}.py").read_bytes())
        tests = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert {case.partition(": ")[0] for case in read(file)} <= tests, file
    assert files
