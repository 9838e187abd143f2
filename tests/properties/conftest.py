"""Fixtures of other folders that properties need too."""

from tests.node.host.mps.conftest import world

__all__ = ["world"]
