"""What a client of a test's API server is given; each module makes its own `server`."""

from pathlib import Path

import pytest

from gpuplane.sandbox.apiserver.server import ApiServer


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return path
