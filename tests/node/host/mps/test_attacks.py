"""A pod, or a user of the node, harms nobody's MPS but its own: over stand-ins of NVIDIA's programs."""

import os
import shutil
import signal
import stat
from collections.abc import Iterator

import pytest

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.daemonrecord import RECORD_FILE, RecordEntry
from gpuplane.node.host.mps.files import FILES_FOLDER, decode_file
from gpuplane.node.host.mps.processes import CONTROL_PROGRAM, PID_FILE
from gpuplane.node.model.mps import MpsDaemon
from tests.lengths import length
from tests.node.host.mps.attack import Attacker, needs_root
from tests.node.host.mps.world import World
from tests.removal import remove

GPU, OTHER = "nvidia.com/gpu", "nvidia.com/other"
A, B = "GPU-a", "GPU-b"
ONE, TWO = (
    MpsDaemon(name=GPU, client_memory_mib_by_device={A: 1024}, exclusive_compute_mode=True),
    MpsDaemon(name=OTHER, client_memory_mib_by_device={B: 1024}, exclusive_compute_mode=True),
)


@pytest.fixture
def attacker(world: World) -> Iterator[Attacker]:
    """Whoever wishes us ill."""
    attacker = Attacker(world)
    yield attacker
    attacker.end()


@needs_root
@pytest.mark.parametrize("noted", [False, True])
async def test_a_process_that_looks_like_a_daemon_is_none(world: World, attacker: Attacker, noted: bool) -> None:
    """It runs as another user; what it says of its GPUs takes them from nobody, and it is left alone."""
    world.pipe(GPU).mkdir(parents=True)
    pid = attacker.daemon(GPU, more={"CUDA_VISIBLE_DEVICES": f"{A},{B}"})
    if noted:
        (world.pipe(GPU) / PID_FILE).write_text(str(pid))
    await world.supervise()
    world.want(ONE, TWO)
    running, other = await world.until_ok(GPU), await world.until_ok(OTHER)
    stands = world.standing(OTHER)
    assert stands and stands.devices == (B,)

    os.kill(running.pid, signal.SIGKILL)
    again = await world.until_ok(GPU, but=running)
    assert world.daemon(OTHER) == other
    world.want()
    await world.until(lambda: not world.pipe(GPU).exists() and not world.pipe(OTHER).exists())
    assert not processes.is_alive(again)
    assert attacker.alive(pid)


@needs_root
async def test_root_of_a_container_is_not_root_of_the_node(world: World, attacker: Attacker) -> None:
    """It has our user, and not our namespace of processes."""
    world.pipe(GPU).mkdir(parents=True)
    pid = attacker.daemon(GPU, uid=0, apart=True, more={"CUDA_VISIBLE_DEVICES": B})
    await world.until(lambda: len(processes.find_lookalikes(CONTROL_PROGRAM, world.pipe(GPU), "-d")) > 0)
    await world.supervise()
    world.want(ONE, TWO)
    await world.until_ok(GPU)
    await world.until_ok(OTHER)
    assert attacker.alive(pid)


@needs_root
async def test_a_process_that_looks_like_a_server_holds_nothing(world: World, attacker: Attacker) -> None:
    """Neither a new daemon nor a GPU waits for it, a daemon that hangs is replaced, and nobody ends it."""
    await world.supervise()
    world.want(ONE, held=(GPU,))
    running = await world.until_ok(GPU)
    pid = attacker.server(GPU)
    os.kill(running.pid, signal.SIGKILL)
    running = await world.until_ok(GPU, but=running)
    os.kill(running.pid, signal.SIGSTOP)
    running = await world.until_ok(GPU, but=running)
    world.want()
    await world.until(lambda: not world.pipe(GPU).exists() and world.modes() == {A: "DEFAULT"})
    assert attacker.alive(pid)


LIES = ["gone", "silent", "", "1\n", "a directory", "a FIFO", "a link", "a file", "closed"]


@pytest.mark.parametrize("lie", LIES)
async def test_a_control_socket_that_a_client_replaces_is_put_back(world: World, attacker: Attacker, lie: str) -> None:
    """The daemon and its server go on with their clients, what we say reaches the daemon, and new clients come."""
    await world.supervise()
    world.want(ONE)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    [server] = await world.until(lambda: world.servers(GPU))
    path = world.pipe(GPU) / "control"
    if lie in ("silent", "", "1\n"):
        attacker.listen(path, "" if lie == "silent" else lie or "\n")
    elif lie == "closed":
        path.chmod(0)
    else:
        path.unlink()
        if lie == "a directory":
            (path / "deep").mkdir(parents=True)
        elif lie == "a FIFO":
            os.mkfifo(path)
        elif lie == "a link":
            path.symlink_to("/dev/zero")
        elif lie == "a file":
            path.write_text("control")
    world.want(ONE.but(active_thread_percentage=7))
    await world.until(lambda: "set_default_active_thread_percentage 7" in world.told(GPU))
    stands = await world.until_says(GPU, "control restored")
    assert (stands.state, stands.pid) == ("ok", running.pid)

    await world.compute(GPU)
    assert world.daemon(GPU) == running
    assert processes.is_alive(server)
    assert client.returncode is None
    world.want()
    await world.until_says(GPU, "stays until its clients have ended")
    assert not any("did not end" in line or "Traceback" in line for line in world.log)


@pytest.mark.parametrize("name", ["control_lock", PID_FILE, "everything"])
async def test_what_else_a_client_does_in_its_directory_restarts_no_daemon(world: World, name: str) -> None:
    """Nor does it keep the next one from being started, with the same directory."""
    await world.supervise()
    world.want(ONE)
    running = await world.until_ok(GPU)
    pipe = world.pipe(GPU)
    inode = pipe.stat().st_ino
    for path in list(pipe.iterdir()):
        if name in (path.name, "everything"):
            path.unlink()
            (path / "deep").mkdir(parents=True)
    pipe.chmod(0o777)
    await world.until_says(GPU, "the directory's owner and mode")
    assert world.daemon(GPU) == running
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o755

    os.kill(running.pid, signal.SIGKILL)
    await world.until_ok(GPU, but=running)
    assert pipe.stat().st_ino == inode
    await world.compute(GPU)


async def test_a_socket_that_is_replaced_before_we_have_it_is_not_taken_for_the_daemons(
    world: World, attacker: Attacker
) -> None:
    """Nobody is its client whom we could reach: it is said, and when no container holds it the daemon is restarted."""
    await world.supervise()
    world.want(ONE, held=(GPU,))
    running = await world.until_ok(GPU)
    await world.kill()
    shutil.copy(world.root / FILES_FOLDER / GPU / RECORD_FILE, world.root / "kept")
    shutil.rmtree(world.root / FILES_FOLDER / GPU)
    (world.root / FILES_FOLDER / GPU).mkdir(mode=0o700)
    shutil.move(world.root / "kept", world.root / FILES_FOLDER / GPU / RECORD_FILE)
    attacker.listen(world.pipe(GPU) / "control", "1\n")

    await world.supervise()
    stands = await world.until_says(GPU, "is restarted when no container holds it")
    assert (stands.state, stands.devices) == ("failing", ())
    assert processes.is_alive(running)
    world.want(ONE)
    await world.until_ok(GPU, but=running)
    await world.compute(GPU)


async def test_a_client_that_always_replaces_the_socket_harms_nobody_elses_daemon(
    world: World, attacker: Attacker
) -> None:
    """Whatever comes of its own: it is served again once that client has ended, and the others were all along."""
    world.pipe(GPU).mkdir(parents=True)
    attacker.seize(world.pipe(GPU) / "control")
    await world.supervise()
    world.want(ONE, TWO)
    other = await world.until_ok(OTHER)
    await world.until(lambda: world.standing(GPU))
    attacker.end()
    await world.until_ok(GPU)
    world.want(ONE.but(active_thread_percentage=7), TWO)
    await world.until(lambda: "set_default_active_thread_percentage 7" in world.told(GPU))
    ours = (world.root / FILES_FOLDER / GPU / "control").stat().st_ino
    await world.until(lambda: (world.pipe(GPU) / "control").lstat().st_ino == ours)
    await world.compute(GPU)
    assert world.daemon(OTHER) == other


async def test_a_daemon_of_which_nothing_was_written_down_is_taken_over(world: World) -> None:
    """As one of a version before is: it is ours by its user, its namespace and its control group; its server too."""
    await world.supervise()
    world.want(ONE)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    [server] = await world.until(lambda: world.servers(GPU))
    for content in (None, b"{}", b'{"version": 99, "value": {}}', b"\xff"):
        await world.kill()
        path = world.root / FILES_FOLDER / GPU / RECORD_FILE
        shutil.rmtree(path.parent) if content is None else path.write_bytes(content)
        await world.supervise()
        assert await world.until_ok(GPU) == running
    world.want()
    await world.until_says(GPU, "stays until its clients have ended")
    os.kill(running.pid, signal.SIGKILL)
    await world.until_says(GPU, f"server {server.pid} stays until its clients have ended")
    assert client.returncode is None
    await world.end(client)
    await world.until(lambda: not world.family())


@pytest.mark.parametrize("moment", ["before it is ready", "after it is ready"])
async def test_a_supervisor_that_dies_amid_a_start_loses_no_daemon(world: World, moment: str) -> None:
    """The next one finds what was started by its mark, and starts no second one."""
    world.delay(moment)
    await world.supervise()
    world.want(ONE)
    await world.until(lambda: world.tools.joinpath("reached").exists())
    await world.kill()
    world.delay(None)
    await world.supervise()
    running = await world.until_ok(GPU)
    assert [
        each for each in processes.find_lookalikes(CONTROL_PROGRAM, world.pipe(GPU), "-d") if world.started(each)
    ] == [running]
    starts = (world.root / GPU / "log/control.log").read_text().count("Starting control daemon")
    assert starts == 1


async def test_what_a_daemon_says_is_one_line_of_the_log(world: World) -> None:
    """It may have what it likes in it."""
    world.spoil(CONTROL_PROGRAM, "no\n2026-01-01 00:00:00,000 ERROR   all is lost\r\x1b[2J memory")
    await world.supervise()
    world.want(ONE)
    stands = await world.until_says(GPU, "all is lost")
    assert stands.reason.isprintable()
    lines = await world.until(lambda: [line for line in world.log if "all is lost" in line])
    assert all("nvidia.com/gpu: failing" in line and line.isprintable() for line in lines)


async def test_a_link_in_the_place_of_a_log_is_not_followed(world: World) -> None:
    """What it leads to is left as it is."""
    precious = world.root.parent / "precious"
    precious.write_text("precious")
    log = world.root / GPU / "log"
    log.mkdir(parents=True)
    log.joinpath("start.log").symlink_to(precious)
    await world.supervise()
    world.want(ONE)
    await world.until_ok(GPU)
    assert precious.read_text() == "precious"


async def test_what_a_client_makes_in_shared_memory_is_no_daemons_directory(world: World) -> None:
    """A MIG device's stands on one level, a resource's on two; nothing is taken away below them."""
    mig = "MIG-11111111-2222-3333-4444-555555555555"
    await world.supervise()
    world.want(MpsDaemon(name=mig, client_memory_mib_by_device={mig: 0}))
    await world.until_ok(mig)
    bait = world.root / mig / "shm/pipe"
    bait.mkdir()
    await world.kill()
    await world.supervise()
    world.want(MpsDaemon(name=mig, client_memory_mib_by_device={mig: 0}), ONE)
    await world.until_ok(GPU)
    await world.until_ok(mig)
    status = world.status()
    assert status and {each.name for each in status.daemons} == {mig, GPU}
    assert bait.exists()


FLAWS, PLACES = ("a link", "writable", "foreign"), ("on the way", "root", FILES_FOLDER)


@pytest.mark.parametrize(
    ("flaw", "where"),
    [
        pytest.param(flaw, where, marks=needs_root if flaw == "foreign" else ())
        for row, flaw in enumerate(FLAWS)
        for column, where in enumerate(PLACES)
        if row == column or length(False, True)
    ],
)
async def test_where_somebody_else_could_write_nothing_is_supervised(world: World, flaw: str, where: str) -> None:
    """It is said which directory it is, why and what to do; when that was done it goes on, without a restart."""
    world.root = world.root / "below"
    path = {"on the way": world.root.parent, "root": world.root, FILES_FOLDER: world.root / FILES_FOLDER}[where]
    elsewhere = world.root.parent.parent / "elsewhere"
    (world.root / FILES_FOLDER).mkdir(parents=True)
    if flaw == "a link":
        shutil.move(path, elsewhere)
        path.symlink_to(elsewhere)
    elif flaw == "writable":
        path.chmod(0o777)
    else:
        os.chown(path, 65534, 65534)
    world.want(ONE)
    await world.supervise()
    words = {"a link": "is a link", "writable": "is writable by others", "foreign": "is owned by uid 65534"}[flaw]
    await world.until(lambda: any(f"{path} {words}" in line for line in world.log))
    assert world.family() == []
    assert not world.pipe(GPU).exists()

    if flaw == "a link":
        path.unlink()
        shutil.move(elsewhere, path)
    elif flaw == "writable":
        path.chmod(0o755)
    else:
        os.chown(path, 0, 0)
    await world.until_ok(GPU)


async def test_a_server_is_known_by_its_daemons_word_too(world: World) -> None:
    """Also where it has not inherited the mark, and for the supervisor that comes next."""
    (world.tools / "bare").touch()
    await world.supervise()
    world.want(ONE)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    path = world.root / FILES_FOLDER / GPU / RECORD_FILE
    [server] = await world.until(lambda: decode_file(path.read_bytes(), RecordEntry).servers)
    await world.kill()
    os.kill(running.pid, signal.SIGKILL)
    world.want(ONE, held=(GPU,))
    await world.supervise()
    await world.until_says(GPU, f"server {server.pid} still has clients, but its control daemon has ended")
    await world.end(client)
    world.want(ONE)
    await world.until_ok(GPU)
    assert not processes.is_alive(server)


async def test_a_root_that_is_removed_is_made_again(world: World) -> None:
    """Its daemon is out of reach: when no container holds it there is another, with directories of its own."""
    await world.supervise()
    world.want(ONE, held=(GPU,))
    running = await world.until_ok(GPU)
    remove(world.root)
    world.want(ONE, held=(GPU,))
    await world.until_says(GPU, "was removed; control daemon")
    assert processes.is_alive(running)
    world.want(ONE)
    await world.until_ok(GPU, but=running)
    await world.compute(GPU)
    assert len([line for line in world.log if "cannot write the status of the daemons" in line]) <= 1
