"""What has to be sampled for what is shown."""

from gpuplane.node.core.serving import may_serve
from gpuplane.node.core.telemetry.counters import DEFAULT_COUNTERS
from gpuplane.node.core.telemetry.state import ACTIVITY
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import MetricsSettings
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.telemetry import SAMPLED_FIELDS, DcgmCounter, SamplingRequest

OWN_FIELDS = (*ACTIVITY, "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_NVLINK_TX_BYTES", "DCGM_FI_DEV_NVLINK_RX_BYTES")
"""What series of our own are made of."""

NOTHING = SamplingRequest(processes=False)


UNREAD_INTERVAL = 10.0
"""Seconds between two samples while nobody reads them; then they only tell for how long devices are idle."""


def sampling_request(snapshot: Snapshot, *, is_read: bool) -> SamplingRequest:
    """What to sample now. An agent that stands by for another samples nothing: else both would show each device.

    `is_read`: whether somebody has read the metrics lately.
    """
    settings = snapshot.config.settings
    if settings is None or not may_serve(snapshot):
        return NOTHING
    request = _request.of(snapshot, settings.metrics, snapshot.config.counters)
    if is_read:
        return request
    interval = max(UNREAD_INTERVAL, request.interval)
    return request.but(interval=interval, slow_interval=max(interval, request.slow_interval))


@part_view
def _request(settings: MetricsSettings, counters: tuple[DcgmCounter, ...]) -> SamplingRequest:
    shown = {each.field for each in counters or DEFAULT_COUNTERS} if settings.dcgm_names else set()
    fields = tuple(sorted(SAMPLED_FIELDS.keys() & {*shown, *OWN_FIELDS}))
    return SamplingRequest(
        fields=fields, processes=True, interval=settings.interval, slow_interval=settings.slow_interval
    )
