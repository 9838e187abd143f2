"""The file of hooks of nvidia-mig-parted (api/hooks/v1/hooks.go): programs that the command runs around its changes.

The agent runs none: only a person's command does, with that person's rights.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.strict import load_with_lines
from gpuplane.base.value import Value

HookName = Literal["apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit"]


class Hook(Value):
    """One program. `envs`: its environment, to which that of the command's options is added, and nothing else."""

    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = {}
    workdir: str = ""


class _Spec(Value):
    version: Literal["v1"]
    hooks: Mapping[HookName, tuple[Hook, ...]] = {}


def parse_hooks(data: bytes, file: str) -> Mapping[HookName, tuple[Hook, ...]]:
    """The hooks in a file, YAML or JSON; `file` names it in errors. Raises InvalidInput."""
    return load_with_lines(data, _Spec, file, prepare=lambda root: root)[0].hooks
