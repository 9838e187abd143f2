"""The changes of GPUs' partitions, one at a time: which is under way, and what came of it."""

from gpuplane.model.facts import PartitionChangeFinished
from gpuplane.model.partitions import CreateGpuInstance, DestroyGpuInstance, GpuPartitionState
from gpuplane.model.snapshot import Snapshot


def finish_change(snapshot: Snapshot, fact: PartitionChangeFinished) -> Snapshot:
    """The snapshot after a change has finished. The result of an earlier change than the pending one is ignored."""
    states = snapshot.ledger.partitions or {}
    state = states.get(fact.gpu)
    if state is None or not state.pending or state.changed_at != fact.requested_at:
        return snapshot
    if fact.failure:
        after = state.but(
            pending=False,
            outcome_unknown=fact.outcome_unknown,
            failed_tries=state.failed_tries + 1,
            problem=fact.problem,
            failure=fact.failure,
            users=fact.users,
        )
    else:
        after = _mark_done(state, fact)
    return snapshot.but(ledger=snapshot.ledger.but(partitions={**states, fact.gpu: after}))


def _mark_done(state: GpuPartitionState, fact: PartitionChangeFinished) -> GpuPartitionState:
    made = state.made
    match fact.change:
        case CreateGpuInstance(profile, start):
            made = tuple(sorted({*made, (profile, start)}))
        case DestroyGpuInstance(_, profile, start):
            made = tuple(each for each in made if each != (profile, start))
        case _:
            pass
    return state.but(made=made, pending=False, outcome_unknown=False, failed_tries=0, problem="", failure="", users=())
