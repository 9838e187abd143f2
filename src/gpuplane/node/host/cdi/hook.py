"""Whether our hook is installed, and can work here. Who installs it is not this agent, which cannot write there."""

import stat
from functools import partial
from pathlib import Path
from posixpath import normpath

from gpuplane.base.files import untrusted_reason
from gpuplane.node.host.cdi import ldconfig
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CDI_HOOK_PART, CdiHookStatus

HOOK_PATH = Path("/opt/gpuplane/bin/gpuplane-hook")


async def watch_hook(node: Node, path: Path, driver_root: Path | None, every: float = 5.0) -> None:
    """Tell whether the program can be called, for ever; the first time before anybody else's turn comes, for it decides
    what is written. `path` is the same on the host and here.

    `driver_root`: where this process sees the driver's root; None where it does not.
    """
    while True:
        settings = node.snapshot.config.settings
        node.apply(
            StatusChanged(CDI_HOOK_PART, _with_consequence(hook_status(path, _host(settings, driver_root)), settings))
        )
        await node.wait_until(partial(_another, settings), every)


def _with_consequence(hook: CdiHookStatus, settings: Settings | None) -> CdiHookStatus:
    """With what happens where it is not called: NVIDIA's is, or libraries are mounted under each of their names."""
    if hook.path:
        return hook
    instead = (
        "the agent uses mounts instead of the hook's links"
        if settings is None or settings.cdi_hook != "nvidia"
        else "NVIDIA's hook is used"
    )
    return hook.but(text=f"{hook.text}: {instead}")


def _another(settings: Settings | None, snapshot: Snapshot) -> bool:
    return snapshot.config.settings != settings


def _host(settings: Settings | None, driver_root: Path | None) -> Path | None:
    """Where the host's root is seen: the driver's root is that, unless somebody says that it is another."""
    return driver_root if settings is None or normpath(f"/{settings.driver_root}") in ("/", "//") else None


def hook_status(path: Path, host: Path | None = None) -> CdiHookStatus:
    """The status of our hook: with its path where it can be called. Without it containers start as well.

    `host`: where the host's root is seen; None: it is not, and what the hook needs of it is there for all we know.
    """
    try:
        mode, weak = path.stat().st_mode, untrusted_reason(path, follow=True)
    except FileNotFoundError:
        return CdiHookStatus("ok", f"not installed at {path}")
    except OSError as error:
        return CdiHookStatus("failing", f"{path}: {error.strerror}")
    if not stat.S_ISREG(mode) or not mode & stat.S_IXUSR:
        return CdiHookStatus("failing", f"{path} is not executable: install the hook there again")
    if weak:
        return CdiHookStatus("failing", f"{path} is not used: it would run as root, but {weak}")
    if host is not None and not ldconfig.has_usable_ldconfig(host):
        needs = " or ".join(ldconfig.LDCONFIG_PATHS)
        return CdiHookStatus("ok", f"{path} is not used: the host needs a static {needs} that only root can change")
    return CdiHookStatus("ok", str(path), path=str(path))
