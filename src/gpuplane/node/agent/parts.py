"""The parts of an agent: which there are, and how they are started and ended by name.

Three kinds and no fourth: those that watch the world and tell facts, those that serve requests from the snapshot, and
those that reconcile a part of the world with a view. An agent that stands by for another only watches: it changes
nothing in the world and answers nobody. Each part is restarted alone when it raises.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from gpuplane.node.agent.configure import configure
from gpuplane.node.agent.control import control
from gpuplane.node.agent.dra import fetch_nothing, keep_dra_driver
from gpuplane.node.agent.firstlook import wait_for_node_object
from gpuplane.node.agent.migconfigs import follow_mig_configs
from gpuplane.node.agent.node import Node
from gpuplane.node.agent.options import Options
from gpuplane.node.agent.restart import keep_part_running
from gpuplane.node.agent.tables import keep_tables
from gpuplane.node.apiserver.claimchecks import check_claims
from gpuplane.node.apiserver.claims import ClaimReader
from gpuplane.node.apiserver.claimstatus import keep_claim_status
from gpuplane.node.apiserver.events import send_events
from gpuplane.node.apiserver.keeper import keep, report_without_node_name
from gpuplane.node.apiserver.node import watch_node
from gpuplane.node.apiserver.nodefeature import NodeFeature
from gpuplane.node.apiserver.nodemetadata import MigStateLabelWriter, NodeMetadataWriter
from gpuplane.node.apiserver.pods import watch_pods
from gpuplane.node.apiserver.report import report_conditions
from gpuplane.node.apiserver.slices import publish_slices
from gpuplane.node.apiserver.startuptaint import StartupTaint
from gpuplane.node.core.dra.preparing import foreign_device_problem
from gpuplane.node.core.health.probes import requested_probe_times
from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.core.partitions.state_machine import awaits_allocatable
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.hardware import Actor, Sampler, Source
from gpuplane.node.hardware.migpartitions import keep_partitions
from gpuplane.node.hardware.nvidia.devicenodes import keep_device_nodes
from gpuplane.node.hardware.timeslices import keep_time_slices
from gpuplane.node.host.cdi.claimfiles import keep_claim_files
from gpuplane.node.host.cdi.specifications import keep_specifications
from gpuplane.node.host.featuresfile import keep_features_file
from gpuplane.node.host.kernellog import watch_kernel_log
from gpuplane.node.host.mps.requests import follow_supervisor_status, keep_mps_requests
from gpuplane.node.host.state import keep_ledger_stored
from gpuplane.node.kubelet.allocatable import follow_allocatable
from gpuplane.node.kubelet.podresources import follow_allocations
from gpuplane.node.kubelet.registration import register_plugins, report_unregistered
from gpuplane.node.model.claims import AllocatedClaim, ClaimName, ClaimUnavailable, FetchClaim
from gpuplane.node.model.config import Settings
from gpuplane.node.model.control import AgentInfo
from gpuplane.node.model.facts import MachineObserved, ObserveMachine, ProbeGpu
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import (
    ALLOCATABLE_PART,
    API_SERVER_PART,
    CDI_FILES_PART,
    CLAIM_FILES_PART,
    CLAIM_STATUS_PART,
    CLAIMS_PART,
    CONFIG_PART,
    COUNTERS_FILE_PART,
    DEVICE_NODES_PART,
    DRA_PLUGIN_PART,
    EVENTS_PART,
    FEATURES_FILE_PART,
    KERNEL_LOG_PART,
    MIG_CONFIGS_FILE_PART,
    MIG_STATE_PART,
    MPS_REQUESTS_PART,
    MPS_SUPERVISOR_PART,
    NODE_CONDITION_PART,
    NODE_FEATURE_PART,
    NODE_METADATA_PART,
    POD_RESOURCES_PART,
    PODS_PART,
    SLICES_PART,
    STARTUP_TAINT_PART,
    STATE_DIRECTORY_PART,
    TIME_SLICES_PART,
    AnyPart,
    Part,
    Status,
)

if TYPE_CHECKING:
    from gpuplane.node.agent.telemetry import Telemetry

Parts = Mapping[AnyPart, Callable[[], Awaitable[None]]]

PLUGINS: Part[Status] = Part("plugins")
ASKED_AGAIN = CONFIG_PART, API_SERVER_PART
"""What reads or asks everything anew when it is started again."""


class RunningParts:
    """The parts that run."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._parts: dict[AnyPart, Callable[[], Awaitable[None]]] = {}
        self._tasks: dict[AnyPart, asyncio.Task[None]] = {}

    def start(self, parts: Parts) -> None:
        """Start those of the parts that do not run."""
        for part, run in parts.items():
            if part not in self._tasks:
                self._parts[part] = run
                self._tasks[part] = asyncio.create_task(keep_part_running(self.node, part, run), name=part.name)

    def is_running(self, part: AnyPart) -> bool:
        """Whether a part runs."""
        return part in self._tasks

    async def end(self, *parts: AnyPart) -> None:
        """End parts that run; all, where none is named."""
        tasks = [task for part in parts or tuple(self._tasks) if (task := self._tasks.pop(part, None))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def again(self, *parts: AnyPart) -> None:
        """End those of the parts that run, and start them anew."""
        there = {part: self._parts[part] for part in parts if part in self._tasks}
        await self.end(*there) if there else None
        self.start(there)


def status_page(node: Node, options: Options, sampler: Sampler | None) -> Parts:
    """What runs from the first moment to the last."""
    if (pages := options.pages) is None:
        return {}

    @cache
    def telemetry() -> "Telemetry":
        from gpuplane.node.agent.telemetry import Telemetry  # registering need not wait for these imports

        return Telemetry(node, options.records_root)

    async def serve_status() -> None:
        from gpuplane.node.agent.statuspages import serve_status_pages

        known = telemetry()
        await serve_status_pages(node, pages, options.host_name, known.latest, known.was_read)

    parts: dict[AnyPart, Callable[[], Awaitable[None]]] = {
        Part("status pages"): serve_status,
    }
    if sampler is not None:
        parts[Part("samples")] = lambda: telemetry().follow_samples(sampler)
        parts[Part("sampling")] = lambda: telemetry().request_samples(sampler)
    if (counters := options.counters) is not None:
        parts[COUNTERS_FILE_PART] = lambda: telemetry().follow_counters(counters)
    return parts


def watching(node: Node, options: Options, sources: Sequence[Source], actor: Actor | None) -> Parts:
    """What an agent does also while it stands by: it watches, and changes nothing in the world."""
    parts: dict[AnyPart, Callable[[], Awaitable[None]]] = {
        Part("clock"): node.run_clock,
        CONFIG_PART: lambda: configure(node, options.config),
        POD_RESOURCES_PART: lambda: follow_allocations(node, options.kubelet_root),
        MPS_SUPERVISOR_PART: lambda: follow_supervisor_status(node),
        Part("choice"): lambda: keep_tables(node),
        MIG_CONFIGS_FILE_PART: lambda: follow_mig_configs(node),
    }
    if (cdi_dir := options.cdi_dir) is not None:  # it writes only while this agent serves
        parts[CDI_FILES_PART] = lambda: keep_specifications(node, cdi_dir, options.hook, options.driver_root)
    for source in sources:
        parts[source.part] = partial(_watch, node, source, waits=isinstance(source, Actor) and bool(options.node_name))
    if actor is not None:
        parts[Part("driver release")] = lambda: _release_driver(node, actor)  # those who stand by do it, too
    if options.node_name:
        parts[PODS_PART] = lambda: watch_pods(node, options.node_name, options.kubeconfig)
        parts[API_SERVER_PART] = lambda: watch_node(node, options.node_name, options.kubeconfig, options.node_label)
    return parts


def serving(
    node: Node, options: Options, actor: Actor | None, about: AgentInfo, ours: Callable[[], bool], remembers: bool
) -> Parts:
    """What the one agent does that serves kubelet. `ours`: whether the lock is; `remembers`: the state directory is."""
    parts: dict[AnyPart, Callable[[], Awaitable[None]]] = {
        PLUGINS: lambda: (
            register_plugins(node, options.plugins, may_serve=ours) if options.registers else report_unregistered(node)
        ),
        Part("control"): lambda: control(node, options.state_dir / "control.sock", about),
        MPS_REQUESTS_PART: lambda: keep_mps_requests(node),
        ALLOCATABLE_PART: lambda: follow_allocatable(node, options.kubelet_root, awaits_allocatable),
        FEATURES_FILE_PART: lambda: keep_features_file(node, feature_label_values),
    }
    if actor is not None:
        parts[Part("probes")] = lambda: _probe(node, actor)
        parts[TIME_SLICES_PART] = lambda: keep_time_slices(node, actor)
        parts[Part("partitions")] = lambda: keep_partitions(node, actor)
    if (kernel_log := options.kernel_log) is not None:  # from its beginning: what befell between two agents is in it
        parts[KERNEL_LOG_PART] = lambda: watch_kernel_log(node, kernel_log, pids=options.kernel_pids)
    if (cdi_dir := options.cdi_dir) is not None:
        parts[CLAIM_FILES_PART] = lambda: keep_claim_files(node, cdi_dir, plugins=options.kubelet_root / "plugins")
    if (root := options.device_nodes) is not None:
        parts[DEVICE_NODES_PART] = lambda: keep_device_nodes(node, root)
    if remembers:
        parts[STATE_DIRECTORY_PART] = lambda: keep_ledger_stored(node, options.state_dir)
    fetch: FetchClaim = fetch_nothing
    if not options.node_name:
        parts[NODE_METADATA_PART] = lambda: report_without_node_name(node)
    if options.node_name:
        parts[NODE_CONDITION_PART] = lambda: report_conditions(node, options.node_name, options.kubeconfig)
        parts[EVENTS_PART] = lambda: send_events(node, options.node_name, options.kubeconfig)
        metadata, taint = NodeMetadataWriter(options.node_name, feature_label_values), StartupTaint(options.node_name)
        feature = NodeFeature(options.node_name, feature_label_values, options.kubeconfig)
        parts[NODE_METADATA_PART] = lambda: keep(node, metadata, options.kubeconfig)
        parts[NODE_FEATURE_PART] = lambda: keep(node, feature, options.kubeconfig)
        mig_state = MigStateLabelWriter(options.node_name)
        parts[MIG_STATE_PART] = lambda: keep(node, mig_state, options.kubeconfig)
        parts[STARTUP_TAINT_PART] = lambda: keep(node, taint, options.kubeconfig)
        parts[SLICES_PART] = lambda: publish_slices(node, options.node_name, options.kubeconfig)
        claims = ClaimReader(options.kubeconfig)
        fetch = partial(_fetch_claim, node, claims, options.node_name)
        parts[CLAIMS_PART] = lambda: check_claims(node, fetch)
        parts[CLAIM_STATUS_PART] = lambda: keep_claim_status(node, claims)
    if options.registers:
        parts[DRA_PLUGIN_PART] = lambda: keep_dra_driver(node, options, fetch, ours)
    return parts


async def _fetch_claim(node: Node, claims: ClaimReader, node_name: str, claim: ClaimName) -> AllocatedClaim:
    """A claim, with what of it is for our driver. Raises ClaimUnavailable, also for one with another node's device."""
    settings = node.snapshot.config.settings
    found = await claims.fetch(claim, (settings or Settings()).dra.driver)
    if why := foreign_device_problem(found, node_name):
        raise ClaimUnavailable(why)
    return found


def feature_label_values(snapshot: Snapshot) -> Mapping[str, str] | None:
    """The labels that say what GPUs the node has; None while they are not known."""
    labels = feature_labels(snapshot)
    return {key: label.value for key, label in labels.items()} if labels is not None else None


async def _watch(node: Node, source: Source, *, waits: bool) -> None:
    """What a source observes becomes facts. `waits`: until the Node was read, for it may request the driver's release;
    not for long."""
    if waits:
        await wait_for_node_object(node)
    async for fact in source.facts():
        node.apply(fact.but(wall_clock=time.time()) if isinstance(fact, MachineObserved) else fact)


async def _release_driver(node: Node, actor: Actor) -> None:
    """Release the driver while somebody requests that, and take it back afterwards."""
    released = False
    async for snapshot in node.changes(driver_release_reason):
        if bool(driver_release_reason(snapshot)) != released:
            released = not released
            await (actor.release() if released else actor.do(ObserveMachine()))


async def _probe(node: Node, actor: Actor) -> None:
    """Make each requested recovery probe once; what it finds comes back as a fact."""
    done: Mapping[str, float] = {}
    async for snapshot in node.changes(requested_probe_times):
        wanted = requested_probe_times(snapshot)
        for gpu, asked in wanted.items():
            if done.get(gpu) != asked:
                await actor.do(ProbeGpu(gpu=gpu, requested_at=asked))
        done = wanted
