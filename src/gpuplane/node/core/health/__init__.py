"""Health: how faults make a device unhealthy, how it recovers, and why it must not be allocated."""
