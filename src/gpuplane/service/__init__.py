"""What every daemon has: logs, signals, restart of a part that raised, pages over HTTP or TLS and who may read them,
leader election, facts of its own process."""
