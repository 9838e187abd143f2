"""Work that goes on until something happens."""

import asyncio

import pytest

from gpuplane.base.tasks import run_until


class Works:
    """Who runs, and who was cancelled."""

    def __init__(self) -> None:
        self.cancelled = set[str]()

    async def endless(self, name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.add(name)
            raise


async def test_the_end_cancels_all_work() -> None:
    works = Works()
    assert not await run_until(asyncio.sleep(0.01), works.endless("a"), works.endless("b"))
    assert works.cancelled == {"a", "b"}


async def test_work_that_returns_ends_the_rest() -> None:
    works = Works()
    assert await run_until(works.endless("end"), asyncio.sleep(0.01), works.endless("b"))
    assert works.cancelled == {"end", "b"}


async def test_what_raises_is_raised_and_ends_the_rest() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    works = Works()
    with pytest.raises(ValueError, match="broken"):
        await run_until(works.endless("end"), works.endless("a"), fail())
    assert works.cancelled == {"end", "a"}


async def test_who_is_cancelled_leaves_nothing_running() -> None:
    works = Works()
    task = asyncio.create_task(run_until(works.endless("end"), works.endless("a")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert works.cancelled == {"end", "a"}
