"""Speaks to an API server: connection, credentials, lists in pages, watches."""
