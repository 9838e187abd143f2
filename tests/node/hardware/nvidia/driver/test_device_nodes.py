"""The numbers of device nodes: of those that are there as they are, of others as their drivers would make them."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuplane.node.hardware.nvidia.driver.devicenodes import expected_node_stat, parse_major_numbers
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.model.machine import DeviceNodeStat
from tests.trees import grow, may_make_nodes

KERNEL = (
    r"f /proc/devices Character devices:\n  1 mem\n 10 misc\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n226 drm\n"
    r"231 infiniband_verbs\n234 nvidia-nvswitch\n235 nvidia-caps-imex-channels\n237 nvidia-caps\n500 gdrdrv\n"
    r"501 nvidia-fs\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n195 nvidia-caps\n"
)
MAJORS = {
    "mem": 1, "misc": 10, "nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "drm": 226, "infiniband_verbs": 231,
    "nvidia-nvswitch": 234, "nvidia-caps-imex-channels": 235, "nvidia-caps": 237, "gdrdrv": 500, "nvidia-fs": 501,
    "nvidia-uvm": 511,
}  # fmt: skip
BEFORE_550 = {"nvidia-frontend": 195, "nvidia-uvm": 510}


def numbers(files: KernelFiles, *nodes: str) -> Mapping[str, DeviceNodeStat]:
    """The numbers of nodes, as a look tells them."""
    return files.nodes.numbers(nodes, files.majors())


def test_the_kernel_tells_the_drivers_of_character_devices(tmp_path: Path) -> None:
    """Block devices have numbers of their own; nonsense is nothing."""
    assert KernelFiles(str(grow(tmp_path, KERNEL))).majors() == MAJORS
    assert parse_major_numbers("195\nnvidia 195\n-1 x\n\n195 a b\n") == {}
    assert KernelFiles(str(tmp_path / "nowhere")).majors() == {}


@pytest.mark.parametrize(
    ("node", "loaded", "said"),
    [
        ("/dev/nvidia0", MAJORS, (195, 0, 0o666)),
        ("/dev/nvidia15", MAJORS, (195, 15, 0o666)),
        ("/dev/nvidiactl", MAJORS, (195, 255, 0o666)),
        ("/dev/nvidia-modeset", MAJORS, (195, 254, 0o666)),
        ("/dev/nvidia-uvm", MAJORS, (511, 0, 0o666)),
        ("/dev/nvidia-uvm-tools", MAJORS, (511, 1, 0o666)),
        ("/dev/nvidia-caps/nvidia-cap1", MAJORS, (237, 1, 0o400)),
        ("/dev/nvidia-caps/nvidia-cap2", MAJORS, (237, 2, 0o444)),
        ("/dev/nvidia-caps/nvidia-cap12", MAJORS, (237, 12, 0o444)),
        ("/dev/nvidia-caps-imex-channels/channel2047", MAJORS, (235, 2047, 0o666)),
        ("/dev/nvidia-nvswitch3", MAJORS, (234, 3, 0o666)),
        ("/dev/nvidia-nvswitchctl", MAJORS, (234, 255, 0o666)),
        ("/dev/nvidia-fs7", MAJORS, (501, 7, 0o666)),
        ("/dev/nvidia-fs", MAJORS, (501, 0, 0o666)),
        ("/dev/gdrdrv", MAJORS, (500, 0, 0o666)),
        ("/dev/infiniband/uverbs3", MAJORS, (231, 195, 0o666)),
        ("/dev/dri/card1", MAJORS, (226, 1, 0o666)),
        ("/dev/dri/renderD129", MAJORS, (226, 129, 0o666)),
        ("/dev/nvidia3", BEFORE_550, (195, 3, 0o666)),
        ("/dev/nvidiactl", BEFORE_550, (195, 255, 0o666)),
        ("/dev/nvidia-modeset", BEFORE_550, (195, 254, 0o666)),
        ("/dev/nvidiactl", {"nvidia": 195}, (195, 255, 0o666)),
        ("/dev/nvidia-modeset", {"nvidia": 195, "nvidiactl": 195}, None),
        ("/dev/nvidia-uvm", {"nvidia": 195}, None),
        ("/dev/infiniband/rdma_cm", MAJORS, None),
        ("/dev/sda", MAJORS, None),
        ("/dev/nvidia", MAJORS, None),
        ("/dev/nvidia0/../mem", MAJORS, None),
    ],
)  # fmt: skip
def test_each_driver_has_its_rule(node: str, loaded: Mapping[str, int], said: tuple[int, int, int] | None) -> None:
    """By names of drivers since 550 and before; no rule, or a driver that is not loaded, is no number."""
    assert expected_node_stat(node, loaded) == (
        None if said is None else DeviceNodeStat(said[0], said[1], mode=said[2])
    )


def test_a_node_that_is_there_says_its_numbers_itself(tmp_path: Path) -> None:
    """Whatever the kernel's files say, with who may use it and whether it is linked; one that is missing, by rule."""
    if not may_make_nodes(tmp_path):
        pytest.skip("needs to make device nodes: CAP_MKNOD")
    text = (
        f"{KERNEL}\nc /dev/nvidiactl 196 255 660 44\nc /dev/dri/card1 226 1 660 44\nl /dev/char/226:1 -> ../dri/card1"
    )
    files = KernelFiles(str(grow(tmp_path, text)))

    assert numbers(files, "/dev/nvidia0", "/dev/dri/card1", "/dev/unheard-of") == {
        "/dev/nvidiactl": DeviceNodeStat(196, 255, mode=0o660, gid=44, has_char_link=False),
        "/dev/nvidia-uvm": DeviceNodeStat(511, 0, has_char_link=False),
        "/dev/nvidia-uvm-tools": DeviceNodeStat(511, 1, has_char_link=False),
        "/dev/nvidia-modeset": DeviceNodeStat(195, 254, has_char_link=False),
        "/dev/nvidia0": DeviceNodeStat(195, 0, has_char_link=False),
        "/dev/dri/card1": DeviceNodeStat(226, 1, mode=0o660, gid=44),
    }


def test_what_is_no_device_node_has_the_numbers_that_it_should_have(tmp_path: Path) -> None:
    """A file, a folder, a socket or a link to nothing in its place."""
    text = f"{KERNEL}\nf /dev/nvidiactl\nd /dev/nvidia-uvm\ns /dev/nvidia-modeset\nl /dev/nvidia0 -> /etc/passwd"
    files = KernelFiles(str(grow(tmp_path, text)))

    assert {node: (each.major, each.minor) for node, each in numbers(files, "/dev/nvidia0").items()} == {
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-uvm": (511, 0),
        "/dev/nvidia-uvm-tools": (511, 1),
        "/dev/nvidia-modeset": (195, 254),
        "/dev/nvidia0": (195, 0),
    }
    assert not files.nodes.exists("/dev/nvidia0")


def test_without_a_driver_nothing_should_be_there(tmp_path: Path) -> None:
    """No node has a number, and none is missing."""
    files = KernelFiles(str(grow(tmp_path, r"f /proc/devices Character devices:\n  1 mem\n")))

    assert numbers(files, "/dev/nvidia0") == {}
    assert files.nodes.shared() == ()


def test_nodes_of_no_one_gpu_are_told_in_their_order(tmp_path: Path) -> None:
    """Control nodes, switches, what MIG is managed by, storage, RDMA, IMEX channels; not GPUs, nor MIG devices."""
    named = (
        "nvidiactl", "nvidia-uvm", "nvidia-nvswitch0", "nvidia-nvswitch2", "nvidia-nvswitch10", "nvidia-nvswitchctl",
        "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2", "nvidia-fs0", "nvidia-fs2", "nvidia-fs10", "gdrdrv",
        "infiniband/uverbs0", "infiniband/uverbs11", "infiniband/rdma_cm",
        "nvidia-caps-imex-channels/channel3", "nvidia-caps-imex-channels/channel20",
    )  # fmt: skip
    others = (
        "nvidia0", "nvidia-caps/nvidia-cap12", "nvidia-nvlink", "infiniband/umad0", "dri/card0", "nvidia-fs1x",
        "gdrdrv2", "nvidia-caps-imex-channels/channel", "nvidia-caps-imex-channels/xchannel1",
    )  # fmt: skip
    root = grow(tmp_path, "\n".join(f"f /dev/{name}" for name in (*reversed(named), *others)))

    assert KernelFiles(str(root)).nodes.shared() == tuple(f"/dev/{name}" for name in named)


def test_nodes_are_the_drivers_roots_where_it_has_some(tmp_path: Path) -> None:
    """A driver's container has a /dev of its own; links to nodes are systemd's, in the host's."""
    host = grow(tmp_path / "host", f"{KERNEL}\nf /dev/nvidiactl\nf /dev/nvidia-uvm\nf /dev/char/195:255")
    driver = grow(tmp_path / "driver", "d /dev")
    files = KernelFiles(str(host), str(driver))
    assert files.nodes.shared() == ("/dev/nvidiactl", "/dev/nvidia-uvm")

    grow(driver, "f /dev/nvidiactl\nf /dev/nvidia0\nf /dev/char/511:0")
    assert files.nodes.shared() == ("/dev/nvidiactl",)
    assert files.nodes.exists("/dev/nvidia0")
    assert {node for node, each in numbers(files, "/dev/nvidia0").items() if each.has_char_link} == {
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    }


def test_drm_nodes_are_those_of_the_gpus_address(tmp_path: Path) -> None:
    """So far as they exist: by sysfs, not by counting, for other cards have such nodes as well."""
    text = "\n".join(
        (
            *(f"f /dev/dri/{name}" for name in ("card0", "card1", "card11", "renderD128", "renderD129", "controlD64")),
            *(f"d /sys/bus/pci/devices/0000:1b:00.0/drm/{name}" for name in ("renderD128", "card11", "controlD64")),
            *(f"d /sys/bus/pci/devices/0000:43:00.0/drm/{name}" for name in ("card7", "renderD129", "version")),
        )
    )
    files = KernelFiles(str(grow(tmp_path, text)))

    assert files.dri("0000:1b:00.0") == ("/dev/dri/card11", "/dev/dri/renderD128")
    assert files.dri("0000:43:00.0") == ("/dev/dri/renderD129",)
    assert files.dri("0000:61:00.0") == files.dri("") == ()


@pytest.mark.parametrize("link", ["/dev", "/dev/nvidia-caps", "/dev/char", "/dev/nvidiactl"])
def test_links_in_dev_do_not_lead_out_of_the_root(tmp_path: Path, link: str) -> None:
    """Nodes of another root are none of ours."""
    outside = grow(tmp_path / "outside", "f /dev/nvidiactl\nf /dev/nvidia-caps/nvidia-cap1\nf /dev/char/195:255")
    root = grow(tmp_path / "root", KERNEL)
    (root / link[1:]).parent.mkdir(exist_ok=True)
    (root / link[1:]).symlink_to(outside / link[1:])
    os.link(outside / "dev/nvidiactl", root / "nvidiactl")
    files = KernelFiles(str(root))

    assert files.nodes.shared() == ()
    assert not numbers(files)["/dev/nvidiactl"].has_char_link


def spoilt(path: Path) -> str:
    """Let everybody write to it; gives the reason that is to be told."""
    path.chmod(0o757)
    return f"{path} is writable by others"


@pytest.mark.parametrize("at", ["", "dev", "dev/dri"])
def test_what_somebody_else_could_have_put_there_is_no_node(tmp_path: Path, at: str) -> None:
    """Neither does it exist nor does it say numbers: those of its driver's rule hold, and the reason is told."""
    text = (
        f"{KERNEL}\nf /dev/nvidiactl\nf /dev/nvidia0\nf /dev/dri/card1\nd /sys/bus/pci/devices/0000:1b:00.0/drm/card1"
    )
    files = KernelFiles(str(root := grow(tmp_path / "root", text)))
    assert files.nodes.left() == {}
    reason = spoilt(root / at)
    spoils = {"/dev/nvidiactl", "/dev/nvidia0", "/dev/dri/card1"} if at != "dev/dri" else {"/dev/dri/card1"}

    assert files.nodes.left() == dict.fromkeys(spoils, reason)
    assert files.dri("0000:1b:00.0") == ()
    assert files.nodes.exists("/dev/nvidia0") == ("/dev/nvidia0" not in spoils)
    assert ("/dev/nvidiactl" in files.nodes.shared()) == ("/dev/nvidiactl" not in spoils)
    assert reason in files.nodes.absence("/dev/dri/card1")
    assert reason not in files.nodes.absence("/dev/dri/card2")
    assert numbers(files, "/dev/nvidia0")["/dev/nvidia0"] == DeviceNodeStat(195, 0, has_char_link=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to somebody else")
def test_a_link_of_somebody_else_says_no_numbers(tmp_path: Path) -> None:
    """A container would be given the node that it leads to; one of root's may lead to a GPU's other name."""
    if not may_make_nodes(tmp_path):
        pytest.skip("needs to make device nodes: CAP_MKNOD")
    root = grow(tmp_path, f"{KERNEL}\nc /dev/mem 1 1 640\nl /dev/nvidia0 -> mem\nl /dev/nvidiactl -> mem")
    os.lchown(root / "dev/nvidia0", 65534, 65534)
    files = KernelFiles(str(root))

    assert (told := numbers(files, "/dev/nvidia0"))["/dev/nvidia0"] == DeviceNodeStat(195, 0, has_char_link=False)
    assert (told["/dev/nvidiactl"].major, told["/dev/nvidiactl"].minor) == (1, 1)
    left = files.nodes.left()
    assert left.keys() == {"/dev/nvidia0"}
    assert f"{root}/dev/nvidia0 " in left["/dev/nvidia0"]
    assert "65534" in left["/dev/nvidia0"]
    assert not files.nodes.exists("/dev/nvidia0")


def test_nodes_of_a_driver_root_that_others_could_change_are_passed_over(tmp_path: Path) -> None:
    """Those of the host are taken, as where it has none."""
    host = grow(tmp_path / "host", f"{KERNEL}\nf /dev/nvidiactl\nf /dev/nvidia-uvm")
    driver = grow(tmp_path / "driver", "f /dev/nvidiactl\nf /dev/gdrdrv")
    assert KernelFiles(str(host), str(driver)).nodes.shared() == ("/dev/nvidiactl", "/dev/gdrdrv")
    spoilt(driver)
    assert KernelFiles(str(host), str(driver)).nodes.shared() == ("/dev/nvidiactl", "/dev/nvidia-uvm")
