"""What every daemon has: logs, restart of a part that raised, the HTTP server of status and metrics, facts of its own
process."""
