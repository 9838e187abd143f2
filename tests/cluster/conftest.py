"""The control plane is started once for all tests of this folder, which run in one worker."""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import PROGRAM, ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if not PROGRAM.is_file():
        pytest.skip("there is no control plane beside this checkout, and GPUPLANE_CONTROL_PLANE names none")
    found = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        found.run("up")
        yield found
    finally:
        found.run("down")
