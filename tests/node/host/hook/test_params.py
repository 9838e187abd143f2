"""The driver's parameters say that a container makes no device nodes."""

from tests.node.host.hook.world import Container

SHOWN = "Mobile: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"


def prepared(container: Container, content: str = SHOWN) -> str:
    """Shell commands: a /proc of the container's, with a driver in it."""
    (container.folder / "params").write_text(content)
    proc = container.inside("/proc")
    return "\n".join(
        (
            f"mount -t proc proc {proc}",
            f"mount -t tmpfs none {proc}/driver",
            f"mkdir {proc}/driver/nvidia",
            f"cp {container.folder}/params {proc}/driver/nvidia/params",
        )
    )


def test_the_parameter_is_off_in_the_container(container: Container) -> None:
    """A copy that differs in this alone; it cannot be written, and a second time changes nothing."""
    proc = container.inside("/proc")
    again = f'echo \'{{"root": "{container.root}"}}\' | {container.hook} create-container --params'
    check = f"""
        {prepared(container)}
        {again}
        cat {proc}/driver/nvidia/params > {container.folder}/seen
        grep -c {proc}/driver/nvidia/params /proc/self/mountinfo > {container.folder}/mounts
        grep {proc}/driver/nvidia/params /proc/self/mountinfo >> {container.folder}/mounts
        ! (echo x > {proc}/driver/nvidia/params) 2> /dev/null
    """
    container.well("--params", prepare=check)

    assert (container.folder / "seen").read_text() == SHOWN.replace("Files: 1", "Files: 0")
    count, mount = (container.folder / "mounts").read_text().splitlines()
    assert count == "1"
    assert " ro,nosuid,nodev,noexec" in mount
    assert sorted(path.name for path in container.inside("/dev").iterdir()) == ["dri"]


def test_nothing_is_mounted_a_second_time(container: Container) -> None:
    """Our own copy says what it shall say."""
    proc = container.inside("/proc")
    again = f'echo \'{{"root": "{container.root}"}}\' | {container.hook} create-container --params'
    count = f"grep -c nvidia/params /proc/self/mountinfo > {container.folder}/mounts"
    container.well(
        "--params", prepare=f"{prepared(container)}\n{again}\n{again}\n{count}\ntest -e {proc}/driver/nvidia/params"
    )

    assert (container.folder / "mounts").read_text() == "1\n"


def test_without_a_driver_there_is_nothing_to_do(container: Container) -> None:
    """No /proc, a /proc without the driver, and one that a driver's file is off in already."""
    container.well("--params")
    container.well("--params", prepare=f"mount -t proc proc {container.inside('/proc')}")
    off = SHOWN.replace("1\n", "0\n")
    container.well("--params", prepare=f"{prepared(container, off)}\n! grep nvidia/params /proc/self/mountinfo")


def test_a_proc_that_is_the_images_is_not_believed(container: Container) -> None:
    """Nothing is mounted over what an image calls /proc."""
    container.put("/proc/driver/nvidia/params", SHOWN)
    code = f"""
        echo '{{"root": "{container.root}"}}' | {container.hook} create-container --params
        ! grep nvidia/params /proc/self/mountinfo
    """
    container.well("--params", prepare=code)


def test_the_hosts_proc_stays_as_it_is(container: Container) -> None:
    """A pod may have it as its own, and share with the host what is mounted in it."""
    proc = container.inside("/proc")
    check = f"""
        {prepared(container)}
        mount --make-rshared {proc}
        echo '{{"root": "{container.root}"}}' > {container.folder}/state
        unshare --mount --propagation unchanged sh -euc '
            {container.hook} create-container --params < {container.folder}/state
            cat {proc}/driver/nvidia/params > {container.folder}/seen'
        cat {proc}/driver/nvidia/params > {container.folder}/host
    """
    container.well(prepare=check)

    assert (container.folder / "seen").read_text() == SHOWN.replace("Files: 1", "Files: 0")
    assert (container.folder / "host").read_text() == SHOWN
