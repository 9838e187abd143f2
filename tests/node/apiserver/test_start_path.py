"""What the agent's start does not import."""

import subprocess
import sys

HEAVY = {"lightkube", "httpx2", "numpy", "rich", "click", "prometheus_client", "pynvml", "cryptography"}
SCRIPT = """
import sys
import gpuplane.node.agent.main, gpuplane.cli.commands.agent.main
import gpuplane.node.hardware.nvidia.source, gpuplane.node.hardware.described.source
print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
import gpuplane.node.apiserver.node
print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
print(*sorted(name for name in sys.modules if "_pb2" in name and ("dra" in name or "registration" in name)))
"""


def test_the_start_imports_nothing_heavy() -> None:
    """Neither the agent's command nor the watch of our Node brings a library in before it is needed, nor what serves
    DRA, which may be disabled."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *HEAVY], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("\n\n\n", "")
