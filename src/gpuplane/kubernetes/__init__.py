"""Kubernetes' own things: API types, quantities, selectors, resource names, and contracts of two programs. No I/O."""
