"""Of all candidates one leads, whatever becomes of requests, connections, candidates and the Lease."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

from gpuplane.kubernetes.client.api import ApiClient
from gpuplane.service.leaderelection import Candidate, ElectionTimes
from tests.lengths import length
from tests.service.leases import Connection, LeaseServer
from tests.service.virtualtime import run_in_virtual_time


class TwoLeaders(Exception):
    """Their names."""


class Election:
    """Candidates for one Lease. `leaders`: who did the leader's work, and when."""

    def __init__(self, seed: int = 0, trouble: float = 0.0) -> None:
        self.server, self.chance, self.trouble = LeaseServer(), random.Random(seed), trouble
        self.connections: dict[str, Connection] = {}
        self.candidates: dict[str, Candidate] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.leaders: list[tuple[float, str]] = []

    def start(self, name: str) -> None:
        """A candidate that wants to lead again and again."""
        self.connections[name] = connection = Connection(self.server, self.chance, self.trouble)
        client = cast(ApiClient, connection)
        self.candidates[name] = Candidate(client, "ns", "x", name, now=asyncio.get_running_loop().time)
        self.tasks[name] = asyncio.create_task(self._lead(name))

    async def _lead(self, name: str) -> None:
        while True:
            await self.candidates[name].lead(lambda: self._work(name))

    async def _work(self, name: str) -> None:
        while True:
            if self.candidates[name].is_leader():
                self.leaders.append((asyncio.get_running_loop().time(), name))
                others = [each for each, other in self.candidates.items() if each != name and other.is_leader()]
                if others:
                    raise TwoLeaders(name, *others)
            await asyncio.sleep(0.1)

    def kill(self, name: str) -> None:
        """As SIGKILL does: nothing is released."""
        candidate = self.candidates.pop(name)
        candidate._release = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        self.tasks.pop(name).cancel()

    async def stop(self, name: str) -> None:
        """As SIGTERM does."""
        task = self.tasks.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        del self.candidates[name]

    async def end(self) -> None:
        """No candidate has failed, and all end."""
        for task in self.tasks.values():
            if task.done():
                task.result()
        for name in tuple(self.tasks):
            await self.stop(name)

    def led_by(self, since: float) -> set[str]:
        """Who led after that moment."""
        return {name for at, name in self.leaders if at >= since}


def play(election: Election, story: Coroutine[Any, Any, None]) -> None:
    """A story in virtual time."""

    async def played() -> None:
        await story
        await election.end()

    run_in_virtual_time(played())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_leads_and_the_second_waits() -> None:
    """The Lease says who, since when and for how long, in Kubernetes' words."""
    election = Election()

    async def story() -> None:
        election.start("a")
        await asyncio.sleep(1)
        election.start("b")
        await asyncio.sleep(60)
        assert election.led_by(0) == {"a"}
        spec = election.server.spec
        assert spec is not None
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
        assert spec["acquireTime"] <= spec["renewTime"]

    play(election, story())


def test_a_leader_that_ends_is_followed_at_once() -> None:
    """It releases the Lease: the next one does not wait for it to expire."""
    election = Election()

    async def story() -> None:
        election.start("a")
        await asyncio.sleep(1)
        election.start("b")
        await asyncio.sleep(10)
        ended = now()
        await election.stop("a")
        await asyncio.sleep(4)
        assert election.led_by(ended) == {"b"}
        assert election.server.spec is not None
        assert election.server.spec["leaseTransitions"] == 1

    play(election, story())


def test_a_leader_that_is_killed_is_followed_after_its_lease() -> None:
    """Not before: it may only be slow."""
    election = Election()

    async def story() -> None:
        election.start("a")
        await asyncio.sleep(1)
        election.start("b")
        await asyncio.sleep(10)
        killed = now()
        election.kill("a")
        await asyncio.sleep(12)
        assert election.led_by(killed) == set()
        await asyncio.sleep(8)
        assert election.led_by(killed) == {"b"}

    play(election, story())


def test_a_leader_without_a_connection_stops_before_another_begins() -> None:
    """And stands again when it has one."""
    election = Election()

    async def story() -> None:
        election.start("a")
        await asyncio.sleep(1)
        election.start("b")
        await asyncio.sleep(10)
        election.connections["a"].is_cut = True
        cut = now()
        await asyncio.sleep(30)
        last = max(at for at, name in election.leaders if name == "a")
        first = min(at for at, name in election.leaders if name == "b")
        assert cut < last < first
        assert last <= cut + 10.1
        election.connections["a"].is_cut = False
        await asyncio.sleep(20)
        back = now()
        await election.stop("b")
        await asyncio.sleep(10)
        assert election.led_by(back) == {"a"}

    play(election, story())


def test_a_lease_that_is_deleted_makes_no_second_leader() -> None:
    """A candidate who has seen the leader waits for its time to be over; the leader makes the Lease again."""
    election = Election()

    async def story() -> None:
        election.start("a")
        await asyncio.sleep(1)
        election.start("b")
        await asyncio.sleep(10)
        deleted = now()
        election.server.spec = None
        await asyncio.sleep(30)
        assert election.led_by(deleted) == {"a"}

    play(election, story())


def test_work_that_is_done_releases_the_lease() -> None:
    """And what it raises comes out."""
    election = Election()

    async def story() -> None:
        client = cast(ApiClient, Connection(election.server, election.chance))
        done = Candidate(client, "ns", "x", "done", now=now)
        await done.lead(lambda: asyncio.sleep(1))
        assert not done.is_leader()
        assert election.server.spec is not None
        assert election.server.spec["holderIdentity"] == ""

        async def fail() -> None:
            raise OSError("broken")

        with pytest.raises(OSError, match="broken"):
            await done.lead(fail)
        assert election.server.spec["holderIdentity"] == ""

    play(election, story())


@pytest.mark.parametrize("times", [ElectionTimes(10, 10, 2), ElectionTimes(15, 2, 2), ElectionTimes(15, 10, 9)])
def test_times_by_which_two_could_lead_are_refused(times: ElectionTimes) -> None:
    """As client-go refuses them."""
    with pytest.raises(ValueError, match="lease"):
        Candidate(cast(ApiClient, None), "ns", "x", "a", times)


def test_never_two_leaders_in_a_random_history(seed: int) -> None:
    """Requests are late or lost, connections are cut, candidates are killed and come back, the Lease is changed."""
    for i in range(length(10, 200)):
        election = Election(seed + i, trouble=0.2)
        chance = election.chance

        async def story(election: Election = election, chance: random.Random = chance) -> None:
            for name in "abc":
                election.start(name)
            for _ in range(60):
                await asyncio.sleep(chance.uniform(0, 15))
                name = chance.choice("abc")
                match chance.randrange(5):
                    case 0:
                        election.connections[name].is_cut ^= True
                    case 1 if name in election.tasks:
                        election.kill(name)
                    case 2 if name in election.tasks:
                        await election.stop(name)
                    case 3 if election.server.spec is not None:
                        election.server.writes += 1  # somebody labels it
                    case _ if name not in election.tasks:
                        election.start(name)
            if not election.tasks:
                election.start("a")
            for connection in election.connections.values():
                connection.is_cut, connection.trouble = False, 0.0
            calm = now()
            await asyncio.sleep(120)  # requests of before may take a minute
            assert election.led_by(calm + 90), "somebody leads when all is well"

        play(election, story())
