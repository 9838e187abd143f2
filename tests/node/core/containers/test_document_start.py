"""What a document has a container's start call, or mounts in its place; written from NVIDIA's rules, by hand."""

import pytest

from gpuplane.node.core.containers.cdi.specrequest import HookProgram
from gpuplane.node.model.machine import (
    DriverFile,
    DriverFiles,
    DriverLibrary,
)
from tests.node.core.containers.documents import (
    DRAWN,
    DRIVER,
    LIB,
    MACHINE,
    OURS,
    THEIRS,
    arguments,
    given,
    made,
    mount,
    mounted,
    spec,
)
from tests.texts import as_shown

# what a container's start calls


def test_nvidias_program() -> None:
    """Five entries, in NVIDIA's order; and each device has its own for its DRM nodes."""
    got = spec(DRAWN, hook_program=THEIRS)
    assert [(hook.hook_name, hook.path, hook.args[0], hook.env) for hook in got.container_edits.hooks] == [
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", ("NVIDIA_CTK_DEBUG=false",))
    ] * 5
    assert arguments(got) == [
        (
            "create-symlinks",
            *("--link", f"libcuda.so.1::{LIB}/libcuda.so"),
            *("--link", f"libcuda.so.570.172.08::{LIB}/libcuda.so.1"),
            *("--link", f"libnvidia-ml.so.570.172.08::{LIB}/libnvidia-ml.so.1"),
            *("--link", f"libnvidia-ptxjitcompiler.so.570.172.08::{LIB}/libnvidia-ptxjitcompiler.so.1"),
            *("--link", f"libvdpau_nvidia.so.570.172.08::{LIB}/vdpau/libvdpau_nvidia.so.1"),
        ),
        ("enable-cuda-compat", "--host-driver-version=570.172.08"),
        ("update-ldcache", "--folder", LIB, "--folder", f"{LIB}/vdpau"),
        ("disable-device-node-modification",),
        ("update-application-profile",),
    ]
    assert [hook.args for hook in got.devices[0].container_edits.hooks] == [
        (
            "nvidia-cdi-hook",
            "create-symlinks",
            *("--link", "../card1::/dev/dri/by-path/pci-0000:07:00.0-card"),
            *("--link", "../renderD128::/dev/dri/by-path/pci-0000:07:00.0-render"),
        )
    ]


def test_nvidias_other_program_has_them_below_a_command() -> None:
    got = spec(hook_program=HookProgram("/usr/local/nvidia/toolkit/nvidia-ctk", is_nvidia=True))
    assert {hook.path for hook in got.container_edits.hooks} == {"/usr/local/nvidia/toolkit/nvidia-ctk"}
    assert [hook.args[:2] for hook in got.container_edits.hooks] == [("nvidia-ctk", "hook")] * 5


def test_where_nothing_is_called_libraries_are_mounted_by_all_their_names() -> None:
    """In the folders where the loaders of Debian and Red Hat look by themselves. DRM nodes have no other names then."""
    got = spec(DRAWN)
    assert [hook for edits in (got.container_edits, *given(DRAWN).values()) for hook in edits.hooks] == []
    more = set(got.container_edits.mounts) - set(mounted())
    assert more == {
        mount(f"{LIB}/libcuda.so.570.172.08", f"{folder}/{name}")
        for folder in (LIB, "/usr/lib64")
        for name in ("libcuda.so", "libcuda.so.1")
    } | {
        mount(f"{LIB}/libnvidia-ml.so.570.172.08", f"{LIB}/libnvidia-ml.so.1"),
        mount(f"{LIB}/libnvidia-ml.so.570.172.08", "/usr/lib64/libnvidia-ml.so.1"),
        mount(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", f"{LIB}/libnvidia-ptxjitcompiler.so.1"),
        mount(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", "/usr/lib64/libnvidia-ptxjitcompiler.so.1"),
        mount(f"{LIB}/libnvidia-gpucomp.so.570.172.08", "/usr/lib64/libnvidia-gpucomp.so.570.172.08"),
        mount(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", f"{LIB}/vdpau/libvdpau_nvidia.so.1"),
        mount(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", "/usr/lib64/vdpau/libvdpau_nvidia.so.1"),
    }


@pytest.mark.parametrize(
    ("library", "more", "folders"),
    [
        ("/usr/lib64", (), ["/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu"]),
        (
            "/usr/lib64",
            ("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json",),
            ["/usr/lib64", "/usr/lib/aarch64-linux-gnu"],
        ),
        ("/usr/lib/aarch64-linux-gnu", (), ["/usr/lib64", "/usr/lib/aarch64-linux-gnu"]),
        (
            "/lib64/nvidia",
            (),
            ["/lib64/nvidia", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu"],
        ),
    ],
)
def test_debians_folder_is_that_of_the_processor(library: str, more: tuple[str, ...], folders: list[str]) -> None:
    """As far as the driver's files tell it; else that of either."""
    files = DriverFiles(
        libraries=(DriverLibrary(f"{library}/libcuda.so.1.2", "libcuda.so.1"),), files=tuple(map(DriverFile, more))
    )
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)))
    found = [each.container_path for each in got.container_edits.mounts if each.container_path.endswith("libcuda.so.1")]
    assert found == [f"{folder}/libcuda.so.1" for folder in folders]


def test_folders_below_that_of_libcuda_are_kept_where_nothing_is_called() -> None:
    """Of two that have one, one in the other, a folder belongs to the nearer; and the outer one's libraries count."""
    inner = "/usr/lib64/nvidia/current"
    paths = ("/usr/lib64/libcuda.so.1.2", f"{inner}/libcuda.so.1.2", f"{inner}/vdpau/libvdpau_nvidia.so.1.2")
    files = DriverFiles(libraries=tuple(DriverLibrary(path, path.rpartition("/")[2][:-2]) for path in paths))
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)))
    mounts = {each.container_path: each.host_path for each in got.container_edits.mounts}
    assert got.container_edits.env[0] == f"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64:{inner}"
    assert mounts["/usr/lib64/libcuda.so.1"] == paths[0]
    assert mounts[f"{inner}/libcuda.so.1"] == paths[1]
    assert mounts["/usr/lib64/vdpau/libvdpau_nvidia.so.1"] == mounts[f"{LIB}/vdpau/libvdpau_nvidia.so.1"] == paths[2]


@pytest.mark.parametrize("hook", [OURS, THEIRS])
def test_links_that_nvidia_makes_whatever_the_host_has(hook: HookProgram) -> None:
    """And no other: a link that is on the host beside a library without a SONAME leads to the library."""
    files = DriverFiles(
        libraries=tuple(
            DriverLibrary(f"/usr/lib64/{name}.so.1.2", soname, beside)
            for name, soname, beside in (
                ("libcuda", "libcuda.so.1", ()),
                ("libGLX_nvidia", "libGLX_nvidia.so.0", ()),
                ("libnvidia-opticalflow", "libnvidia-opticalflow.so.1", ()),
                ("libnvidia-allocator", "libnvidia-allocator.so.1", ()),
                ("libnvidia-glcore", "libnvidia-glcore.so.1.2", ("libnvidia-glcore.so",)),
                ("libnvidia-none", "", ("libnvidia-none.so",)),
            )
        ),
        files=(DriverFile("/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.1.2"),),
    )
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)), hook_program=hook)
    words = [word.removeprefix("--link=") for word in arguments(got)[0] if "::" in word]
    assert words == [
        "../libnvidia-allocator.so.1::/usr/lib64/gbm/nvidia-drm_gbm.so",
        "libGLX_nvidia.so.1.2::/usr/lib64/libGLX_indirect.so.0",
        "libGLX_nvidia.so.1.2::/usr/lib64/libGLX_nvidia.so.0",
        "libcuda.so.1::/usr/lib64/libcuda.so",
        "libcuda.so.1.2::/usr/lib64/libcuda.so.1",
        "libnvidia-allocator.so.1.2::/usr/lib64/libnvidia-allocator.so.1",
        "libnvidia-glcore.so.1.2::/usr/lib64/libnvidia-glcore.so",
        "libnvidia-none.so.1.2::/usr/lib64/libnvidia-none.so",
        "libnvidia-opticalflow.so.1::/usr/lib64/libnvidia-opticalflow.so",
        "libnvidia-opticalflow.so.1.2::/usr/lib64/libnvidia-opticalflow.so.1",
        "libglxserver_nvidia.so.1.2::/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so",
    ]


DONE = {
    "create-symlinks": ("--link", "--link-if"),
    "enable-cuda-compat": ("--compat", "--driver", "--cuda"),
    "update-ldcache": ("--folder",),
    "disable-device-node-modification": ("--params",),
    "update-application-profile": (),
}


@pytest.mark.parametrize("name", DONE)
def test_what_is_disabled_by_nvidias_name_is_not_done(name: str) -> None:
    """By whichever program; of ours it is arguments."""
    words = {
        word.partition("=")[0] for word in arguments(spec(DRAWN, hook_program=OURS, disabled_hooks=(name,)))[0][1:]
    }
    assert words == {word for other in DONE if other != name for word in DONE[other]}
    theirs = spec(DRAWN, hook_program=THEIRS, disabled_hooks=(name,))
    assert [each[0] for each in arguments(theirs)] == [other for other in DONE if other != name]
    assert bool(theirs.devices[0].container_edits.hooks) == (name != "create-symlinks")


@pytest.mark.parametrize("hook", [OURS, THEIRS])
@pytest.mark.parametrize("disabled", [("all",), tuple(DONE)])
def test_where_nothing_is_to_be_done_nothing_is_called(hook: HookProgram, disabled: tuple[str, ...]) -> None:
    got = spec(DRAWN, hook_program=hook, disabled_hooks=disabled)
    assert [each for edits in (got.container_edits, got.devices[0].container_edits) for each in edits.hooks] == []


def test_a_driver_of_unknown_version_has_no_forward_compatibility() -> None:
    """What is newer than it cannot be known."""
    machine = MACHINE.but(driver=DRIVER.but(version="", cuda=""))
    assert not [
        word for word in arguments(spec(machine, hook_program=OURS))[0] if word.startswith(("--compat", "--driver"))
    ]
    assert "enable-cuda-compat" not in [each[0] for each in arguments(spec(machine, hook_program=THEIRS))]


# feature flags


def test_without_sockets_where_the_feature_flag_says_so() -> None:
    assert spec(feature_flags=("disable-ipc-discoverer",), hook_program=OURS).container_edits.mounts == mounted()[1:]


@pytest.mark.parametrize(
    "flag", ["enable-explicit-driver-libraries", "enable-coherent-annotations", "disable-multiple-csv-devices"]
)
def test_a_feature_flag_that_changes_nothing_here_says_so(flag: str) -> None:
    got = made(feature_flags=(flag,))
    assert got.spec == made().spec
    assert len(got.notes) == 1
    assert flag in as_shown(got.notes[0])


def test_a_feature_flag_that_asks_for_what_is_so_anyway_says_nothing() -> None:
    assert made(feature_flags=("disable-nvsandboxutils",)) == made()
