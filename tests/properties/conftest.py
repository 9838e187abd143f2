"""Fixtures of other folders that properties need too."""

from tests.host.mps.conftest import world

__all__ = ["world"]
