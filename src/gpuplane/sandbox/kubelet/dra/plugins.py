"""The plugins of all drivers, and the end of the slices of drivers that are gone
(cm/dra/plugin/dra_plugin_manager.go).

A driver may have several instances, as during a rolling update: the one that registered last is used, of those that
are connected where one is. Where none is connected for 30 s, kubelet deletes the node's slices of the driver; at its
own start it deletes those of all drivers.
"""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.plugin import PROTOCOLS, DraPlugin, PluginEvents
from gpuplane.sandbox.kubelet.dra.source import ClaimSource
from gpuplane.sandbox.kubelet.dra.times import DraTimes


class DraPlugins:
    """`events`: who is told of plugins; of connections this object is told itself."""

    def __init__(self, source: ClaimSource, times: DraTimes, events: PluginEvents) -> None:
        self.source, self.times, self._events = source, times, events
        self.by_driver: dict[str, list[DraPlugin]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}

    def delete_slices_of_all_drivers(self) -> None:
        """Kubelet starts: no driver is registered, so no device of this node can be used."""
        self._wipes[""] = asyncio.create_task(self._wipe_slices(""))

    async def stop(self) -> None:
        """Kubelet ends."""
        plugins = [plugin for each in self.by_driver.values() for plugin in each]
        self.by_driver.clear()
        for plugin in plugins:
            await plugin.close()
        for wipe in self._wipes.values():
            wipe.cancel()
        await asyncio.gather(*self._wipes.values(), return_exceptions=True)
        self._wipes.clear()

    def check(self, driver: str, endpoint: Path, versions: Sequence[str]) -> str:
        """The service that kubelet uses of those that a plugin has. Raises KubeletError."""
        if chosen := next((each for each in versions if each in PROTOCOLS), None):
            return chosen
        problem = "empty list of supported gRPC services (aka supported versions)"
        if versions:
            offered, known = _go_list(versions), _go_list(PROTOCOLS)
            problem = f"none of services supported by the plugin ({offered}) are supported by the kubelet ({known})"
        plugin = f"DRA driver plugin {driver} at endpoint {endpoint}"
        raise KubeletError(f"invalid supported gRPC versions of {plugin}: {problem}")

    def add(self, driver: str, endpoint: Path, versions: Sequence[str]) -> None:
        """A plugin registers. Raises KubeletError."""
        service, plugins = self.check(driver, endpoint, versions), self.by_driver.setdefault(driver, [])
        if any(each.endpoint == endpoint for each in plugins):
            raise KubeletError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        plugin = DraPlugin(driver, endpoint, service, self.times, self._events)
        plugins.append(plugin)
        plugin.open()
        self.connection_changed(driver)

    async def remove(self, driver: str, endpoint: Path) -> None:
        """A plugin's registration socket is gone."""
        plugins = self.by_driver.get(driver, [])
        found = next((each for each in plugins if each.endpoint == endpoint), None)
        if found is None:
            return
        plugins.remove(found)
        if not plugins:
            del self.by_driver[driver]
        await found.close()
        self.connection_changed(driver)

    def get(self, driver: str) -> DraPlugin:
        """The instance to call. Raises KubeletError."""
        plugins = self.by_driver.get(driver)
        if not plugins:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return next((each for each in reversed(plugins) if each.is_connected), plugins[-1])

    def connection_changed(self, driver: str) -> None:
        """Plan the end of a driver's slices, or call it off. A time that runs already goes on."""
        if any(each.is_connected for each in self.by_driver.get(driver, ())):
            if planned := self._wipes.pop(driver, None):
                planned.cancel()
        elif driver not in self._wipes or self._wipes[driver].done():
            self._wipes[driver] = asyncio.create_task(self._wipe_slices_later(driver))

    async def _wipe_slices_later(self, driver: str) -> None:
        await asyncio.sleep(self.times.wiping_delay)
        await self._wipe_slices(driver)

    async def _wipe_slices(self, driver: str) -> None:
        pause = self.times.first_wipe_retry
        while True:
            try:
                return await self.source.delete_slices(driver)
            except KubeletError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.times.longest_wipe_retry)


def _go_list(names: Iterable[str]) -> str:
    """As Go prints a list with %q."""
    return "[" + " ".join(f'"{each}"' for each in names) + "]"
