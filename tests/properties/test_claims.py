"""Random histories of claims, with real files: promises, crashes at any write, faults, kubelet's lists, other pods.

What holds at every moment: no GPU is in two exclusive claims, nor in one and in a container of the device plugin; what
was answered once stays the same, in the ledger and in the claim's file; nothing is left of what was unprepared.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as of
from hypothesis import strategies as st

from gpuplane.base import files
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprint
from gpuplane.node.core.dra.checking import doubtful_claims, is_over
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.core.dra.names import claim_file_name
from gpuplane.node.core.dra.preparing import claim_problem, is_claim_gone, is_prepared_as_allocated, prepare_problem
from gpuplane.node.core.step import step
from gpuplane.node.host import state
from gpuplane.node.host.cdi import claimfiles
from gpuplane.node.model.claims import AllocatedClaim, ClaimName, PreparedClaim
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    Fact,
    LedgerLoaded,
    LedgerStored,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.machine import Fault, Machine
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot, StoredLedger
from gpuplane.node.model.status import CLAIM_FILES_PART, ClaimFilesStatus
from tests.lengths import length
from tests.node.core.dra.nodes import DRA, GPUS, MACHINE, claim

DRIVER, GPU = "gpu.nvidia.com", "nvidia.com/gpu"
LOST = (Fault("gpu-lost", "it has fallen off the bus"),)
MACHINES = (
    MACHINE,
    MACHINE,
    MACHINE.but(gpus=(GPUS[0].but(faults=LOST), *GPUS[1:])),
    MACHINE.but(gpus=GPUS[1:]),
    Machine(faults=(Fault("driver-hang", "it hangs"),)),
)
CLAIMS = tuple(
    claim(f"{name}-{time}", *gpus, name=name, admin=name == "watch")
    for name, gpus in (("a", (0,)), ("b", (0, 1)), ("c", (1, 2)), ("d", (3,)), ("watch", (0, 3)))
    for time in (1, 2, 3)
)


class Crash(BaseException):
    """The agent ends where it stands."""


class Site:
    """An agent with its files, kubelet and the API server's claims, each as simple as it can be."""

    def __init__(self, root: Path) -> None:
        self.state, self.cdi = root / "state", root / "cdi"
        self.state.mkdir(mode=0o700)
        self.cdi.mkdir(mode=0o755)
        self.now = 100.0
        self.answers: dict[str, PreparedClaim] = {}  # what kubelet was told, until it is unprepared
        self.asked: set[str] = set()  # what kubelet wants to be prepared
        self.leaving: set[str] = set()  # of which kubelet wants to be rid
        self.containers: dict[str, Allocation] = {}  # what containers hold, by who
        self.listed_at = 0.0
        self.held: list[tuple[float, dict[str, Allocation]]] = []  # what they held, and when
        self.gone: set[str] = set()  # what was unprepared, and not asked for again
        self.api: dict[str, AllocatedClaim] = {}  # the claims that exist, by name
        self.deleted: set[str] = set()  # UIDs, which never come again
        self.start()

    def start(self) -> None:
        """An agent after another: it loads what lies there, looks, and asks kubelet."""
        ledger, problems = state.load_ledger(self.state, "boot")
        assert problems == []
        assert self.gone.isdisjoint(ledger.claims or {})
        self.snapshot = Snapshot(ledger=Ledger(boot_id="boot"))
        self.apply(LedgerLoaded(ledger))
        self.apply(ConfigLoaded(DRA))
        self.writer = state.LedgerWriter(self.state, claims=[f"claims/{uid}" for uid in ledger.claims or {}])
        self.seen: dict[str, claimfiles.SeenClaimFile] = {}
        self.apply(MachineObserved(MACHINE))
        self.list(late=False)

    def apply(self, fact: Fact) -> None:
        self.now += 1.0
        before, self.snapshot = self.snapshot, step(self.snapshot, fact, self.now)
        if not isinstance(fact, (AllocationsListed, AllocateAnswered, LedgerLoaded)):
            assert self.snapshot.allocations is before.allocations  # only kubelet says what containers hold
        self.check()

    def list(self, late: bool) -> None:
        """Kubelet lists what containers hold; late: as it was when it was asked, before all that has just happened."""
        self.held.append((self.now, dict(self.containers)))
        asked_at = max(self.listed_at, self.now - (50.0 if late else 0.0))  # one list after the other
        self.listed_at = asked_at
        held = next((held for at, held in reversed(self.held) if at <= asked_at), {})
        self.apply(AllocationsListed(tuple(held.values()), asked_at))

    def prepare(self, asked: AllocatedClaim, *, starts: bool) -> None:
        """Kubelet asks; where it is answered, the containers start, or not yet."""
        uid = asked.claim.uid
        if uid in self.leaving or not self.create(asked):
            return
        self.gone.discard(uid)
        self.asked.add(uid)
        if prepare_problem(self.snapshot, asked) is None:
            self.apply(ClaimPrepareRequested(asked))
        self.answer(uid)
        if starts and uid in self.answers:
            pod = PodRef(namespace="default", name=f"pod-{uid}", container="main")
            units = tuple(each.unit for each in self.answers[uid].devices if not each.allocated.is_admin)
            if units:
                self.containers[uid] = Allocation(DRIVER, units, holder=pod, claim=f"default/{asked.claim.name}")

    def create(self, wanted: AllocatedClaim) -> bool:
        """Have a claim in the API server, in the place of another of its name; whether it is there."""
        there = self.api.get(wanted.claim.name, wanted)
        if wanted.claim.uid in self.deleted or (there.claim == wanted.claim and there != wanted):
            return False
        if self.api.get(wanted.claim.name) != wanted:
            self.delete(wanted.claim.name)
        self.api[wanted.claim.name] = wanted
        return True

    def reallocate(self, old: AllocatedClaim) -> None:
        """A claim is allocated anew while kubelet is away, which asks for it, and knows nothing of its old devices."""
        uid = old.claim.uid
        if self.api.get(old.claim.name) != old or uid in self.leaving:
            return
        devices = (int(each.device.removeprefix("gpu-")) for each in old.devices)
        new = claim(
            uid, *((gpu + 1) % len(GPUS) for gpu in devices), name=old.claim.name, admin=old.devices[0].is_admin
        )
        self.api[old.claim.name] = new
        self.containers.pop(uid, None)
        self.answers.pop(uid, None)
        self.prepare(new, starts=False)
        if prepare_problem(self.snapshot, new) is None and uid in (self.snapshot.ledger.claims or {}):
            promised = (self.snapshot.ledger.claims or {})[uid]
            assert tuple(each.allocated for each in promised.devices) == new.devices

    def delete(self, name: str) -> None:
        """Remove a claim from the API server."""
        if (gone := self.api.pop(name, None)) is not None:
            self.deleted.add(gone.claim.uid)

    def answer(self, uid: str) -> None:
        """What kubelet is told of a claim, where its promise can be used, and is of what it is allocated."""
        there = next((each for each in self.api.values() if each.claim.uid == uid), None)
        if there is not None and not is_prepared_as_allocated(self.snapshot, there):
            if prepare_problem(self.snapshot, there) is not None:
                return
            self.apply(ClaimPrepareRequested(there))
        if uid not in self.leaving and claim_problem(self.snapshot, uid) is None:
            promised = (self.snapshot.ledger.claims or {})[uid]
            assert self.answers.setdefault(uid, promised).devices == promised.devices

    def unprepare(self, uid: str) -> None:
        """The last pod of a claim has ended."""
        self.containers.pop(uid, None)
        self.asked.discard(uid)
        if uid in self.answers:
            self.leaving.add(uid)
        self.apply(ClaimUnprepareRequested(self.name_of(uid)))

    def name_of(self, uid: str) -> ClaimName:
        """A claim by its UID."""
        return next(each.claim for each in CLAIMS if each.claim.uid == uid)

    def check_with_api(self) -> None:
        """The claims that are in doubt are asked about."""
        doubtful = doubtful_claims(self.snapshot)
        for uid in doubtful.unlisted:
            promised = (self.snapshot.ledger.claims or {})[uid]
            found = self.api.get(promised.claim.name)
            if found is None or is_over(promised, found):
                self.answers.pop(uid, None)
                self.asked.discard(uid)
                self.apply(ClaimUnprepareRequested(promised.claim))
        for each in doubtful.unpromised:
            there = self.api.get(each.name)
            if there is not None and prepare_problem(self.snapshot, there) is None:
                self.asked.add(there.claim.uid)
                self.apply(ClaimPrepareRequested(there))
        fresh = self.snapshot.with_memory({})
        assert [prepare_problem(self.snapshot, each) for each in CLAIMS] == [
            prepare_problem(fresh, each) for each in CLAIMS
        ]
        exist = {each.claim.uid for each in self.api.values()}
        assert doubtful_claims(self.snapshot).unlisted.keys() <= exist

    def allocate(self, gpu: int) -> None:
        """A pod of the device plugin gets a GPU, where kubelet believes that it can."""
        id = f"GPU-{gpu}"
        devices = [each for resource in offer(self.snapshot).resources for each in resource.devices]
        held = {id for each in self.containers.values() for id in each.devices if each.resource == GPU}
        if id not in held and any(each.id == id and not each.reasons for each in devices):
            pod = PodRef(namespace="default", name=f"plugin-{gpu}", container="main")
            self.containers[id] = Allocation(GPU, (id,), holder=pod)
            self.apply(AllocateAnswered(GPU, (id,)))

    def write(self, files_first: bool) -> None:
        """Both reconcilers do their work once; kubelet is answered as soon as it can be."""
        for work in (self.write_files, self.write_ledger) if files_first else (self.write_ledger, self.write_files):
            work()
            self.answer_all()

    def write_ledger(self) -> None:
        """As `keep_stored` does."""
        ledger = self.snapshot.ledger
        self.apply(LedgerStored(StoredLedger()))
        if self.writer.write(ledger) is None:
            self.apply(LedgerStored(StoredLedger(ledger=ledger)))

    def answer_all(self) -> None:
        """Each Prepare and Unprepare that waits."""
        for uid in self.asked:
            self.answer(uid)
        for uid in tuple(self.leaving):
            if is_claim_gone(self.snapshot, uid):
                self.leaving.discard(uid)
                self.answers.pop(uid, None)
                self.gone.add(uid)

    def write_files(self) -> None:
        """As `claimfiles` does."""
        claims, specs = self.snapshot.ledger.claims or {}, claim_specs(self.snapshot)
        found = claimfiles.read_claim_files(self.cdi, DRIVER, {})
        for uid in found.keys() - claims.keys():
            claimfiles.store_claim_file(self.cdi, claim_file_name(DRIVER, uid), None)
        for uid, spec in specs.items():
            if uid not in found or found[uid].spec != spec:
                claimfiles.store_claim_file(self.cdi, claim_file_name(DRIVER, uid), spec)
        found = claimfiles.read_claim_files(self.cdi, DRIVER, found)
        says = {uid: spec_fingerprint(each.spec) for uid, each in found.items() if each.spec is not None}
        self.apply(StatusChanged(CLAIM_FILES_PART, ClaimFilesStatus("ok", fingerprints=says)))

    def check(self) -> None:
        """What holds at every moment."""
        owners: dict[str, str] = {}
        for uid, promised in (self.snapshot.ledger.claims or {}).items():
            for each in promised.devices:
                if not each.allocated.is_admin:
                    assert owners.setdefault(each.unit, uid) == uid
        allocations = held_allocations(self.snapshot)
        assert (allocations is None) == (self.snapshot.allocations is None)
        if allocations is not None:
            assert {unit for each in allocations if each.claim for unit in each.devices} >= owners.keys()
            promised_or_granted = (each for each in allocations if not each.holder.identifies_pod)
            ids = Counter((each.resource, id) for each in promised_or_granted for id in each.devices)
            assert set(ids.values()) <= {1}
        for holder, held in self.containers.items():
            if held.resource == GPU:
                taken = [owners[id] for id in held.devices if owners.get(id) in self.answers.keys() - self.leaving]
                assert taken == [], holder
        for uid, promised in self.answers.items():
            if uid not in self.leaving:
                known = (self.snapshot.ledger.claims or {}).get(uid)
                assert known is None or known.devices == promised.devices

    def check_after_writes(self) -> None:
        """What was answered is there, and what is gone has left nothing."""
        left = {uid for uid in self.answers if uid not in self.leaving}
        assert left <= (self.snapshot.ledger.claims or {}).keys()
        there = claimfiles.read_claim_files(self.cdi, DRIVER, {})
        assert left <= there.keys()
        for uid in left:
            spec = there[uid].spec
            names = {device.name for device in (spec.devices if spec is not None else ())}
            assert {each.cdi_id.partition("=")[2] for each in self.answers[uid].devices} == names

    def end(self) -> None:
        """All is unprepared, all pods end: nothing is left."""
        for uid in tuple(self.snapshot.ledger.claims or {}):
            self.unprepare(uid)
        self.containers.clear()
        self.asked.clear()
        self.apply(MachineObserved(MACHINE))
        self.now += 100.0
        self.list(late=False)
        self.write(files_first=False)
        assert self.snapshot.ledger.claims is None
        assert [each for each in self.state.rglob("*.json") if "claims" in each.parts] == []
        assert list(self.cdi.iterdir()) == []


@contextmanager
def crash_at(write: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The agent ends at the nth step of writing: before a file is renamed or removed, or after."""
    left = [write]

    def unlink(path: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        really_unlink(path, missing_ok)

    def replace(path: Path, content: bytes, **named: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        really(path, content, **named)  # type: ignore[arg-type]
        left[0] -= 1
        if left[0] == 0:
            raise Crash

    really, really_unlink = files.replace, Path.unlink
    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", replace)
        patched.setattr(Path, "unlink", unlink)
        yield


OPERATIONS = st.one_of(
    st.tuples(st.just("prepare"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("start"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("start"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("unprepare"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("write"), st.integers(0, 1)),
    st.tuples(st.just("write"), st.integers(0, 1)),
    st.tuples(st.just("crash"), st.integers(1, 6)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("list"), st.integers(0, 1)),
    st.tuples(st.just("look"), st.integers(0, len(MACHINES) - 1)),
    st.tuples(st.just("allocate"), st.integers(0, len(GPUS) - 1)),
    st.tuples(st.just("end pod"), st.integers(0, len(GPUS) - 1)),
    st.tuples(st.just("delete"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("reallocate"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("create again"), st.integers(0, len(CLAIMS) - 1)),
    st.tuples(st.just("check"), st.just(0)),
    st.tuples(st.just("check"), st.just(0)),
)


@pytest.fixture(scope="module")
def unsynced() -> Iterator[None]:
    """A crash of the agent, not of the machine: nothing need be synced."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.fsync", lambda file: None)
        yield


@of(max_examples=length(60, 5000))
@given(operations=st.lists(OPERATIONS, min_size=20, max_size=80))
def test_claims_in_any_history(unsynced: None, operations: list[tuple[str, int]]) -> None:
    """Prepare, unprepare, restart, crash, fault and heal, late lists, claims deleted or created again."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as monkeypatch:
        site = Site(Path(root))
        for what, number in operations:
            match what:
                case "prepare" | "start":
                    site.prepare(CLAIMS[number], starts=what == "start")
                case "reallocate":
                    site.reallocate(CLAIMS[number])
                case "unprepare":
                    site.unprepare(CLAIMS[number].claim.uid)
                case "write":
                    site.write(files_first=bool(number))
                    if site.snapshot.machine is not None and site.snapshot.machine.gpus is not None:
                        site.check_after_writes()
                case "crash":
                    with crash_at(number, monkeypatch):
                        try:
                            site.write(files_first=number % 2 == 0)
                        except Crash:
                            site.start()
                case "restart":
                    site.start()
                case "list":
                    site.list(late=bool(number))
                case "look":
                    site.apply(MachineObserved(MACHINES[number]))
                case "allocate":
                    site.allocate(number)
                case "end pod":
                    site.containers.pop(f"GPU-{number}", None)
                case "delete":
                    site.delete(CLAIMS[number].claim.name)
                case "create again":
                    site.create(CLAIMS[number])
                case "check":
                    site.check_with_api()
        site.end()
