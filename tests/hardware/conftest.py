"""The GPUs of this very machine. Their settings are never changed."""

import asyncio
from pathlib import Path

import pytest

from tests.hardware.capture import look
from tests.texts import as_shown


@pytest.fixture(scope="session", autouse=True)
def needs_a_gpu() -> None:
    """Skips, with the reason, where there is no GPU with its driver."""
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU: there is no /dev/nvidiactl")
    machine = asyncio.run(look())
    if not machine.gpus:
        reasons = "; ".join(as_shown(fault.message) for fault in machine.faults)
        pytest.skip(f"needs an NVIDIA GPU with its driver: {reasons or 'the driver counts none'}")
