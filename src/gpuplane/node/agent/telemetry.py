"""Samples: what is requested of the sampler, and what is remembered of what it tells.

Telemetry stays beside the snapshot. A sample wakes nobody but this part, and pages are made of the newest one.
"""

import asyncio
import time
from pathlib import Path

from gpuplane.base.pauses import sleep_until_next
from gpuplane.base.strict import InvalidInput
from gpuplane.base.text import format_count, join
from gpuplane.node.core.telemetry.counters import parse_counters
from gpuplane.node.core.telemetry.sampling import sampling_request
from gpuplane.node.core.telemetry.state import TelemetryState, next_state
from gpuplane.node.core.telemetry.usage import containers_of, with_names_of_pods
from gpuplane.node.hardware import Sampler
from gpuplane.node.host.filewatch import watch_file
from gpuplane.node.host.podrecords import PodRecords
from gpuplane.node.model.facts import CountersLoaded, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import COUNTERS_FILE_PART, PROCESS_METRICS_PART, Status
from gpuplane.node.model.telemetry import SamplingRequest

FRESH_FOR = 15.0
"""Seconds for which a sample counts, at the least. Later no readings are shown: they would be old ones."""

READ_FOR = 300.0
"""Seconds after a request for which the metrics count as read: longer than any usual time between two scrapes."""


class Telemetry:
    """The newest state. Belongs to one event loop. `records_root`: kubelet's records of pods are below it."""

    def __init__(self, node: Node, records_root: Path) -> None:
        self._node = node
        self._records = PodRecords(records_root)
        self._state = TelemetryState()
        self._read_at = -READ_FOR
        self._interval = 0.0  # seconds between two samples, as requested last

    def latest(self) -> TelemetryState:
        """What pages are made of. Without the sample, where that is old."""
        sample = self._state.sample
        if sample is not None and self._node.now() - sample.taken_at > max(FRESH_FOR, 3 * self._interval):
            self._state = self._state.but(sample=None)
        return self._state

    def was_read(self) -> None:
        """Somebody reads the metrics. Any thread may say so."""
        self._read_at = time.monotonic()

    async def request_samples(self, sampler: Sampler) -> None:
        """Have what is shown sampled, for ever."""
        requested: SamplingRequest | None = None
        while True:
            is_read = time.monotonic() - self._read_at < READ_FOR
            request = sampling_request(self._node.snapshot, is_read=is_read)
            if request != requested:
                requested, self._interval = request, request.interval
                await sampler.set_sampling(request)
            await sleep_until_next(1.0)

    async def follow_samples(self, sampler: Sampler) -> None:
        """Remember each sample, for ever."""
        async for sample in sampler.samples():
            containers = containers_of(sample)
            if self._records.has_all(containers):
                known = self._records.names(containers)
            else:
                known = await asyncio.to_thread(self._records.names, containers)
            known = with_names_of_pods(known, containers, self._node.snapshot.pods)
            sampled_at = time.time() - (self._node.now() - sample.taken_at)
            self._state = next_state(self._state, self._node.snapshot, sample, known, sampled_at)
            self._report_visibility(is_visible=sample.processes_visible)

    async def follow_counters(self, path: Path) -> None:
        """Follow the admin's list of DCGM fields, for ever. A bad version leaves the last list in force."""
        async for content in watch_file(path):
            try:
                if isinstance(content, OSError):
                    raise InvalidInput([f"{path}: {content.strerror}"])
                found = await asyncio.to_thread(parse_counters, content, str(path))
            except InvalidInput as error:
                self._report_counters(Status("failing", "; ".join((*error.errors, "the last list stays"))))
            else:
                self._node.apply(CountersLoaded(found.counters))
                text = join("; ", (f"{path}: {format_count(len(found.counters), 'field')}", *found.warnings))
                self._report_counters(Status("ok", text, warns=bool(found.warnings)))

    def _report_counters(self, status: Status) -> None:
        self._node.apply(StatusChanged(COUNTERS_FILE_PART, status))

    def _report_visibility(self, *, is_visible: bool) -> None:
        """Say it where processes cannot be seen; else there is nothing to say."""
        before = self._node.snapshot.statuses.of(PROCESS_METRICS_PART)
        if is_visible and before is not None:
            self._node.apply(StatusChanged(PROCESS_METRICS_PART, None))
        elif not is_visible and before is None:
            reason = (
                "the agent does not see the processes of containers, so it does not tell what each of them uses: "
                "add the component process-metrics"
            )
            self._node.apply(StatusChanged(PROCESS_METRICS_PART, Status("waiting", reason)))
