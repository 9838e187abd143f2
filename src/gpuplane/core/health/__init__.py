"""Health: what a fault means, how a device falls ill and recovers, and what follows for those who want it."""
