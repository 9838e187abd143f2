"""Which layout is requested of each GPU, and by whom.

The label `nvidia.com/mig.config` of our Node names a configuration, where the agent's configuration has it followed.
Without a label, a person may have requested layouts by a command. What the file of configurations has under a name is
looked up each time, so a changed file is a changed request. A GPU that no entry means stays as it is.
"""

from collections.abc import Mapping

from gpuplane.base.text import Text, join, join_first_names
from gpuplane.base.value import Value
from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.core.partitions.generated import generated_configs
from gpuplane.node.core.requests import node_requests
from gpuplane.node.core.view import part_view
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuLayout, LayoutRequest, MigConfigs
from gpuplane.node.model.snapshot import Snapshot

MIG_LABEL = "nvidia.com/mig.config"
MIG_MANAGER_TEXT = (
    "NVIDIA's MIG manager acts on this node (label nvidia.com/gpu.deploy.mig-manager=true): set this label to false, "
    "for two programs must not change the same GPUs"
)


class DesiredLayouts(Value):
    """What is requested: UUID of a GPU → its layout. `problem`: why the request cannot be followed; "" where it can."""

    name: str
    layouts: Mapping[str, GpuLayout] = {}
    mode_only: bool = False
    skip_reset: bool = False
    problem: Text = ""
    code: str = ""


def requested_name(snapshot: Snapshot) -> str:
    """The configuration that our Node's label names, where it is followed; "" for none."""
    settings = snapshot.config.settings
    if settings is None or not settings.partitions.follow_label:
        return ""
    return node_requests(snapshot).mig_config


def desired_layouts(snapshot: Snapshot) -> DesiredLayouts | None:
    """What is requested of this node's GPUs; None where nothing is, or where the GPUs are not known."""
    if snapshot.machine is None or snapshot.machine.gpus is None or snapshot.config.settings is None:
        return None
    name, request = requested_name(snapshot), snapshot.ledger.layout_request
    if not name and request is None:
        return None
    if node_requests(snapshot).has_mig_manager:
        said = name or (request.name if request is not None else "")
        return DesiredLayouts(said, problem=MIG_MANAGER_TEXT, code="mig-manager")
    if not name:
        return _requested_by_command(request) if request is not None else None
    return _layouts_of_name.of(snapshot, name, snapshot.config.mig_configs, snapshot.machine.gpus)


def _requested_by_command(request: LayoutRequest) -> DesiredLayouts:
    return DesiredLayouts(request.name, request.layouts, mode_only=request.mode_only, skip_reset=request.skip_reset)


@part_view
def _layouts_of_name(name: str, configs: MigConfigs | None, gpus: tuple[Gpu, ...]) -> DesiredLayouts:
    known = _configs_by_name(configs, gpus)
    if name not in known:
        there = f"these are known: {join_first_names(sorted(known), 20)}" if known else "none is known"
        text = f"there is no MIG configuration {name!r}; {there}"
        return DesiredLayouts(name, problem=text, code="config-unknown")
    layouts, problems = layouts_of_entries(known[name], gpus)
    if problems:
        return DesiredLayouts(name, problem=join("; ", problems[:5]), code="config-invalid")
    return DesiredLayouts(name, layouts)


def _configs_by_name(configs: MigConfigs | None, gpus: tuple[Gpu, ...]) -> MigConfigs:
    """The file's configurations, and the generated ones that it has no name of; none before the file was read once."""
    if configs is not None and not configs:
        return configs
    return {**generated_configs(gpus), **(configs or {})}
