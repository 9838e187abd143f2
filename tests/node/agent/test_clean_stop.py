"""A clean stop: what the agent knows is on disk before it ends."""

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from gpuplane.node.agent.main import Options, run
from gpuplane.node.hardware.described.source import Described
from gpuplane.node.host.filewatch import watch_file
from gpuplane.node.host.state import boot_id, load_ledger
from gpuplane.node.model.control import ControlRequest, ControlResponse, GetNodeState
from gpuplane.node.model.encoding import decode

MACHINE = "gpus: [{index: 0, uuid: GPU-0, pci: '0000:01:00.0'}]\n"


async def ask(socket: Path, request: ControlRequest) -> ControlResponse:
    """What the agent answers on its control socket."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(msgspec.json.encode(request) + b"\n")
    answer = decode(await reader.readline(), ControlResponse)
    writer.close()
    return answer


async def knows(socket: Path, code: str) -> bool:
    """Whether the agent has a verdict of this code."""
    if not socket.exists():
        return False
    picture = (await ask(socket, GetNodeState())).state
    health = picture.snapshot.ledger.health if picture else None
    return health is not None and any(f.code == code for r in health.devices.values() for f in r.findings)


async def test_what_has_just_happened_is_not_forgotten_by_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the disk is, within reason."""
    sync = os.fsync

    def slowly(fd: int) -> None:
        time.sleep(0.1)
        sync(fd)

    monkeypatch.setattr(os, "fsync", slowly)
    machine, state = tmp_path / "machine.yaml", tmp_path / "state"
    machine.write_text(MACHINE)
    options = Options(kubelet_root=tmp_path / "kubelet", state_dir=state)
    running = asyncio.create_task(run(options, [Described(watch_file(machine, every=0.01), machine.name)]))
    async with asyncio.timeout(60):
        while not (state / "health.json").exists():
            await asyncio.sleep(0.01)
        aside = tmp_path / "new.yaml"
        aside.write_text(MACHINE + "incidents: [{gpu: 0, code: xid-79}]\n")
        aside.replace(machine)
        while not await knows(state / "control.sock", "xid-79"):
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    ledger, problems = load_ledger(state, boot_id())
    assert not problems
    assert ledger.health is not None
    assert [finding.code for finding in ledger.health.devices["GPU-0"].findings] == ["xid-79"]
