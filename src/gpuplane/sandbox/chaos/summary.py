"""What a play says: how far it has come, and in the end what came of it."""

from collections.abc import Mapping

from gpuplane.model.value import Value


class Moment(Value):
    """How far the play has come."""

    burst: int
    seconds: float
    checks: int  # lists that kubelet was shown, or pods that it admitted
    did: str


class Summary(Value):
    """What came of a play. Memory in KiB: of the first agent once it was warm, and of the last one."""

    machine: str
    seed: int
    minutes: float
    bursts: int
    injections: Mapping[str, int]
    codes: int  # of the fault catalogue that were seen
    checks: Mapping[str, int]
    agent_restarts: int
    kubelet_restarts: int
    memory_begin: int
    memory_end: int
    memory_per_minute: float
    slowest_recovery: float  # seconds, of those with no relapse
    ended_by: str = ""  # the signal, where one ended it before its time
    broken: str = ""
    steps: tuple[str, ...] = ()  # the last ones, where something broke
    log: tuple[str, ...] = ()  # of the agent, then


class HoldingsSummary(Value):
    """What came of a play of holdings."""

    machine: str
    seed: int
    minutes: float
    rounds: int
    injections: Mapping[str, int]
    checks: Mapping[str, int]
    slowest_release: float  # seconds until all was offered, after the last pod had ended
    ended_by: str = ""  # the signal, where one ended it before its time
    broken: str = ""
    steps: tuple[str, ...] = ()  # the last ones, where something broke
    log: tuple[str, ...] = ()  # of the agents, then
