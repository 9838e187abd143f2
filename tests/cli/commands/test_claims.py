"""`gpuplane claims`: of a running agent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from click.testing import CliRunner, Result

from gpuplane.cli.commands.claims import command
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.control import control
from gpuplane.node.agent.node import Node
from gpuplane.node.model.facts import AllocationsListed, ClaimPrepareRequested, StatusChanged
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CLAIM_REQUESTS_PART, ClaimRequestsStatus, RefusedClaim
from tests.node.core.dra.nodes import after, claim, node, written

POD = PodRef(namespace="default", name="train-0", container="main")
LISTED = Allocation(resource="gpu.nvidia.com", devices=("GPU-0",), holder=POD, claim="default/a")
REFUSED = RefusedClaim("default", "c", "claim-device-in-use", "GPU-1 is prepared for claim default/b", 100.0)


def claimed() -> Snapshot:
    """A claim that a container uses, one that watches, one that is being written, and one that was refused."""
    ready = written(
        after(node(), ClaimPrepareRequested(claim("a", 0, 2)), ClaimPrepareRequested(claim("watch", 0, admin=True)))
    )
    refused = StatusChanged(CLAIM_REQUESTS_PART, ClaimRequestsStatus("failing", "1 claim", refused={"c": REFUSED}))
    return after(ready, AllocationsListed((LISTED,), 200.0), ClaimPrepareRequested(claim("b", 1)), refused)


@asynccontextmanager
async def agent(directory: Path, snapshot: Snapshot) -> AsyncIterator[None]:
    """An agent that knows this, and answers."""
    directory.chmod(0o700)
    serving = asyncio.create_task(control(Node(snapshot, now=lambda: 100.0), directory / "control.sock"))
    try:
        while not (directory / "control.sock").exists():
            await asyncio.sleep(0.01)
        yield
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def shown(directory: Path, snapshot: Snapshot, *arguments: str) -> Result:
    async with agent(directory, snapshot):
        words = ["--state-dir", str(directory), *arguments]
        return await asyncio.to_thread(CliRunner().invoke, command, words)


async def test_each_device_of_a_claim_is_a_line(tmp_path: Path) -> None:
    """With who uses it, and what a claim waits for."""
    lines = (await shown(tmp_path, claimed())).stdout.splitlines()
    rows = [line.split("\t") for line in lines]

    assert [row[:6] for row in rows] == [
        ["default/a", "prepared", "gpu", "0", "GPU-0", "default/train-0/main"],
        ["default/a", "prepared", "gpu", "2", "GPU-2", "default/train-0/main"],
        ["default/b", "waiting", "gpu", "1", "GPU-1", "train"],
        ["default/watch", "prepared", "gpu (admin)", "0", "GPU-0", "train"],
        ["default/c", "refused", "", "", "", ""],
    ]
    assert rows[0][6] == ""
    assert all(rows[n][6] for n in (2, 4))


async def test_the_document_has_each_claim(tmp_path: Path) -> None:
    """With all keys."""
    document = json.loads((await shown(tmp_path, claimed(), "--json")).stdout)

    assert document["version"] == 2
    assert [(each["name"], each["state"], each["code"]) for each in document["claims"]] == [
        ("a", "prepared", ""),
        ("b", "waiting", "claim-not-stored"),
        ("watch", "prepared", ""),
        ("c", "refused", "claim-device-in-use"),
    ]
    assert document["claims"][2]["devices"] == [
        {
            "request": "gpu",
            "pool": "n1/gpu-0",
            "device": "gpu-0",
            "uuid": "GPU-0",
            "index": "0",
            "admin_access": True,
            "cdi_device": "k8s.gpu.nvidia.com/claim=watch-gpu-0",
            "time_slice": "",
        }
    ]


async def test_a_node_without_claims_says_so(tmp_path: Path) -> None:
    """To people; a program reads an empty list."""
    found = await shown(tmp_path, node())
    assert (found.stdout, found.exit_code) == ("", 0)
    assert found.stderr
    (tmp_path / "other").mkdir()
    assert json.loads((await shown(tmp_path / "other", node(), "--json")).stdout) == {"version": 2, "claims": []}
