"""Kinds of devices: one module a kind, and the table of them. `CONTRIBUTING.md` says how to add one."""
