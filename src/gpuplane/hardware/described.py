"""A machine that a YAML file describes, re-read while we run. A bad edit is refused and the last good look stays."""

from collections.abc import AsyncIterator

from gpuplane.core import strict
from gpuplane.model.facts import Action, Fact, Looked, Stood
from gpuplane.model.machine import Machine
from gpuplane.model.snapshot import Condition


class Described:
    """Hardware from the versions of one file, as they come."""

    def __init__(self, versions: AsyncIterator[bytes | OSError], name: str) -> None:
        self._versions, self._name = versions, name

    async def facts(self) -> AsyncIterator[Fact]:
        async for version in self._versions:
            try:
                if isinstance(version, OSError):
                    raise strict.Invalid([f"{self._name}: {version.strerror}"])
                machine = strict.load(version, Machine, self._name)
            except strict.Invalid as error:
                yield Stood("driver", Condition(standing="failing", reason=str(error)))
            else:
                yield Stood("driver", Condition(standing="ok", reason=f"described by {self._name}"))
                yield Looked(machine)

    async def do(self, action: Action) -> None:
        pass

    async def release(self) -> None:
        pass
