"""Many parts of an agent connect at the same moment: when it starts."""

import subprocess
import sys
from pathlib import Path

from gpuplane.sandbox.apiserver.server import ApiServer

CONNECTS = """
import sys, threading
from pathlib import Path
from gpuplane.kubernetes.client.connection import _make_client

sys.setswitchinterval(1e-6)
begin, made = threading.Barrier(12), []

def make():
    begin.wait()
    made.append(_make_client(Path(sys.argv[1])))

threads = [threading.Thread(target=make) for _ in range(12)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(made))
"""


def test_clients_are_made_by_many_threads_at_once(tmp_path: Path) -> None:
    """In a new process each time: what may go wrong is the first use of a type."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(ApiServer(port=1).kubeconfig())
    for _ in range(4):
        made = subprocess.run([sys.executable, "-c", CONNECTS, kubeconfig], capture_output=True, text=True, timeout=60)
        assert (made.returncode, made.stdout) == (0, "12\n"), made.stderr
