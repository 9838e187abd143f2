"""The changes of partitions that are under way, as the agent knows them: of each comes exactly one answer.

A change is given to the process that looks. Where that ends before it has answered, the change broke off, and it may
have been made. A reset is made by nvidia-smi, and is told once the next process has looked at the machine, or has
ended without a look.
"""

from collections.abc import Callable

from gpuplane.base.text import Text
from gpuplane.node.hardware.nvidia.driver.migcalls import PROBLEM_OF_ERROR
from gpuplane.node.model.facts import ChangePartition, PartitionChangeFinished
from gpuplane.node.model.partitions import ChangeProblem, GpuUser

NO_PROCESS_REASON = "the driver's process does not run now"


class PendingChanges:
    """`tell`: who wants the answers."""

    def __init__(self, tell: Callable[[PartitionChangeFinished], None]) -> None:
        self._tell = tell
        self._given: list[ChangePartition] = []  # to the process that looks
        self._unseen: list[ChangePartition] = []  # resets that were made, and that no look has shown

    def add(self, action: ChangePartition) -> None:
        """The process that looks is to make it."""
        self._given.append(action)

    def pass_on(self, fact: PartitionChangeFinished) -> None:
        """The process has answered."""
        given = next((each for each in self._given if _is_of(fact, each)), None)
        if given is not None:
            self._given.remove(given)
            self._tell(fact)

    def await_observation(self, action: ChangePartition) -> None:
        """It was made without the process that looks."""
        self._unseen.append(action)

    def report_observed(self) -> None:
        """A look has shown what was made."""
        made, self._unseen = self._unseen, []
        for action in made:
            self.finish(action)

    def fail_all(self, why: Text) -> None:
        """The process that looks has ended, or there will be none."""
        broken, self._given, self._unseen = [*self._given, *self._unseen], [], []
        for action in broken:
            self.finish(action, "failed", why, is_unsure=True)

    def finish(
        self,
        action: ChangePartition,
        problem: ChangeProblem = "",
        failure: Text = "",
        users: tuple[GpuUser, ...] = (),
        *,
        is_unsure: bool = False,
    ) -> None:
        """Answer a change that the process that looks does not make."""
        self._tell(
            PartitionChangeFinished(
                gpu=action.gpu,
                change=action.change,
                requested_at=action.requested_at,
                problem=problem,
                failure=failure,
                users=users,
                outcome_unknown=is_unsure,
            )
        )


def reset_problem(error: str, users: tuple[GpuUser, ...]) -> ChangeProblem:
    """What it means that nvidia-smi ended with the number of this NVML error ("" for none) while these use the GPU."""
    problem = PROBLEM_OF_ERROR.get(error, "failed")
    return "in-use" if problem == "failed" and users else problem


def _is_of(fact: PartitionChangeFinished, action: ChangePartition) -> bool:
    return (fact.gpu, fact.requested_at) == (action.gpu, action.requested_at)
