"""The supervisor as a process, over stand-ins of NVIDIA's programs: this proves supervision, and nothing about CUDA."""

import os
import signal
import time

import pytest

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.files import FILES_FOLDER, WANTED_FILE
from gpuplane.node.model.mps import MpsDaemon
from tests.lengths import length
from tests.node.host.mps.world import World
from tests.texts import as_shown

GPU = "nvidia.com/gpu"
A, B = "GPU-a", "GPU-b"
SHARED = MpsDaemon(
    name=GPU, client_memory_mib_by_device={A: 20480, B: 20480}, active_thread_percentage=25, exclusive_compute_mode=True
)


async def test_a_daemon_is_started_as_it_is_wanted(world: World) -> None:
    """It sees its devices and no others, has its limits, and its GPUs are exclusive."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)

    environment = processes.read_environment(running)
    assert environment["CUDA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert world.told(GPU) == [
        "set_default_active_thread_percentage 25",
        f"set_default_device_pinned_mem_limit {A} 20480M",
        f"set_default_device_pinned_mem_limit {B} 20480M",
    ]
    assert (await world.compute(GPU))[1] == {A: "20480M", B: "20480M"}
    assert world.modes() == {A: "EXCLUSIVE_PROCESS", B: "EXCLUSIVE_PROCESS"}
    stands = world.standing(GPU)
    assert stands and stands.devices == (A, B)


async def test_nothing_is_done_before_the_agents_first_word(world: World) -> None:
    """A supervisor that starts alone starts nothing, ends nothing and restores nothing."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    await world.kill()
    (world.root / FILES_FOLDER / WANTED_FILE).unlink()
    pid = await world.supervise()
    await world.until(lambda: (s := world.status()) and s.pid == pid)

    assert processes.is_alive(running)
    assert world.modes()[A] == "EXCLUSIVE_PROCESS"


async def test_a_daemon_that_is_killed_comes_back_in_the_same_place(
    world: World,
) -> None:
    """Each time: its clients' directory is the very same one, its limits are set again, and it is said meanwhile."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    directory = world.pipe(GPU).stat().st_ino
    rounds = length(3, 100)
    for n in range(rounds):
        client, _ = await world.compute(GPU)
        os.kill(running.pid, signal.SIGKILL)
        await world.end(client)
        running = await world.until_ok(GPU, but=running)
        assert world.pipe(GPU).stat().st_ino == directory
        assert world.told(GPU).count("set_default_active_thread_percentage 25") == n + 2
    await world.until(lambda: not world.servers(GPU))


async def test_a_server_whose_daemon_was_killed_keeps_its_clients(world: World) -> None:
    """Nobody kills them. New ones are said not to be served until they end; then the server goes."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    [server] = await world.until(lambda: world.servers(GPU))
    time_of_count = time.monotonic()
    await world.until(lambda: time.monotonic() - time_of_count > 2.5)
    os.kill(running.pid, signal.SIGKILL)

    stands = await world.until_says(GPU, f"server {server.pid} still has clients, but its control daemon has ended")
    assert stands.state == "waiting"
    assert stands.devices == ()
    assert processes.is_alive(server)
    assert client.returncode is None
    await world.end(client)
    await world.until_ok(GPU)
    assert not processes.is_alive(server)


async def test_a_supervisor_that_is_killed_changes_nothing(world: World) -> None:
    """The next one takes the same daemon over, clients and all."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    for number in (signal.SIGKILL, signal.SIGTERM):
        await world.kill(number)
        await world.supervise()
        assert await world.until_ok(GPU) == running
    assert client.returncode is None


async def test_a_hangup_does_not_end_the_supervisor(world: World) -> None:
    """SIGHUP asks a service to read its configuration again; this one has none of its own."""
    pid = await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    os.kill(pid, signal.SIGHUP)
    await world.until(lambda: any("SIGHUP" in line for line in world.log))
    assert world.supervisor is not None and world.supervisor.returncode is None
    assert await world.until_ok(GPU) == running


async def test_a_daemon_that_is_not_wanted_stays_while_it_has_clients(world: World) -> None:
    """Then it goes, with its directory, and the GPUs are as they were before."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    world.want()
    await world.until_says(GPU, "stays until its clients have ended")
    assert world.modes()[A] == "EXCLUSIVE_PROCESS"

    await world.end(client)
    await world.until(lambda: world.modes() == {A: "DEFAULT", B: "DEFAULT"})
    assert not processes.is_alive(running)
    await world.until(lambda: not world.pipe(GPU).parent.exists())


async def test_a_daemon_that_is_not_wanted_stays_while_a_container_holds_it(world: World) -> None:
    """A container that does not compute now may do so next."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    world.want(held=(GPU,))
    await world.until_says(GPU, "stays until no container holds it")
    os.kill(running.pid, signal.SIGKILL)
    await world.until_says(GPU, "directory stays until no container holds it")
    assert world.pipe(GPU).exists()

    world.want()
    await world.until(lambda: not world.pipe(GPU).exists())


async def test_modes_are_restored_after_the_supervisor_was_killed(world: World) -> None:
    """What they were is on disk; one that was exclusive before stays so, and one that somebody else set is theirs."""
    (world.tools / "modes.json").write_text(f'{{"{B}": "EXCLUSIVE_PROCESS"}}')
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    await world.kill()
    os.kill(running.pid, signal.SIGKILL)
    world.want()
    await world.supervise()

    await world.until(lambda: world.modes()[A] == "DEFAULT")
    assert world.modes()[B] == "EXCLUSIVE_PROCESS"


async def test_compute_modes_are_left_where_nobody_wants_them_changed(world: World) -> None:
    """nvidia-smi is not even run."""
    await world.supervise()
    world.want(SHARED.but(exclusive_compute_mode=False))
    await world.until_ok(GPU)
    assert not (world.tools / "smi.log").exists()


async def test_an_unrelated_change_concerns_nobody(world: World) -> None:
    """Another daemon comes and goes; this one is the same process."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    other = MpsDaemon(name="nvidia.com/other", client_memory_mib_by_device={"GPU-c": 0})
    world.want(SHARED, other)
    await world.until_ok("nvidia.com/other")
    world.want(SHARED)
    await world.until(lambda: not world.pipe("nvidia.com/other").exists())
    assert world.daemon(GPU) == running


async def test_limits_change_while_it_runs(world: World) -> None:
    """For clients to come, of its server too; the daemon is the same."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    await world.compute(GPU)
    server = await world.serving(GPU)
    world.want(SHARED.but(client_memory_mib_by_device={A: 8192, B: 20480}, active_thread_percentage=10))
    await world.until(lambda: f"set_device_pinned_mem_limit {server.pid} {B} 20480M" in world.told(GPU))

    assert f"set_default_device_pinned_mem_limit {A} 8192M" in world.told(GPU)
    assert f"set_active_thread_percentage {server.pid} 10" in world.told(GPU)
    assert world.daemon(GPU) == running


async def test_devices_change_when_nobody_computes(world: World) -> None:
    """Until then the devices that it has are served, and the new one is not said to be."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    more = SHARED.but(client_memory_mib_by_device={A: 1024, "GPU-c": 1024})
    world.want(more, held=(GPU,))
    stands = await world.until_says(GPU, "restarts it with the new settings")
    assert (stands.state, stands.devices) == ("ok", (A,))
    await world.end(client)
    await world.until_says(GPU, "restarts it with the new settings when no container holds it")
    world.want(more)
    await world.until_ok(GPU, but=running)
    stands = await world.until_says(GPU, "control daemon")
    assert stands.devices == (A, "GPU-c")


async def test_multi_user_mode_is_a_switch(world: World) -> None:
    """It is an option of the daemon, so it comes with a restart."""
    await world.supervise()
    world.want(SHARED)
    first = await world.until_ok(GPU)
    assert "-multiuser-server" not in processes.read_arguments(first)
    world.want(SHARED.but(multi_user=True))
    assert "-multiuser-server" in processes.read_arguments(await world.until_ok(GPU, but=first))


async def test_two_resources_share_nothing(world: World) -> None:
    """Neither pipe nor shm nor devices; a MIG device has a daemon and a place of its own."""
    mig = "MIG-11111111-2222-3333-4444-555555555555"
    await world.supervise()
    world.want(
        SHARED,
        MpsDaemon(name="nvidia.com/other", client_memory_mib_by_device={"GPU-c": 0}),
        MpsDaemon(name=mig, client_memory_mib_by_device={mig: 5120}),
    )
    found = [await world.until_ok(name) for name in (GPU, "nvidia.com/other", mig)]

    seen = [processes.read_environment(each) for each in found]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == [f"{A},{B}", "GPU-c", mig]
    assert len({each["CUDA_MPS_PIPE_DIRECTORY"] for each in seen}) == 3
    assert len({world.pipe(name).with_name("shm").stat().st_ino for name in (GPU, "nvidia.com/other", mig)}) == 3
    assert set(world.modes()) == {A, B}


async def test_another_name_waits_for_the_gpus_of_the_old_daemon(world: World) -> None:
    """An exclusive GPU is one server's: the new daemon has the others, and all of them once the old one has ended."""
    other = "nvidia.com/gpu.shared"
    await world.supervise()
    world.want(SHARED.but(client_memory_mib_by_device={A: 20480}))
    old = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    for devices in ({A: 20480}, {A: 20480, B: 20480}):
        world.want(SHARED.but(name=other, client_memory_mib_by_device=devices), held=(GPU,))
        if B in devices:
            await world.until_ok(other)
            stands = world.standing(other)
            assert stands and stands.devices == (B,)
        else:
            await world.until_says(other, "another daemon")
            assert world.daemon(other) is None
    assert processes.is_alive(old)

    await world.end(client)
    world.want(SHARED.but(name=other))
    await world.until(lambda: (s := world.standing(other)) and s.devices == (A, B))
    assert world.daemon(GPU) is None


async def test_a_daemon_that_cannot_be_started_says_why_and_concerns_nobody(world: World) -> None:
    """In its own words; it is tried again, and the others are served."""
    world.spoil("nvidia-smi", "GPU access blocked by the operating system")
    await world.supervise()
    world.want(SHARED, MpsDaemon(name="nvidia.com/other", client_memory_mib_by_device={"GPU-c": 0}))
    await world.until_ok("nvidia.com/other")
    stands = await world.until_says(GPU, "GPU access blocked by the operating system")
    assert stands.state == "failing"
    world.spoil("nvidia-smi", None)
    await world.until_ok(GPU)


async def test_a_daemon_that_does_not_answer_is_replaced(world: World) -> None:
    """It is stopped by a signal, so nothing reads its socket; it has no server, so nobody is its client."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    os.kill(running.pid, signal.SIGSTOP)
    await world.until_ok(GPU, but=running)
    assert any("failing" in line and GPU in line for line in world.log)


async def test_a_daemon_that_does_not_answer_and_has_a_server_is_left(world: World) -> None:
    """It is said to be failing; when it answers again it is the same."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    client, _ = await world.compute(GPU)
    os.kill(running.pid, signal.SIGSTOP)
    stands = await world.until_says(GPU, "did not end within")
    assert (stands.state, stands.devices) == ("failing", ())
    os.kill(running.pid, signal.SIGCONT)
    assert await world.until_ok(GPU) == running
    assert client.returncode is None


@pytest.mark.parametrize("lie", ["1", "a pipe", "a link"])
async def test_a_client_that_writes_where_it_can_hurts_nobody(world: World, lie: str) -> None:
    """The file with the daemon's number is within its clients' reach: it is found all the same, and nothing hangs."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    path = world.pipe(GPU) / processes.PID_FILE
    path.unlink()
    if lie == "a pipe":
        os.mkfifo(path)
    elif lie == "a link":
        path.symlink_to("/proc/self/mem")
    else:
        path.write_text(lie)
    at = world.status()
    assert at
    await world.until(lambda: (s := world.status()) and s.at - at.at > 2)
    stands = world.standing(GPU)
    assert stands and (stands.state, stands.pid) == ("ok", running.pid)


async def test_a_wish_that_cannot_be_read_leaves_the_last_one_in_force(world: World) -> None:
    """It is said, and the daemons go on."""
    await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    (world.root / FILES_FOLDER / WANTED_FILE).write_text('{"version": 2, "value": {}}')
    await world.until(lambda: (s := world.status()) and "version 2" in as_shown(s.problem))
    assert world.daemon(GPU) == running


async def test_one_supervisor_at_a_time(world: World) -> None:
    """The second waits, and takes over when the first ends."""
    first = await world.supervise()
    world.want(SHARED)
    running = await world.until_ok(GPU)
    older, world.supervisor = world.supervisor, None
    await world.supervise()
    await world.until(lambda: any(f"process {first}" in line for line in world.log))
    assert older is not None
    older.kill()
    await older.wait()
    assert await world.until_ok(GPU) == running


async def test_what_lies_there_is_closed_to_others(world: World) -> None:
    """As far as clients of another user allow, and state altogether."""
    await world.supervise()
    world.want(SHARED)
    await world.until_ok(GPU)
    home = world.root / GPU
    modes = {
        path.name: oct(path.stat().st_mode & 0o7777) for path in (home, *home.iterdir(), world.root / FILES_FOLDER)
    }
    assert modes == {"gpu": "0o711", "pipe": "0o755", "log": "0o711", "shm": "0o1777", "gpuplane": "0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in (world.root / FILES_FOLDER).glob("*.json")} == {"0o600"}
