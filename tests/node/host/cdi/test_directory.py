"""The directory, as others leave it, change it, and refuse it: each trouble costs itself, and ends with its cause."""

import asyncio
import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.core.advertising import missing_information_reason, offer
from gpuplane.node.core.containers.cdi.desiredspecs import BEING_WRITTEN_TEXT, cdi_write_failed_reason
from gpuplane.node.core.containers.cdi.registry import build_registry
from gpuplane.node.host.cdi.directory import directory_state, replace_file
from gpuplane.node.host.cdi.specifications import SpecificationKeeper
from gpuplane.node.host.specfiles import read_spec_files
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.encoding import encode
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
)
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CdiFilesStatus, cdi_conflict_part
from tests.node.host.cdi.world import GPU, Place, document, machine
from tests.texts import as_shown

TWO = machine()
BY_CDI = Settings(device_list_strategy=("cdi-cri",), mig_strategy="mixed")


class World:
    """A node whose CDI directory is kept, a round at a time."""

    def __init__(self, root: Path, machine: Machine = TWO, settings: Settings = BY_CDI) -> None:
        self.place, self.node = Place(root), Node(Snapshot())
        self.keeper = SpecificationKeeper(self.node, self.place.cdi)
        self.node.apply(StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="waiting")))
        for fact in (ConfigLoaded(settings), MachineObserved(machine), AllocationsListed((), 0.0)):
            self.node.apply(fact)

    def round(self) -> bool:
        """Whether all is well then."""
        return asyncio.run(self.keeper.round())

    def hold(self, *devices: str) -> None:
        """These are what containers hold."""
        held = (Allocation(resource="nvidia.com/gpu", devices=devices, holder=PodRef.parse("default/train/main")),)
        self.node.apply(AllocationsListed(held if devices else (), 1.0))

    def look(self, machine: Machine) -> None:
        """The machine is this one now."""
        self.node.apply(MachineObserved(machine))

    def troubles(self) -> dict[str, str]:
        """Device → why it is unhealthy; "" where it is not."""
        return {
            each.id: as_shown(each.unavailable_reason)
            for resource in offer(self.node.snapshot).resources
            for each in resource.devices
        }

    def well(self) -> bool:
        """Whether every device can be given out."""
        return bool(self.troubles()) and not any(self.troubles().values())

    def reason(self) -> str:
        """Why the files are not what is wanted."""
        stands = self.node.snapshot.statuses[CDI_FILES_PART]
        return as_shown(stands.text) if stands.state == "failing" else ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_nothing_is_offered_before_the_first_file(world: World) -> None:
    """It says what it waits for; then all is healthy at once."""
    lack = missing_information_reason(world.node.snapshot)
    assert lack is not None
    assert (lack.kind, lack.part) == ("waiting", CDI_FILES_PART.name)
    assert offer(world.node.snapshot).waiting_reason == lack.text
    assert world.round()
    assert world.well()


def test_the_file_is_readable_by_all_and_alone(world: World) -> None:
    """Whatever the umask is."""
    before = os.umask(0o077)
    try:
        world.round()
    finally:
        os.umask(before)
    assert stat.S_IMODE(world.place.file().stat().st_mode) == 0o644
    assert world.place.left() == []


def test_what_is_as_it_is_wanted_is_not_written(world: World) -> None:
    """Nor is it by another agent later."""
    world.round()
    before = world.place.file().stat()
    world.round()
    assert World(world.place.root).round()
    assert world.place.file().stat() == before


@pytest.mark.parametrize("harm", ["removed", "emptied", "cut", "replaced", "edited"])
def test_what_others_do_to_our_file_is_undone(world: World, harm: str) -> None:
    """Before anybody is told that a device is ill."""
    world.round()
    file, good = world.place.file(), world.place.file().read_bytes()
    match harm:
        case "removed":
            file.unlink()
        case "emptied":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(good[:-20])
        case "replaced":
            file.write_bytes(document("other.example/thing", "GPU-0"))
        case "edited":
            file.write_bytes(document(GPU, "GPU-0"))
    generation = world.node.snapshot.generation
    assert world.round()
    assert file.read_bytes() == good
    assert world.node.snapshot.generation == generation


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_nvidias_files_are_taken_over(world: World, suffix: str) -> None:
    """Devices that containers hold stay as they are; nothing else of them does."""
    world.place.cdi.mkdir()
    world.place.file().with_suffix(suffix).write_bytes(document(GPU, "GPU-0", "GPU-7", "GPU-8", node="/dev/nvidia7"))
    world.hold("GPU-7")
    assert world.round()
    assert world.place.names() == {"GPU-0", "GPU-1", "GPU-7"}
    assert world.place.left() == []
    assert nodes(world.place.spec(), "GPU-0") == {"/dev/nvidia0"}
    assert nodes(world.place.spec(), "GPU-7") == {"/dev/nvidia7"}
    world.hold()
    world.round()
    assert world.place.names() == {"GPU-0", "GPU-1"}


def nodes(spec: Spec | None, name: str) -> set[str]:
    """The nodes of a device."""
    assert spec is not None
    [device] = (each for each in spec.devices if each.name == name)
    return {node.path for node in device.container_edits.device_nodes}


@pytest.mark.parametrize("name", ["mine.json", "mine.yaml", "k8s.device-plugin.nvidia.com-gds.json"])
def test_a_device_that_another_file_defines_is_left_to_it(world: World, name: str) -> None:
    """It is unhealthy, with the file as the reason; the others are served; with the file's end it is ours again."""
    world.round()
    other = world.place.cdi / name
    other.write_bytes(document(GPU, "GPU-1", "GPU-5"))
    assert world.round()
    assert world.place.names() == {"GPU-0"}
    troubles = world.troubles()
    assert troubles["GPU-0"] == ""
    assert str(other) in troubles["GPU-1"]
    assert cdi_conflict_part(str(other)) in world.node.snapshot.statuses
    other.unlink()
    assert world.round()
    assert world.place.names() == {"GPU-0", "GPU-1"}
    assert world.well()
    assert not list(world.node.snapshot.statuses.of_kind("cdi conflict"))


def test_whatever_another_file_is_called(world: World) -> None:
    """Its name is told on one line, so that it can be passed on as text and found again."""
    world.place.cdi.mkdir()
    for name in (b"\xff.json", b"a\nb\x1b[31m.json", b"a b.json"):
        (world.place.cdi / os.fsdecode(name)).write_bytes(document(GPU, "GPU-1"))
    assert world.round()
    snapshot = world.node.snapshot
    told = sorted(part.subject.rpartition("/")[2] for part, _ in snapshot.statuses.of_kind("cdi conflict"))
    assert told == ["\\udcff.json", "a b.json", "a\\nb\\x1b[31m.json"]
    assert encode(snapshot)
    known = build_registry(read_spec_files([world.place.cdi]))
    assert msgspec.json.encode(known.conflicting_files_by_device)
    assert all(path.isprintable() for path in known.conflicting_files_by_device[f"{GPU}=GPU-1"])


def test_what_containers_hold_is_kept_as_the_machine_is(world: World) -> None:
    """Also once CDI is no longer wanted: an older driver's libraries would let no container start again."""
    world.round()
    world.hold("GPU-0", "GPU-1")
    world.node.apply(ConfigLoaded(BY_CDI.but(device_list_strategy=("envvar",))))
    moved = machine([0], version="590.44.01")
    world.look(moved.but(gpus=tuple(gpu.but(device_nodes=("/dev/nvidia1",)) for gpu in moved.gpus or ())))
    assert world.round()
    assert world.place.libraries() == {"590.44.01"}
    assert nodes(world.place.spec(), "GPU-0") == {"/dev/nvidia1"}
    assert nodes(world.place.spec(), "GPU-1") == {"/dev/nvidia1"}
    world.hold()
    world.round()
    assert not world.place.file().exists()


def test_no_device_is_given_out_by_the_name_of_another(tmp_path: Path) -> None:
    """Of two GPUs of one index the first has the name, and the other none."""
    here = machine()
    gpus = tuple(gpu.but(index=0) for gpu in here.gpus or ())
    world = World(tmp_path, here.but(gpus=gpus), BY_CDI.but(device_id_strategy="index"))
    world.round()
    troubles = world.troubles()
    assert troubles.pop("GPU-0") == ""
    assert "device 0" in troubles.pop("GPU-1")
    assert not troubles


def test_all_devices_may_be_another_files(world: World) -> None:
    """Then we have none."""
    world.place.cdi.mkdir()
    (other := world.place.cdi / "a.json").write_bytes(document(GPU, "GPU-0", "GPU-1"))
    world.round()
    assert not world.place.file().exists()
    assert all(str(other) in why for why in world.troubles().values())


def test_what_could_not_be_described_again_stays_beside_another_file(world: World) -> None:
    """Somebody's copy is to be removed, and then the name has to be there."""
    world.round()
    world.hold("GPU-0")
    world.look(machine([1]))
    world.round()
    (copy := world.place.cdi / "copy.json").write_bytes(world.place.file().read_bytes())
    world.round()
    assert world.place.names() == {"GPU-0"}
    copy.unlink()
    world.round()
    assert world.place.names() == {"GPU-0", "GPU-1"}


def test_files_that_cannot_be_read_cost_themselves(world: World) -> None:
    """A FIFO, a directory, a dangling link, a loop, what is no document, and what is not about us."""
    cdi = world.place.cdi
    cdi.mkdir()
    os.mkfifo(cdi / "fifo.json")
    (cdi / "folder.json").mkdir()
    (cdi / "dangling.json").symlink_to("/nowhere")
    (cdi / "loop.json").symlink_to("loop.json")
    (cdi / "broken.yaml").write_text(f"kind: {GPU}\n\t- {{")
    (cdi / "nvidia.yaml").write_bytes(document("nvidia.com/gpu", "GPU-0"))
    (cdi / "notes.txt").write_bytes(document(GPU, "GPU-0"))
    assert world.round()
    assert world.well()


def test_a_link_in_our_place_is_replaced_and_not_followed(world: World) -> None:
    """What it leads to stays as it is."""
    world.place.cdi.mkdir()
    (elsewhere := world.place.root / "elsewhere.json").write_bytes(before := document(GPU, "GPU-9"))
    world.place.file().symlink_to(elsewhere)
    world.hold("GPU-9")
    assert world.round()
    assert not world.place.file().is_symlink()
    assert world.place.names() == {"GPU-0", "GPU-1"}
    assert elsewhere.read_bytes() == before


def test_writers_at_the_same_time_do_not_spoil_each_others_file(tmp_path: Path) -> None:
    """Two agents, say: whoever reads finds one's or the other's, and nothing is left lying about."""
    texts = [name.encode() * 100_000 for name in "ab"]

    def write(text: bytes) -> None:
        for _ in range(50):
            replace_file(tmp_path, "file.json", text)

    replace_file(tmp_path, "file.json", texts[0])
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write, text) for text in texts]
        while not all(writer.done() for writer in writers):
            assert (tmp_path / "file.json").read_bytes() in texts
        assert [writer.result() for writer in writers] == [None, None]
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


def test_a_directory_in_the_place_of_our_file(world: World) -> None:
    """It is left alone, the reason names it, and nothing lies about half-written."""
    world.place.file().mkdir(parents=True)
    assert not world.round()
    why = f"{world.place.file()}: {os.strerror(errno.EISDIR)}"
    assert world.reason() == why
    assert [why in each for each in world.troubles().values()] == [True, True]
    unready_reason = cdi_write_failed_reason(world.node.snapshot)
    assert unready_reason is not None
    assert unready_reason.code == "cdi-write-failed"
    assert why in as_shown(unready_reason.text)
    assert list(world.place.cdi.iterdir()) == [world.place.file()]
    world.place.file().rmdir()
    assert world.round()
    assert world.well()


def test_a_file_in_the_place_of_the_directory(world: World) -> None:
    """It is named."""
    world.place.cdi.write_text("")
    assert not world.round()
    assert world.reason() == f"{world.place.cdi}: {os.strerror(errno.ENOTDIR)}"
    world.place.cdi.unlink()
    assert world.round()


def test_a_directory_that_is_a_link_is_of_no_use(world: World) -> None:
    """Runtimes do not look behind it."""
    (world.place.root / "real").mkdir()
    world.place.cdi.symlink_to("real")
    assert not world.round()
    assert world.reason().startswith(f"{world.place.cdi}: ")
    assert "link" in world.reason()


def spoil(path: Path) -> str:
    """Let everybody write to it; gives the reason that is to be told."""
    path.chmod(0o757)
    return f"{path} is writable by others"


@pytest.mark.parametrize("at", ["cdi", "."])
def test_a_directory_that_somebody_else_could_change_is_not_used(world: World, at: str) -> None:
    """Whoever writes there says what every container gets. It is noticed, named, and over when it is mended."""
    assert world.round()
    before = directory_state(world.place.cdi)
    reason = spoil(world.place.root / at)
    assert directory_state(world.place.cdi) != before
    assert not world.round()
    assert reason in world.reason()
    assert all(reason in trouble for trouble in world.troubles().values())
    (world.place.root / at).chmod(0o755)
    assert world.round()
    assert world.well()


def test_a_directory_is_not_made_where_somebody_else_could_replace_it(world: World) -> None:
    """And nothing is written into it."""
    reason = spoil(world.place.root)
    assert not world.round()
    assert reason in world.reason()
    assert list(world.place.root.rglob("*.json")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to somebody else")
def test_a_directory_of_somebody_else_is_not_used(world: World) -> None:
    """As its files are theirs to replace."""
    world.place.cdi.mkdir()
    os.chown(world.place.cdi, 65534, 65534)
    assert not world.round()
    assert str(world.place.cdi) in world.reason()
    assert "65534" in world.reason()
    os.chown(world.place.cdi, 0, 0)
    assert world.round()


@pytest.fixture
def small(world: World) -> Iterator[Path]:
    """A file system of 64 KiB as the CDI directory."""
    world.place.cdi.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", str(world.place.cdi)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("needs mount")
    if made.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {made.stderr.strip()}")
    yield world.place.cdi
    subprocess.run(["umount", str(world.place.cdi)], check=True, timeout=10)


def test_a_full_disk(world: World, small: Path) -> None:
    """What is there stays, the reason names the file, nothing is half-written; it is tried again."""
    assert world.round()
    before = world.place.file().read_bytes()
    filler = small / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    world.look(machine(range(8)))
    assert not world.round()
    assert world.reason() == f"{world.place.file()}: {os.strerror(errno.ENOSPC)}"
    assert world.place.file().read_bytes() == before
    assert world.place.left() == ["filler"]
    troubles = world.troubles()
    assert {id for id, why in troubles.items() if not why} == {"GPU-0", "GPU-1"}
    filler.unlink()
    assert world.round()
    assert world.well()


def test_a_read_only_directory(world: World, small: Path) -> None:
    """What it has goes on being given out; what it has not is unhealthy, and the reason names the file."""
    assert world.round()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True, timeout=10)
    assert world.round()
    world.look(machine(range(3)))
    assert not world.round()
    assert "Read-only file system" in world.reason()
    assert {id: bool(why) for id, why in world.troubles().items()} == {"GPU-0": False, "GPU-1": False, "GPU-2": True}
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True, timeout=10)
    assert world.round()
    assert world.well()


def test_an_older_driver_in_a_directory_that_refuses_the_new_one(world: World, small: Path) -> None:
    """What is there names libraries that are no more: no GPU is given out until it can be written."""
    assert world.round()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True, timeout=10)
    world.look(machine(version="590.44.01"))
    assert not world.round()
    assert all("Read-only file system" in why for why in world.troubles().values())
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True, timeout=10)
    assert world.round()
    assert world.well()


def test_a_directory_that_becomes_a_link(world: World) -> None:
    """Runtimes see nothing of it any more: no GPU is given out."""
    assert world.round()
    world.place.cdi.rename(world.place.root / "moved")
    world.place.cdi.symlink_to("moved")
    assert not world.round()
    assert all("symbolic link" in why for why in world.troubles().values())
    world.place.cdi.unlink()
    (world.place.root / "moved").rename(world.place.cdi)
    assert world.round()
    assert world.well()


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_while_auto_knows_no_runtime_nothing_is_taken_away(tmp_path: Path, suffix: str) -> None:
    """What an agent before us left is left as it is, to the byte."""
    world = World(tmp_path, settings=Settings())
    world.place.cdi.mkdir()
    left = world.place.file().with_suffix(suffix)
    left.write_bytes(before := document(GPU, "GPU-0", "GPU-9"))
    assert world.round()
    assert list(world.place.cdi.iterdir()) == [left]
    assert left.read_bytes() == before


def test_nvidias_two_files_of_a_kind_become_one(world: World) -> None:
    """No runtime would know a device of both."""
    world.round()
    (left := world.place.file().with_suffix(".yaml")).write_bytes(world.place.file().read_bytes())
    assert world.round()
    assert list(world.place.cdi.iterdir()) == [world.place.file()]
    assert not left.exists()


def test_a_part_that_begins_anew_forgets_files_that_have_gone(world: World) -> None:
    """What another keeper before it told of them is taken back."""
    world.round()
    (other := world.place.cdi / "other.json").write_bytes(document(GPU, "GPU-0"))
    world.round()
    other.unlink()
    world.keeper = SpecificationKeeper(world.node, world.place.cdi)
    assert world.round()
    assert world.well()


def test_auto_is_cdi_once_the_runtime_is_known_to_take_it(tmp_path: Path) -> None:
    """Before that nothing is written; then devices wait for the file."""
    world = World(tmp_path, settings=Settings())
    assert world.round()
    assert world.well()
    assert not world.place.cdi.exists()
    world.node.apply(NodeRequestsChanged(NodeObjectRequests(container_runtime="containerd://2.1.4")))
    assert set(world.troubles().values()) == {BEING_WRITTEN_TEXT}
    assert world.round()
    assert world.well()
    assert world.place.names() == {"GPU-0", "GPU-1"}


def test_channels_and_features_have_files_of_their_own(tmp_path: Path) -> None:
    """With what of them exists; they go with the configuration, unless any container holds anything."""
    channel, copying = "/dev/nvidia-caps-imex-channels/channel0", "/dev/gdrdrv"
    here = machine()
    settings = BY_CDI.but(imex_channels=(0,), gdrcopy=True, gds=True)
    world = World(tmp_path, here.but(shared_nodes=(*here.shared_nodes, channel, copying)), settings)
    assert world.round()
    vendor = GPU.partition("/")[0]
    kinds = {kind: world.place.names(f"{vendor}/{kind}") for kind in ("imex-channel", "gdrcopy", "gds", "mofed")}
    assert kinds == {"imex-channel": {"0"}, "gdrcopy": {"all"}, "gds": set(), "mofed": set()}
    assert world.well()
    world.hold("GPU-0")
    world.node.apply(ConfigLoaded(BY_CDI))
    world.round()
    assert world.place.names(f"{vendor}/imex-channel") == {"0"}
    world.hold()
    world.round()
    assert sorted(path.name for path in world.place.cdi.iterdir()) == [world.place.file().name]


def test_a_channel_that_is_not_on_disk_spoils_every_device(tmp_path: Path) -> None:
    """Every container would be given it."""
    here = machine()
    nodes = (*here.shared_nodes, "/dev/nvidia-caps-imex-channels/channel0")
    world = World(tmp_path, here.but(shared_nodes=nodes), BY_CDI.but(imex_channels=(0,)))
    kind = f"{GPU.partition('/')[0]}/imex-channel"
    world.place.file(kind).mkdir(parents=True)
    assert not world.round()
    assert world.place.names() == {"GPU-0", "GPU-1"}
    assert all(str(world.place.file(kind)) in why for why in world.troubles().values())
