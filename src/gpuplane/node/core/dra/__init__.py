"""Dynamic Resource Allocation: what this node publishes, what becomes of claims, and what their containers get."""
