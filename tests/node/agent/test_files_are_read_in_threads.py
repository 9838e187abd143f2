"""The agent reads files in threads. What two of them read at once for the first time must not crash the process."""

import subprocess
import sys

PROGRAM = """
import sys
import threading

from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.core.partitions.migparted import parse_configs
from gpuplane.node.hardware.described.machinefile import read_machine

FILES = (
    (read_machine, b"gpus: [{index: 0, uuid: GPU-0, model: NVIDIA L40S, memory_mib: 46068, pci: '0000:01:00.0'}]"),
    (resolve_settings, b"version: v1\\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}"),
    (parse_configs, b"version: v1\\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]}"),
)
sys.setswitchinterval(1e-5)
done = []
together = threading.Barrier(2 * len(FILES))


def run(function, content):
    together.wait()
    function(content, "file")
    done.append(content)


threads = [threading.Thread(target=run, args=each, daemon=True) for each in FILES * 2]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(done))
"""
RUNS = 5


def test_files_of_one_kind_can_be_read_at_once() -> None:
    """msgspec 0.22 builds what it knows of a type at its first use; two threads that do so at once crash or hang."""
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)

        assert (done.returncode, done.stdout.split()) == (0, ["6"]), done.stderr[-500:]
