"""Nodes and links in a /dev of the test's own: what is missing is made as the driver wants it, and nothing else is."""

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.node.agent.node import Node
from gpuplane.node.core.devicenodes import DesiredNodes, DeviceNodeReconcileResult
from gpuplane.node.hardware.nvidia import devicenodes
from gpuplane.node.hardware.nvidia.devicenodes import keep_device_nodes, reconcile_device_nodes
from gpuplane.node.model.facts import DriverReleaseRequested, MachineObserved
from gpuplane.node.model.machine import DeviceNodeStat, Gpu, Machine
from gpuplane.node.model.snapshot import DriverRelease, Snapshot
from gpuplane.node.model.status import DEVICE_NODES_PART, Status
from tests.lengths import length
from tests.node.hardware.nvidia.devicenodes.world import DEVICES, host, node, parameters, standing
from tests.texts import as_shown

pytestmark = pytest.mark.usefixtures("permitted")

CTL, UVM, CAP = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap30"
WISH = DesiredNodes(
    nodes={CTL: DeviceNodeStat(195, 255), UVM: DeviceNodeStat(511, 0), CAP: DeviceNodeStat(508, 30, 0o444)},
    linked_nodes=("/dev/nvidia0", CTL, UVM, CAP),
)


def test_what_is_missing_is_made_and_linked_as_udev_would(root: Path) -> None:
    """A second round finds all of it there."""
    assert reconcile_device_nodes(root, WISH).but(created=()) == DeviceNodeReconcileResult()
    assert standing(root) == {
        "/dev/nvidia0": "195:0 600 0:0",
        CTL: "195:255 666 0:0",
        UVM: "511:0 666 0:0",
        CAP: "508:30 444 0:0",
        "/dev/char/195:0": "-> ../nvidia0",
        "/dev/char/195:255": "-> ../nvidiactl",
        "/dev/char/511:0": "-> ../nvidia-uvm",
        "/dev/char/508:30": "-> ../nvidia-caps/nvidia-cap30",
    }
    for link in (root / "dev/char").iterdir():
        numbers = link.stat().st_rdev
        assert link.name == f"{os.major(numbers)}:{os.minor(numbers)}"
    assert stat.S_IMODE((root / "dev/nvidia-caps").stat().st_mode) == 0o755
    assert reconcile_device_nodes(root, WISH) == DeviceNodeReconcileResult()


def test_owner_and_mode_are_those_of_the_drivers_parameters(root: Path) -> None:
    """Of the nodes that nvidia-modprobe gives them to; nvidia-uvm and capabilities have their own."""
    parameters(root, "ModifyDeviceFiles: 1\nDeviceFileUID: 3\nDeviceFileGID: 44\nDeviceFileMode: 432\nRegistry: x: 7\n")
    reconcile_device_nodes(root, WISH)
    found = standing(root)
    assert (found[CTL], found[UVM], found[CAP]) == ("195:255 660 3:44", "511:0 666 0:0", "508:30 444 0:0")


def test_where_device_files_are_to_be_left_alone_they_are(root: Path) -> None:
    """Links are none of the driver's."""
    parameters(root, "ModifyDeviceFiles: 0\n")
    found = reconcile_device_nodes(root, WISH)
    assert found.missing == (CTL, UVM, CAP)
    assert found.created == ("/dev/char/195:0",)
    assert CTL in found.problem
    assert "ModifyDeviceFiles: 0" in found.problem


def test_the_umask_takes_nothing_away(root: Path) -> None:
    before = os.umask(0o077)
    try:
        reconcile_device_nodes(root, WISH)
    finally:
        os.umask(before)
    assert standing(root)[UVM].split()[1] == "666"
    assert stat.S_IMODE((root / "dev/nvidia-caps").stat().st_mode) == 0o755


def test_what_is_there_is_never_touched(root: Path) -> None:
    """A file, a folder, a link to nowhere, another device: whatever has one of the names keeps it."""
    (root / "dev/nvidiactl").write_text("mine")
    (root / "dev/nvidia-uvm").symlink_to("/nowhere")
    (root / "dev/nvidia-caps/nvidia-cap30").mkdir(parents=True)
    (root / "dev/char/195:0").symlink_to("/elsewhere")
    before = standing(root)
    assert reconcile_device_nodes(root, WISH) == DeviceNodeReconcileResult()
    assert standing(root) == before


def test_no_link_leads_out_of_dev(root: Path, tmp_path: Path) -> None:
    """A folder that is a link is refused, and the rest is made."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "dev/nvidia-caps").symlink_to(outside)
    found = reconcile_device_nodes(root, WISH)
    assert found.missing == (CAP,)
    assert CAP in found.problem
    assert list(outside.iterdir()) == []
    assert UVM in found.created


def test_what_an_agent_that_was_killed_left_is_cleared_away(root: Path) -> None:
    """It had another name, which nobody opens."""
    node(root, "/dev/.nvidia-uvm.gpuplane", 1, 3)
    assert reconcile_device_nodes(root, WISH).missing == ()
    assert not [path for path in standing(root) if "gpuplane" in path]
    assert standing(root)[UVM].startswith("511:0")


def test_a_number_that_no_driver_has_now_is_not_given_to_a_node(root: Path) -> None:
    """The driver was loaded anew since the look; the next one knows."""
    (root / "proc/devices").write_text(DEVICES.replace("511 nvidia-uvm", "510 nvidia-uvm\n511 other"))
    found = reconcile_device_nodes(root, WISH)
    assert found.missing == (UVM,)
    assert UVM in found.problem
    assert "not loaded" in found.problem
    assert UVM not in standing(root)


def test_a_node_whose_module_is_not_loaded_is_missing(root: Path) -> None:
    found = reconcile_device_nodes(root, WISH.but(nodes={UVM: None}))
    assert found.missing == (UVM,)
    assert UVM in found.problem
    assert "not loaded" in found.problem


def test_a_node_with_numbers_of_another_load_is_told_and_left(root: Path) -> None:
    """systemd is told nothing of it: its number may be another device's by now."""
    node(root, UVM, 510, 0)
    found = reconcile_device_nodes(root, WISH)
    assert found.stale == (UVM,)
    assert standing(root)[UVM].startswith("510:0")
    assert not (root / "dev/char/510:0").is_symlink()


def test_while_no_driver_is_loaded_nothing_is_stale(root: Path) -> None:
    (root / "proc/devices").write_text("Character devices:\n  1 mem\n")
    found = reconcile_device_nodes(root, WISH)
    assert (found.stale, found.without_char_link, found.created) == ((), (), ())


@pytest.mark.parametrize("gone", ["dev/char", "dev"])
def test_a_dev_that_is_no_hosts_is_left_alone(root: Path, gone: str) -> None:
    """A container's own has no links in it, and nobody would miss what is missing there."""
    shutil.rmtree(root / gone)
    before = standing(root)
    assert reconcile_device_nodes(root, WISH) == DeviceNodeReconcileResult(is_hidden=True)
    assert standing(root) == before


CONFINED = """
import sys, msgspec
from pathlib import Path
from gpuplane.node.core.devicenodes import DesiredNodes
from gpuplane.node.hardware.nvidia.devicenodes import reconcile_device_nodes
wanted = msgspec.json.decode(sys.argv[2], type=DesiredNodes)
print(msgspec.json.encode(reconcile_device_nodes(Path(sys.argv[1]), wanted)).decode())
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_without_leave_what_is_missing_is_told_with_the_reason(root: Path) -> None:
    """Links need no leave but that to write."""
    command = ["setpriv", "--bounding-set=-mknod", "--inh-caps=-mknod", sys.executable, "-c", CONFINED, str(root)]
    done = subprocess.run(
        [*command, msgspec.json.encode(WISH).decode()], capture_output=True, text=True, timeout=60, check=True
    )
    found = msgspec.json.decode(done.stdout, type=DeviceNodeReconcileResult)
    assert found.missing == (CTL, UVM, CAP)
    assert CTL in found.problem
    assert found.problem.endswith(os.strerror(errno.EPERM))
    assert found.created == ("/dev/char/195:0",)
    assert set(standing(root)) == {"/dev/nvidia0", "/dev/char/195:0"}


NAMES = st.sampled_from([CTL, UVM, CAP, "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia3", "/dev/nvidia-modeset"])
NUMBERS = st.builds(
    DeviceNodeStat, st.sampled_from([195, 508, 511, 7]), st.integers(0, 300), st.sampled_from([0o400, 0o666])
)


@settings(max_examples=length(20, 400))
@given(
    st.dictionaries(NAMES, NUMBERS | st.none()),
    st.lists(NAMES, unique=True),
    st.dictionaries(NAMES, NUMBERS),
)
def test_whatever_was_there_is_there_afterwards_and_a_second_round_makes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    nodes: dict[str, DeviceNodeStat | None],
    linked: list[str],
    there: dict[str, DeviceNodeStat],
) -> None:
    """Any wish, and any nodes that stand there already."""
    root = host(tmp_path_factory.mktemp("hosts") / "host")
    (root / "dev/nvidia-caps").mkdir()
    for path, numbers in there.items():
        node(root, path, numbers.major, numbers.minor)
    before, wanted = standing(root), DesiredNodes(nodes=nodes, linked_nodes=tuple(linked))
    first = reconcile_device_nodes(root, wanted)
    after = standing(root)
    assert before.items() <= after.items()
    assert set(after) - set(before) == set(first.created)
    assert set(nodes) <= {*after, *first.missing}
    assert reconcile_device_nodes(root, wanted) == first.but(created=())
    assert standing(root) == after


async def test_the_part_makes_what_a_look_shows_to_be_missing_and_says_so(root: Path) -> None:
    """And again where it vanishes; nothing while the driver is let go of."""
    told = Node(Snapshot())
    task = asyncio.create_task(keep_device_nodes(told, root, every=0.02))

    async def stands(reason: str | None) -> Status | None:
        def there(snapshot: Snapshot) -> bool:
            found = snapshot.statuses.of(DEVICE_NODES_PART)
            return found is None if reason is None else found is not None and reason in as_shown(found.text)

        assert await told.wait_until(there, 60), told.snapshot.statuses
        return told.snapshot.statuses.of(DEVICE_NODES_PART)

    numbers = {CTL: DeviceNodeStat(195, 255), UVM: DeviceNodeStat(511, 0), "/dev/nvidia0": DeviceNodeStat(195, 0)}
    machine = Machine(gpus=(Gpu(index=0, uuid="GPU-0", device_nodes=("/dev/nvidia0",)),), device_node_stats=numbers)
    await stands(None)
    told.apply(MachineObserved(machine))
    condition = await stands("created by the agent: /dev/nvidiactl, /dev/nvidia-uvm, /dev/char/195:255 and 2 more")
    assert condition and condition.state == "ok"

    (root / "dev/nvidia-uvm").unlink()
    while not (root / "dev/nvidia-uvm").exists():  # pytest's timeout ends it
        await asyncio.sleep(0.01)

    told.apply(DriverReleaseRequested(DriverRelease(until=told.now() + 60, reason="upgrade")))
    await stands(None)
    (root / "dev/nvidia-uvm").unlink()
    generation = told.snapshot.generation
    await asyncio.sleep(0.1)
    assert not (root / "dev/nvidia-uvm").exists()
    assert told.snapshot.generation == generation
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_fails_is_tried_again_later_and_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And at once where something else is wanted."""
    waits: list[float] = []

    class Patient(Node):
        async def wait_until(self, ready: object, deadline: float | None) -> bool:
            waits.append(deadline or 0.0)
            await asyncio.sleep(0)
            if len(waits) == 9:
                raise asyncio.CancelledError
            return False

    monkeypatch.setattr(devicenodes, "MAX_RETRY_INTERVAL", 60.0)
    parameters(root, "ModifyDeviceFiles: 0\n")
    node_ = Patient(
        Snapshot(machine=Machine(gpus=(Gpu(index=0, uuid="G"),), device_node_stats={CTL: DeviceNodeStat(195, 255)}))
    )
    with pytest.raises(asyncio.CancelledError):
        await keep_device_nodes(node_, root, every=1.0)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
