"""Inventory: the units of a machine, the resource names under which they are offered, and how they are shared."""
