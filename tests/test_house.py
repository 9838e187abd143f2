"""The house stands as it is drawn: who may import whom, and what is generated is current."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOCOLS = Path("gpuplane/kubelet/protocols")


def test_every_room_imports_only_what_it_may() -> None:
    """The contracts of pyproject.toml hold."""
    linter = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert found.returncode == 0, found.stdout


def test_the_driver_process_imports_of_ours_only_values() -> None:
    """The process that loads the driver's library stays small: model, files and itself, no gRPC, no event loop."""
    code = "import sys, gpuplane.hardware.driver.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = set(loaded.stdout.split())

    ours = {name for name in modules if name.startswith("gpuplane.")}
    assert {
        name for name in ours if not name.startswith(("gpuplane.model", "gpuplane.files", "gpuplane.hardware"))
    } == set()
    assert not modules & {"grpc", "asyncio", "yaml", "google.protobuf", "logging"}


def test_what_is_generated_is_current(tmp_path: Path) -> None:
    """`make protocols` would change nothing."""
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python")]
    protos = sorted(path.name for path in (ROOT / "src" / PROTOCOLS).glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out]
    subprocess.run([*command, *(str(PROTOCOLS / name) for name in protos)], cwd=ROOT / "src", timeout=60, check=True)

    assert protos
    for fresh in (tmp_path / PROTOCOLS).glob("*.py"):
        assert fresh.read_text() == (ROOT / "src" / PROTOCOLS / fresh.name).read_text(), fresh.name
