"""Faults: the catalogue of what can be wrong with a device, and what a configuration changes of it."""
