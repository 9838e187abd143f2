"""Work that goes on until something happens."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until(end: Coroutine[Any, Any, object], *work: Coroutine[Any, Any, object]) -> bool:
    """Run some work at once, until `end` returns or one of the works does; all others are cancelled.

    Returns whether a work has returned. Raises what one of them raised.
    """
    ending = asyncio.ensure_future(end)
    working = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait((ending, *working), return_when=asyncio.FIRST_COMPLETED)
        for each in (ending, *working):
            if each.done():
                each.result()
        return any(each.done() for each in working)
    finally:
        for each in (ending, *working):
            each.cancel()
        await asyncio.gather(ending, *working, return_exceptions=True)
