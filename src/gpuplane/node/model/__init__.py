"""Values: the snapshot's fields, the facts that change it, the actions and what views return.

No rules and no I/O live here. Every value is frozen; one definition serves in memory, between the processes,
in the machine file, in the state directory and as `--json`.
"""
