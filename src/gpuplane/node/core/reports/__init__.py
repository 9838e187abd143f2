"""What people and their programs read of a node: log lines, Node condition, Events, readiness, metrics, `inspect`."""
