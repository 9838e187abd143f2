"""The agent of one node: what it sees, what it decides, whom it serves. `docs/architecture.md` has its rooms."""
