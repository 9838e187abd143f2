"""The first look waits for what our Node says, as long as that is worth it, and not for ever."""

import asyncio

import pytest

from gpuplane.node.agent import firstlook
from gpuplane.node.agent.node import Node
from gpuplane.node.model.config import NodeObjectRequests, PartitionSettings, Settings
from gpuplane.node.model.facts import ConfigLoaded, NodeRequestsChanged
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART

FOLLOWS = ConfigLoaded(Settings(partitions=PartitionSettings(follow_label=True)))
SAID = NodeObjectRequests(mig_config="all-1g.10gb")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REMEMBERED", "FIRST_EVER"):
        monkeypatch.setattr(firstlook, name, 0.01)


async def test_an_unknown_layout_is_waited_for_and_named() -> None:
    """Nothing is looked at, so nothing is offered, until the label was read."""
    node = Node(Snapshot())
    node.apply(FOLLOWS)
    waiting = asyncio.create_task(firstlook.wait_for_node_object(node))
    assert await node.wait_until(lambda snapshot: DRIVER_PART in snapshot.statuses, 60)
    status = node.snapshot.statuses.of(DRIVER_PART)
    assert status is not None
    assert "label" in str(status.text)
    assert not waiting.done()
    node.apply(NodeRequestsChanged(SAID))
    await asyncio.wait_for(waiting, 60)


async def test_the_wait_for_an_unknown_layout_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that stays away does not keep the node out of service."""
    monkeypatch.setattr(firstlook, "FIRST_LAYOUT", 0.05)
    node = Node(Snapshot())
    node.apply(FOLLOWS)
    await asyncio.wait_for(firstlook.wait_for_node_object(node), 60)


async def test_a_layout_that_is_remembered_or_not_followed_is_not_waited_for() -> None:
    """An agent that starts again serves in a moment, also while the API server is away."""
    remembered = Node(Snapshot(ledger=Ledger(node_requests=SAID)))
    remembered.apply(FOLLOWS)
    unfollowed = Node(Snapshot())
    unfollowed.apply(ConfigLoaded(Settings()))
    for node in (remembered, unfollowed):
        await firstlook.wait_for_node_object(node)
        assert DRIVER_PART not in node.snapshot.statuses
