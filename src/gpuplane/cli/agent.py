"""`gpuplane agent`: run the node agent."""

import argparse
import asyncio
import logging
from pathlib import Path

from gpuplane.agent.configure import Source
from gpuplane.agent.main import Options, run
from gpuplane.hardware.described import Described
from gpuplane.host.files import contents


def main(argv: list[str]) -> int:
    """Run until a signal; the exit status."""
    parser = argparse.ArgumentParser(prog="gpuplane agent", description="Run the node agent until it is told to stop.")
    parser.add_argument("--machine", required=True, help="nvml, a profile's name, or a machine file")
    parser.add_argument("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"))
    parser.add_argument("--state-dir", type=Path, default=Path("/var/lib/gpuplane"))
    parser.add_argument("--metrics-address", default="", metavar="HOST:PORT")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    host, _, port = args.metrics_address.rpartition(":")
    options = Options(
        kubelet_root=args.kubelet_root,
        state_dir=args.state_dir,
        config=Source(),
        metrics=(host, int(port)) if port else None,
    )
    machine = Path(args.machine)
    asyncio.run(run(options, Described(contents(machine, every=0.05), machine.name)))
    return 0
