"""Chaos: a node under random faults, restarts and recoveries, and what must hold all the while. CONTRIBUTING.md.

`plan` says what is done, in `steps`, as a function of a seed; `oracle` what kubelet has to be shown, by a `belief` of
how all stands; `play` does the one on a real agent and an embedded kubelet (`site`), and checks it by the other.

`holdings` is a second play, of what containers hold: `turns` is its plan, `setups` has its machines and configurations,
`damage` what becomes of state files, `given` what must hold.
"""
