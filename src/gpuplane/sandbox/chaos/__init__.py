"""Chaos: a node under random faults, restarts and recoveries, and what must hold all the while.

`plan` says what is done, as a function of a seed; `oracle` what kubelet has to be shown; `play` does the one on a real
agent and an embedded kubelet, and checks it by the other.
"""

from gpuplane.sandbox.chaos.play import Broken, Chaos, Moment, Summary

__all__ = ["Broken", "Chaos", "Moment", "Summary"]
