"""What a claim gets, what it does not get, and what others get meanwhile."""

from collections import Counter

import pytest

from gpuplane.kubernetes.contracts.claimconfig import GpuConfig
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.dra.checking import doubtful_claims
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.core.dra.preparing import (
    MAX_REMEMBERED_CLAIMS,
    claim_problem,
    foreign_device_problem,
    is_claim_gone,
    prepare_problem,
)
from gpuplane.node.core.kinds.nvidia.claimconfigs import gpu_config
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, OpaqueConfig
from gpuplane.node.model.config import DraSettings, Settings
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    LedgerLoaded,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.machine import Fault, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import STATE_DIRECTORY_PART, TurnStatus
from tests.node.core.dra.nodes import DRA, GPUS, MACHINE, after, claim, node, written

GPU = "nvidia.com/gpu"


def code(snapshot: Snapshot, asked: AllocatedClaim) -> str:
    """Why a claim is refused; "" where it is not."""
    why = prepare_problem(snapshot, asked)
    return why.code if why is not None else ""


def not_given_out(snapshot: Snapshot) -> set[str]:
    """The ids that kubelet is told are unhealthy."""
    return {device.id for resource in offer(snapshot).resources for device in resource.devices if device.reasons}


def test_a_claim_gets_its_gpus_once_all_is_on_disk() -> None:
    """Its promise first, and the file that its containers need."""
    promised = after(node(), ClaimPrepareRequested(claim("a", 0, 2)))
    assert (why := claim_problem(promised, "a")) is not None
    assert (why.kind, why.code) == ("waiting", "claim-not-stored")

    ready = written(promised)
    assert claim_problem(ready, "a") is None
    [prepared] = (ready.ledger.claims or {}).values()
    assert [(each.unit, each.cdi_id) for each in prepared.devices] == [
        ("GPU-0", "k8s.gpu.nvidia.com/claim=a-gpu-0"),
        ("GPU-2", "k8s.gpu.nvidia.com/claim=a-gpu-2"),
    ]
    spec = claim_specs(ready)["a"]
    assert [device.name for device in spec.devices] == ["a-gpu-0", "a-gpu-2"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec.container_edits.env
    assert [node.path for node in spec.devices[1].container_edits.device_nodes] == ["/dev/nvidia2"]


def test_a_claim_that_is_allocated_anew_gets_its_new_devices() -> None:
    """The scheduler gives the old ones to others, who are served."""
    first = after(node(), ClaimPrepareRequested(claim("a", 0)))
    anew = after(first, ClaimPrepareRequested(claim("a", 1)))
    assert [each.unit for each in (anew.ledger.claims or {})["a"].devices] == ["GPU-1"]
    assert prepare_problem(anew, claim("b", 0)) is None

    both = after(first, ClaimPrepareRequested(claim("b", 1)))
    assert code(both, claim("a", 1)) == "claim-device-in-use"
    assert both.ledger.claims == after(both, ClaimPrepareRequested(claim("a", 1))).ledger.claims


@pytest.mark.parametrize("pool", ["n2/gpu-0", "gpu-0", "n1/gpu-1", "n1/x/gpu-0", ""])
def test_a_device_of_another_pool_is_not_this_nodes(pool: str) -> None:
    """Pool and device both have to be ours."""
    ours = claim("a", 0)
    assert foreign_device_problem(ours, "n1") is None
    problem = foreign_device_problem(ours.but(devices=(ours.devices[0].but(pool=pool),)), "n1")
    assert problem is not None
    assert problem.code == "claim-device-unknown"


@pytest.mark.parametrize("request_", ["..", "a/../b", "", "a/", "/a", "a/b/c", "a\0b", "A", "x" * 64, "a\n", "é"])
def test_a_request_that_the_api_would_not_take_is_refused(request_: str) -> None:
    """It becomes a part of paths."""
    asked = claim("a", 0)
    assert code(node(), asked.but(devices=(asked.devices[0].but(request=request_),))) == "claim-malformed"
    assert code(node(), asked.but(devices=(asked.devices[0].but(request="main/sub"),))) == ""


def test_a_list_that_is_older_than_the_unprepare_brings_no_promise_back() -> None:
    """Kubelet lists the containers of a claim that ended since it was asked."""
    pod = PodRef(namespace="default", name="pod", container="main")
    held = Allocation("gpu.nvidia.com", ("GPU-0",), holder=pod, claim="default/a")
    snapshot = after(node(), ClaimPrepareRequested(claim("a", 0)), AllocationsListed((held,), 90.0))
    ended = after(snapshot, ClaimUnprepareRequested(claim("a", 0).claim), now=100.0)
    late = after(ended, AllocationsListed((held,), 95.0), now=101.0)

    assert [doubtful_claims(each).unpromised for each in (snapshot, ended, late)] == [(), (), ()]
    since = after(late, AllocationsListed((held,), 102.0), now=103.0)
    assert [str(each) for each in doubtful_claims(since).unpromised] == ["default/a"]


def test_a_promise_stands_whatever_is_asked_or_told_again() -> None:
    """Another Prepare, another look, another configuration: the same promise, until the Unprepare."""
    ready = written(after(node(), ClaimPrepareRequested(claim("a", 0))))
    again = after(
        ready,
        ClaimPrepareRequested(claim("a", 0)),
        MachineObserved(MACHINE.but(gpus=None, faults=(Fault("driver-hang", "it hangs"),))),
        ConfigLoaded(Settings(dra=DraSettings(enabled=False))),
    )
    assert again.ledger.claims == ready.ledger.claims
    assert claim_problem(again, "a") is None

    gone = after(
        again,
        ClaimUnprepareRequested(ClaimName("default", "a", "a")),
        ClaimUnprepareRequested(ClaimName("default", "unknown", "unknown")),
    )
    assert gone.ledger.claims is None
    assert not is_claim_gone(gone, "a")
    assert is_claim_gone(written(gone), "a")


def test_no_gpu_is_in_two_claims() -> None:
    """Nor in one and in a container of the device plugin; admin access is beside all."""
    first = after(node(), ClaimPrepareRequested(claim("a", 0)))

    assert code(first, claim("b", 0)) == "claim-device-in-use"
    assert after(first, ClaimPrepareRequested(claim("b", 0))) is first
    assert code(first, claim("b", 1)) == ""
    assert code(first, claim("watch", 0, 1, admin=True)) == ""
    watched = after(first, ClaimPrepareRequested(claim("watch", 0, 1, admin=True)))
    assert code(watched, claim("b", 1)) == ""

    train = PodRef("default", "train", container="main")
    why = prepare_problem(node(held=(Allocation(GPU, ("GPU-1",), train),)), claim("b", 1))
    assert why is not None
    assert f"{why.text}".startswith(f"container {train} ")

    held = after(node(), AllocateAnswered(GPU, ("GPU-1",)))
    assert code(held, claim("b", 1)) == "claim-device-in-use"
    assert code(held, claim("b", 1, admin=True)) == ""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often it was made what a claim of one device gets."""
    counts = Counter[str]()

    def count(claim: AllocatedClaim, allocated: AllocatedDevice) -> GpuConfig | None:
        counts[claim.claim.uid] += 1
        return gpu_config(claim, allocated)

    monkeypatch.setattr("gpuplane.node.core.kinds.nvidia.claimconfigs.gpu_config", count)
    return counts


def test_what_a_claim_gets_is_made_once(made: Counter[str]) -> None:
    """However many claims wait, and whatever happens meanwhile that does not concern them; and anew where it does."""
    snapshot, first, second = node(), claim("a", 0), claim("b", 1)
    for n in range(5):
        snapshot = after(snapshot, StatusChanged(STATE_DIRECTORY_PART, TurnStatus("ok", f"round {n}")))
        assert [code(snapshot, each) for each in (first, second)] == ["", ""]
    snapshot = after(snapshot, ClaimPrepareRequested(first))
    assert made == {"a": 1, "b": 1}

    assert code(snapshot, second) == ""
    assert made == {"a": 1, "b": 2}
    assert code(after(snapshot, AllocateAnswered(GPU, ("GPU-1",))), second) == "claim-device-in-use"


def test_what_claims_get_is_not_remembered_for_ever(made: Counter[str]) -> None:
    """Claims come and go for as long as the agent runs."""
    snapshot, claims = node(), [claim(f"a-{n}", 0) for n in range(MAX_REMEMBERED_CLAIMS + 1)]
    for each in (*claims, claims[-1], claims[0]):
        assert code(snapshot, each) == ""
    assert made == {each.claim.uid: 2 if each is claims[0] else 1 for each in claims}


def test_the_device_plugin_gives_out_no_claimed_gpu() -> None:
    """From the promise to the end of the pod, as kubelet lists it."""
    pod = PodRef(namespace="default", name="train", container="main")
    listed = Allocation(resource="gpu.nvidia.com", devices=("GPU-0",), holder=pod, claim="default/a")
    first = after(node(), ClaimPrepareRequested(claim("a", 0)))
    assert not_given_out(first) == {"GPU-0"}
    first = after(first, AllocationsListed((), 200.0), now=500.0)  # its container has not started yet
    assert not_given_out(first) == {"GPU-0"}
    shown = after(first, AllocationsListed((listed,), 600.0))
    assert not_given_out(shown) == {"GPU-0"}
    assert shown.allocations == (listed,)
    ended = after(shown, ClaimUnprepareRequested(ClaimName("default", "a", "a")))
    assert not_given_out(ended) == {"GPU-0"}
    assert not_given_out(after(ended, AllocationsListed((), 700.0))) == set()
    assert not_given_out(after(first, ClaimUnprepareRequested(ClaimName("default", "a", "a")))) == set()
    assert not_given_out(after(node(), ClaimPrepareRequested(claim("a", 0, admin=True)))) == set()


def test_another_agent_knows_of_the_claims() -> None:
    """A promise is withheld from the first moment after a restart."""
    before = after(node(), ClaimPrepareRequested(claim("a", 3)))
    restarted = after(
        Snapshot(), LedgerLoaded(before.ledger), ConfigLoaded(DRA), MachineObserved(MACHINE), AllocationsListed((), 1.0)
    )
    assert not_given_out(restarted) == {"GPU-3"}
    assert claim_specs(restarted) == claim_specs(before)


@pytest.mark.parametrize(
    ("snapshot", "asked", "why"),
    [
        (Snapshot(), claim("a", 0), "config-missing"),
        (node(Settings()), claim("a", 0), "dra-disabled"),
        (after(Snapshot(), ConfigLoaded(DRA)), claim("a", 0), "machine-not-observed"),
        (after(Snapshot(), ConfigLoaded(DRA), MachineObserved(MACHINE)), claim("a", 0), "allocations-unknown"),
        (node(), claim("a"), "claim-not-allocated"),
        (node(), claim("a", 0).but(is_allocated=False), "claim-not-allocated"),
        (node(), claim("a", 9), "claim-device-unknown"),
        (node(), claim("a").but(devices=(AllocatedDevice("gpu", "n1", "gpu-0"),)), "claim-device-unknown"),
        (node(), claim("../../etc", 0), "claim-malformed"),
        (node(), claim("a", *range(1025)), "claim-too-many-devices"),
        (node(), claim("a", 0, configs=(OpaqueConfig("{}"),)), "claim-config-invalid"),
        (node(machine=Machine(gpus=GPUS)), claim("a", 0), "cdi-no-device"),
    ],
)
def test_a_claim_that_cannot_be_prepared(snapshot: Snapshot, asked: AllocatedClaim, why: str) -> None:
    """It is refused with a reason, and nothing is kept of it."""
    assert code(snapshot, asked) == why
    assert after(snapshot, ClaimPrepareRequested(asked)).ledger.claims is None


def test_a_gpu_with_mig_devices_is_no_whole_gpu() -> None:
    """For a claim that was allocated before its mode was changed; a MIG device that is held is named."""
    device = MigDevice("MIG-0", "3g.40gb", gpu_instance=1, mig_index=0, memory_mib=40192)
    split = MACHINE.but(gpus=(GPUS[0].but(mig=Mig(enabled=True, devices=(device,))), *GPUS[1:]))
    assert code(node(machine=split), claim("a", 0)) == "mig-mode"


def test_a_full_disk_is_said() -> None:
    """The promise is not made without it."""
    full = after(
        node(),
        ClaimPrepareRequested(claim("a", 0)),
        StatusChanged(STATE_DIRECTORY_PART, TurnStatus("failing", "No space left on device")),
    )
    assert (why := claim_problem(full, "a")) is not None
    assert (why.kind, why.code) == ("problem", "claim-not-stored")
    assert "No space left" in str(why.text)
