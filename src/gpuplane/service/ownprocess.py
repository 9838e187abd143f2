"""What the kernel tells of a daemon's own process, under the names that every Prometheus client library gives it."""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from gpuplane import __version__
from gpuplane.base.files import read
from gpuplane.base.metrics import Labels, Metric

NO_LABELS = Labels()
STATM_FILE = Path("/proc/self/statm")
STARTED_AT = time.time()


def process_metrics() -> Iterator[Metric]:
    """CPU time, memory and age of this process, and which version it is."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(read(STATM_FILE, 4096).split()[1])
    for name, kind, help, value in (
        ("process_cpu_seconds_total", "counter", "CPU time of the process, in seconds", used.ru_utime + used.ru_stime),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Memory of the process, in bytes",
            pages * os.sysconf("SC_PAGESIZE"),
        ),
        ("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970", STARTED_AT),
    ):
        yield Metric(
            name=name, kind="counter" if kind == "counter" else "gauge", help=help, series=((NO_LABELS, value),)
        )
    yield Metric(
        name="gpuplane_build_info",
        kind="gauge",
        help="1, with the version of gpuplane",
        series=((Labels(version=__version__), 1.0),),
    )
