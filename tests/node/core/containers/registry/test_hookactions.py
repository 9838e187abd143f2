"""What hooks do, in words."""

import pytest

from gpuplane.node.core.containers.cdi.hookactions import (
    LINKS_TEXT,
    PREFERS_COMPAT_LIBRARIES_TEXT,
    PREVENTS_NODE_CREATION_TEXT,
    UPDATES_LOADER_CACHE_TEXT,
    HookAction,
    hook_actions,
)
from gpuplane.node.model.cdi import Hook

OURS = (
    "gpuplane-hook create-container --link=libcuda.so.1::/usr/lib64/libcuda.so --link=b::/c "
    "--link-if=../card1::/dev/dri/by-path/x --folder=/usr/lib64 --compat=/usr/local/cuda/compat --driver=580.95.05 "
    "--cuda=13.0 --params"
)


def test_ours_does_several_things() -> None:
    """Each with what it is done to, in one order whatever the order of the arguments."""
    done = (
        HookAction(LINKS_TEXT, ("/usr/lib64/libcuda.so → libcuda.so.1", "/c → b")),
        HookAction("creates links if their targets exist in the container", ("/dev/dri/by-path/x → ../card1",)),
        HookAction(UPDATES_LOADER_CACHE_TEXT, ("/usr/lib64",)),
        HookAction(PREFERS_COMPAT_LIBRARIES_TEXT, ("/usr/local/cuda/compat", "driver 580.95.05", "CUDA 13.0")),
        HookAction(PREVENTS_NODE_CREATION_TEXT),
    )
    program, command, *arguments = OURS.split()

    assert hook_actions(hook(OURS)) == done
    assert set(hook_actions(hook(" ".join((program, command, *reversed(arguments)))))) == {
        done[0].but(targets=tuple(reversed(done[0].targets))),
        *done[1:],
    }


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ("nvidia-cdi-hook create-symlinks --link a::/b --link=c::/d", HookAction(LINKS_TEXT, ("/b → a", "/d → c"))),
        ("nvidia-ctk hook update-ldcache --folder /a --folder /b", HookAction(UPDATES_LOADER_CACHE_TEXT, ("/a", "/b"))),
        ("nvidia-cdi-hook enable-cuda-compat --host-driver-version=580.95.05",
         HookAction(PREFERS_COMPAT_LIBRARIES_TEXT, ("580.95.05",))),
        ("nvidia-ctk hook disable-device-node-modification", HookAction(PREVENTS_NODE_CREATION_TEXT)),
        ("nvidia-cdi-hook chmod --mode 755 --path /dev/dri",
         HookAction("changes the modes of paths", ("755", "/dev/dri"))),
    ],
)  # fmt: skip
def test_nvidias_does_one_thing(arguments: str, step: HookAction) -> None:
    """Called either way, with options of either form."""
    assert hook_actions(hook(arguments)) == (step,)


@pytest.mark.parametrize("arguments", ["setup --all", "nvidia-cdi-hook new-thing", "nvidia-ctk", "gpuplane-hook", ""])
def test_of_what_is_not_known_the_call_is_told(arguments: str) -> None:
    """The program by its path, with its arguments."""
    rest = arguments.partition(" ")[2]

    [action] = hook_actions(hook(arguments))
    assert action.targets == (f"/bin/x {rest}".rstrip(),)


def hook(arguments: str) -> Hook:
    return Hook("createContainer", "/bin/x", tuple(arguments.split()))
