"""A follower that remembers what it is told."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gpuplane.kubernetes.client.api import ApiClient, Event
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.objects import ApiObject

T = TypeVar("T", bound=ApiObject)


class Recorder(Generic[T]):
    """Name → each object, as a list and the events after it tell it."""

    def __init__(self) -> None:
        self.objects: dict[str, T] = {}
        self.lists = self.streams = 0
        self.events: list[tuple[str, str]] = []
        self.failures: list[ApiServerError] = []
        self.refuses = 0
        """How many of the next events are refused."""

    async def on_list(self, client: ApiClient, objects: list[T]) -> None:
        self.lists += 1
        self.objects = {each.metadata.name: each for each in objects}

    def on_watch_started(self, client: ApiClient) -> None:
        self.streams += 1

    async def on_change(self, client: ApiClient, event: Event[T]) -> None:
        name = event.object.metadata.name
        if self.refuses:
            self.refuses -= 1
            raise ApiServerError("something else was refused meanwhile")
        self.events.append((event.type, name))
        if event.type == "DELETED":
            self.objects.pop(name)
        else:
            self.objects[name] = event.object

    def on_failure(self, error: ApiServerError) -> float:
        self.failures.append(error)
        return 0.0

    async def becomes(self, ready: Callable[[], Any], deadline: float = 60) -> None:
        """Wait until it was told so."""
        async with asyncio.timeout(deadline):
            while not ready():
                await asyncio.sleep(0.01)
