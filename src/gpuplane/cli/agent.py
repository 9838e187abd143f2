"""`gpuplane agent`: run the node agent."""

import argparse
import asyncio
import logging
from pathlib import Path

from gpuplane.agent.main import run


def main(argv: list[str]) -> int:
    """Run until a signal; the exit status."""
    parser = argparse.ArgumentParser(prog="gpuplane agent", description="Run the node agent until it is told to stop.")
    parser.add_argument("--machine", type=Path, required=True, help="a machine file")
    parser.add_argument("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"))
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    asyncio.run(run(args.machine, args.kubelet_root))
    return 0
