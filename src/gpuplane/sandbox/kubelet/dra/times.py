"""How long the DRA manager waits, and for what: the constants of kubelet 1.36."""

from typing import Self

import msgspec


class DraTimes(msgspec.Struct, frozen=True):
    """Seconds. The defaults are kubelet's; `scaled` makes them all shorter."""

    watch_period: float = 1.0  # between two looks at plugins_registry (pluginmanager, loopSleepDuration)
    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    first_backoff: float = 0.5  # after a registration that failed; it doubles (exponentialbackoff)
    longest_backoff: float = 122.0
    call: float = 45.0  # NodePrepareResources and NodeUnprepareResources
    reconnect: float = 1.0  # until a lost connection is tried again, at first
    health_retry: float = 5.0  # from the end of a health stream to the next
    health_age: float = 30.0  # after which health counts no longer, where the plugin says nothing else
    wiping_delay: float = 30.0  # from the loss of a driver's last connection to the end of its slices
    first_wipe_retry: float = 1.0
    longest_wipe_retry: float = 300.0
    reconcile_period: float = 60.0  # between two looks for claims of pods that are gone
    first_sync: float = 1.0  # from kubelet's start to the first sync of a pod
    pod_sync: float = 75.0  # between two syncs of a pod, and so two tries of Prepare: 60 to 90 on a node
    end_retry: float = 12.0  # between two tries of Unprepare for a pod that ends: 10 to 15 on a node
    stop_containers: float = 0.0  # that containers take to end; 2 and more on a node

    def scaled(self, factor: float) -> Self:
        """All of them, times a factor."""
        return type(self)(*(factor * value for value in msgspec.structs.astuple(self)))


KUBELET_TIMES = DraTimes()
