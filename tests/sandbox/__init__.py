"""Tests of the sandbox: a package, since they share a plugin by script."""
